function dots(chart) {
  const many = chart.series.length;
  const data = chart.series.map((series, i) => ({
    type: "scatter", mode: "markers", name: series.name, x: series.x,
    y: series.annotators.map((name) => chart.names.indexOf(name) + (many > 1 ? (i / (many - 1) - 0.5) * 0.6 : 0)),
    marker: { size: 10, color: seriesColour(i), symbol: seriesSymbol(i) },
    error_x: { type: "data", array: series.error, color: seriesColour(i), thickness: 1.5, width: 4 },
    customdata: series.error, hovertemplate: `${series.name}: %{x:.3~g} ± %{customdata:.2~g}<extra></extra>`,
  }));
  const half = chart.whole / 2;
  const ends = chart.series.flatMap((s) => s.x.flatMap((x, i) => [x - s.error[i], x + s.error[i]]));
  const margin = chart.whole / 40;
  const range = [Math.max(0, Math.min(half, ...ends)) - margin, Math.min(chart.whole, Math.max(half, ...ends)) + margin];
  const title = chart.whole === 100 ? "percent" : "share";
  return [data, {
    ...layout(90 + chart.names.length * (many > 1 ? 26 + 10 * many : 34)),
    showlegend: many > 1, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", itemclick: false, itemdoubleclick: false }, xaxis: { ...axis(title), range },
    yaxis: {
      ...axis(""), showgrid: false, range: [chart.names.length - 0.5, -0.5], tickmode: "array",
      tickvals: chart.names.map((_, i) => i), ticktext: chart.names.map((name) => plain(name)),
    },
    shapes: [{ type: "line", x0: half, x1: half, yref: "paper", y0: 0, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }],
  }];
}

function bias(chart) {
  const names = chart.names.map((name) => plain(name));
  const right = Math.max(1, ...chart.x.map((x, i) => x + chart.x_error[i])) * 1.05;
  const data = [{
    type: "scatter", mode: "markers+text", x: chart.x, y: chart.y, text: names,
    textposition: chart.x.map((x) => (x > right / 2 ? "top left" : "top right")),
    marker: { size: 10, color: colour("system") }, textfont: { color: colour("ink") }, cliponaxis: false,
    error_x: { type: "data", array: chart.x_error, color: colour("line"), thickness: 1.5, width: 4 },
    error_y: { type: "data", array: chart.y_error, color: colour("line"), thickness: 1.5, width: 4 },
    hovertemplate: "%{text}: variance %{x:.1f}, bias %{y:.1f}<extra></extra>",
  }];
  return [data, { ...layout(420), xaxis: { ...axis("variance, %"), range: [-right / 40, right] }, yaxis: { ...axis("bias, %"), rangemode: "tozero" } }];
}

function matrix(chart) {
  const places = chart.names.map((_, i) => i);
  const named = { tickmode: "array", tickvals: places, ticktext: chart.names.map((name) => plain(name)), showgrid: false };
  const side = 28 + (chart.names.length < 8 ? 16 : 0);
  const data = [{
    type: "heatmap", z: chart.values, x: places, y: places, hoverongaps: false, xgap: 2, ygap: 2, texttemplate: "%{z:.0f}",
    zmin: 0, zmax: 100, colorscale: [[0, colour("sunk")], [0.5, colour("system-soft")], [1, colour("system")]],
    showscale: !narrow(), colorbar: { title: { text: "%" }, thickness: 12, outlinewidth: 0 }, hovertemplate: "%{z:.1f}%<extra></extra>",
  }];
  return [data, {
    ...layout(150 + side * chart.names.length), xaxis: { ...axis(""), ...named, side: "bottom" },
    yaxis: { ...axis(""), ...named, autorange: "reversed" },
  }];
}

const DRAW = { agreement: dots, preferences: dots, bias, matrix };

drawCharts((charts) => {
  for (const [id, chart] of Object.entries(charts)) show(id, DRAW[id](chart));
});
