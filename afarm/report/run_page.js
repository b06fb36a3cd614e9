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

function interval(chart) {
  const ends = chart.x.flatMap((x, i) => [chart.low[i] ?? x, chart.high[i] ?? x]);
  const range = [Math.max(0, Math.min(40, ...ends) - 3), Math.min(100, Math.max(60, ...ends) + 3)];
  const drawn = chartLook(chart);
  return [[{
    type: "scatter", mode: "markers", x: chart.x, y: chart.y.map((_, i) => i),
    marker: { size: 12, color: colour("system") },
    error_x: {
      type: "data", symmetric: false, color: colour("system"), thickness: 2.5, width: 7,
      array: chart.x.map((x, i) => (chart.high[i] ?? x) - x), arrayminus: chart.x.map((x, i) => x - (chart.low[i] ?? x)),
    },
    customdata: chart.y.map((_, i) => [chart.low[i], chart.high[i]]),
    hovertemplate: "%{x:.1f}%, 95% interval %{customdata[0]:.1f} to %{customdata[1]:.1f}<extra></extra>",
  }], {
    ...drawn,
    height: 84 + 40 * chart.y.length,
    hovermode: "closest",
    xaxis: { ...drawn.xaxis, range },
    yaxis: {
      ...axis(""), range: [chart.y.length - 0.4, -0.6], showgrid: false, tickmode: "array",
      tickvals: chart.y.map((_, i) => i), ticktext: chart.y.map((name) => plain(name, 80)),
    },
    shapes: [{ type: "line", x0: 50, x1: 50, yref: "paper", y0: 0, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }],
    annotations: [{ x: 50, y: 1, yref: "paper", yanchor: "bottom", text: "even", showarrow: false, font: { size: 11 } }],
  }];
}

Object.assign(KINDS, { interval });
const draw = (id, chart) => show(id, KINDS[chart.kind](chart));

drawCharts((charts) => {
  const more = document.getElementById("more-charts");
  const drawOthers = () => {
    if (more?.open) charts.others.forEach((chart, i) => draw(`others-${i}`, chart));
  };
  if (charts.win_rate) draw("win-rate", charts.win_rate);
  charts.main.forEach((chart, i) => draw(`main-${i}`, chart));
  charts.held_out.forEach((chart, i) => draw(`held-out-${i}`, chart));
  drawOthers();
  if (more) more.ontoggle = drawOthers;
});
