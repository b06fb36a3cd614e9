document.documentElement.classList.add("js");

// Arrow keys go from point to point, whose values are shown and said.
function walk(place, chart, isShown) {
  const plot = document.getElementById(`chart-${place}`);
  let now = -1;
  plot.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const points = chart.series.flatMap((series, i) => (isShown(i) ? pointTexts(chart, series).map((text, j) => [i, j, text]) : []));
    if (!step || !points.length) return;
    event.preventDefault();
    now = (now + step + (now < 0 && step < 0 ? 1 : 0) + points.length) % points.length;
    const [curveNumber, pointNumber, text] = points[now];
    window.Plotly.Fx.hover(plot, [{ curveNumber, pointNumber }]);
    document.getElementById(`said-${place}`).textContent = text.join(", ");
  };
  plot.onblur = () => window.Plotly.Fx.unhover(plot);
}

drawCharts((charts) => {
  charts.forEach((chart, place) => {
    const boxes = [...document.querySelectorAll(`[data-plot="${place}"] .legend input`)];
    const isShown = (i) => boxes[i]?.checked ?? true;
    const draw = () => show(place, study(chart, isShown));
    draw();
    walk(place, chart, isShown);
    for (const box of boxes) box.onchange = draw;
  });
});
