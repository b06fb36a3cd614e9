"use strict";
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

// The charts, in the colours of the style sheet.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function axis(title) {
  return {
    title: { text: title, standoff: 8 }, gridcolor: colour("line"), linecolor: colour("line"), zeroline: false,
    automargin: true, fixedrange: true, exponentformat: "power",
  };
}

function layout(chart) {
  return {
    font: { family: "system-ui, sans-serif", size: 12, color: colour("muted") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false,
    margin: { l: 8, r: 8, t: 16, b: 8 }, height: 240, hovermode: "x",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink") } },
    xaxis: axis(chart.x_title), yaxis: axis(chart.y_title),
  };
}

function curve(chart) {
  const few = chart.x.length <= 60;
  return [[{
    type: "scatter", mode: few ? "lines+markers" : "lines", x: chart.x, y: chart.y, connectgaps: false,
    line: { color: colour("system"), width: 2 }, marker: { size: 5, color: colour("system") },
    hovertemplate: "%{y:.4g}<extra></extra>",
  }], layout(chart)];
}

// The diagonal is where a model is as often right as it says.
function reliability(chart) {
  const sizes = chart.pairs.map((pairs) => 6 + 18 * Math.sqrt(pairs / Math.max(...chart.pairs)));
  const drawn = layout(chart);
  return [[{
    type: "scatter", mode: "markers", x: chart.x, y: chart.y, customdata: chart.pairs,
    marker: { size: sizes, color: colour("system"), line: { width: 0 } },
    hovertemplate: "%{customdata} pairs: says %{x:.2f}, is right %{y:.2f}<extra></extra>",
  }], {
    ...drawn,
    hovermode: "closest",
    xaxis: { ...drawn.xaxis, range: [0.48, 1.02] },
    yaxis: { ...drawn.yaxis, range: [-0.05, 1.08] },
    shapes: [{ type: "line", x0: 0.5, x1: 1, y0: 0.5, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }],
  }];
}

function bars(chart) {
  const drawn = layout(chart);
  return [[{
    type: "bar", x: chart.x, y: chart.y, width: chart.width * 0.92,
    marker: { color: chart.x.map((x) => colour(x < 0 ? "reference" : "system")) },
    hovertemplate: "%{x:.2f}: %{y} pairs<extra></extra>",
  }], { ...drawn, hovermode: "closest" }];
}

function interval(chart) {
  const ends = chart.x.flatMap((x, i) => [chart.low[i] ?? x, chart.high[i] ?? x]);
  const range = [Math.max(0, Math.min(40, ...ends) - 3), Math.min(100, Math.max(60, ...ends) + 3)];
  const drawn = layout(chart);
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
      tickvals: chart.y.map((_, i) => i), ticktext: chart.y.map((name) => plain(name)),
    },
    shapes: [{ type: "line", x0: 50, x1: 50, yref: "paper", y0: 0, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }],
    annotations: [{ x: 50, y: 1, yref: "paper", yanchor: "bottom", text: "even", showarrow: false, font: { size: 11 } }],
  }];
}

// plotly reads some HTML in texts; names are text.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const KINDS = { curve, interval, reliability, bars };

function draw(id, chart) {
  const named = { ...chart, x_title: plain(chart.x_title), y_title: plain(chart.y_title ?? "") };
  const [data, look] = KINDS[chart.kind](named);
  window.Plotly.react(document.getElementById(id), data, look, { displayModeBar: false, responsive: true, displaylogo: false });
}

async function drawCharts() {
  const packed = document.getElementById("plotly");
  if (!packed) return;
  await unpackPlotly(packed);
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const more = document.getElementById("more-charts");
  const drawAll = () => {
    if (charts.win_rate) draw("chart-win-rate", charts.win_rate);
    charts.main.forEach((chart, i) => draw(`chart-main-${i}`, chart));
    charts.held_out.forEach((chart, i) => draw(`chart-held-out-${i}`, chart));
    if (more?.open) charts.others.forEach((chart, i) => draw(`chart-others-${i}`, chart));
  };
  drawAll();
  more?.addEventListener("toggle", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

drawCharts().catch((error) => {
  for (const figure of document.querySelectorAll(".plot:empty")) figure.textContent = "This chart could not be drawn.";
  console.error(error);
});
