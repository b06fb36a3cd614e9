document.documentElement.classList.add("js");

// The filter over the outputs.
const shown = document.getElementById("shown");
for (const button of document.querySelectorAll('input[name="verdict"]')) {
  button.addEventListener("change", () => {
    let count = 0;
    for (const item of document.querySelectorAll(".comparison")) {
      item.hidden = button.value !== "all" && item.dataset.verdict !== button.value;
      count += item.hidden ? 0 : 1;
    }
    shown.textContent = `${count} shown`;
  });
}

const draw = (id, chart) => show(id, KINDS[chart.kind](chart));

drawCharts((charts) => {
  const more = document.getElementById("more-charts");
  const drawOthers = () => {
    if (more?.open) charts.others.forEach((chart, i) => draw(`others-${i}`, chart));
  };
  charts.main.forEach((chart, i) => draw(`main-${i}`, chart));
  charts.held_out.forEach((chart, i) => draw(`held-out-${i}`, chart));
  drawOthers();
  if (more) more.ontoggle = drawOthers;
});
