// Charts in the colours of the style sheet, drawn by plotly, which the page holds packed.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const seriesColour = (place) => colour(`series-${1 + (place % 8)}`);
const symbols = ["circle", "diamond", "square", "triangle-up", "cross", "x", "triangle-down", "star"];
const seriesSymbol = (place) => symbols[place % symbols.length];
const narrow = () => window.innerWidth < 640;

// plotly reads some HTML in texts; names are text, and long ones leave no room for the plot.
function plain(text, room = narrow() ? 14 : 34) {
  const short = text.length > room ? `${text.slice(0, room - 1)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function axis(title) {
  return {
    title: { text: plain(title, 80), standoff: 10 }, gridcolor: colour("line"), linecolor: colour("line"),
    zeroline: false, automargin: true, fixedrange: true, exponentformat: "power",
  };
}

function layout(height) {
  return {
    font: { family: "system-ui, sans-serif", size: 12, color: colour("muted") }, height, dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 16, t: 24, b: 8 },
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font: { color: colour("ink") } },
    hovermode: "closest", showlegend: false,
  };
}

function chartLook(chart) {
  return { ...layout(240), margin: { l: 8, r: 8, t: 16, b: 8 }, hovermode: "x", xaxis: axis(chart.x_title), yaxis: axis(chart.y_title ?? "") };
}

const noted = (x, y, text) => ({ x, y, text, showarrow: false, font: { size: 11 }, yanchor: "bottom", yshift: 4 });

// A curve over steps, with its intervals and the checkpoint that was kept.
function curve(chart) {
  const few = chart.x.length <= 60;
  const look = chartLook(chart);
  if (typeof chart.kept === "number") {
    look.shapes = [{ type: "line", x0: chart.kept, x1: chart.kept, yref: "paper", y0: 0, y1: 1, line: { color: colour("reference"), width: 1.5, dash: "dash" } }];
    look.annotations = [{ ...noted(chart.kept, 1, "kept"), yref: "paper" }];
  }
  return [[{
    type: "scatter", mode: few ? "lines+markers" : "lines", x: chart.x, y: chart.y, connectgaps: false,
    line: { color: colour("system"), width: 2 }, marker: { size: 5, color: colour("system") },
    error_y: chart.half ? { type: "data", array: chart.half, color: colour("system"), thickness: 1.5, width: 4 } : { visible: false },
    hovertemplate: "%{y:.4g}<extra></extra>",
  }], look];
}

// One figure over another, step by step: the kept checkpoint is ringed.
function path(chart) {
  const kept = chart.steps.indexOf(chart.kept);
  const look = { ...chartLook(chart), hovermode: "closest" };
  look.annotations = [0, kept < 0 ? chart.steps.length - 1 : kept].map((i) => noted(chart.x[i], chart.y[i], `${i === kept ? "kept, " : ""}step ${chart.steps[i]}`));
  const ring = kept < 0 ? [] : [{ type: "scatter", mode: "markers", x: [chart.x[kept]], y: [chart.y[kept]], hoverinfo: "skip", marker: { size: 14, symbol: "circle-open", color: colour("reference"), line: { width: 2.5 } } }];
  return [[{
    type: "scatter", mode: "lines+markers", x: chart.x, y: chart.y, customdata: chart.steps, cliponaxis: false,
    line: { color: colour("system"), width: 1.5 }, marker: { size: 5, color: colour("system") },
    hovertemplate: "step %{customdata}: %{x:.3g}, %{y:.3g}<extra></extra>",
  }, ...ring], look];
}

function points(chart) {
  const data = chart.series.map((series, i) => ({
    type: "scatter", mode: "markers", name: plain(series.name, 60), x: series.x, y: series.y,
    marker: { size: 6, opacity: 0.5, color: colour(i ? "reference" : "system"), symbol: seriesSymbol(i) },
    hovertemplate: `${plain(series.name, 60)}: %{x:.3g}, %{y:.3g}<extra></extra>`,
  }));
  // The last is drawn on top: the system, which the reference would cover.
  return [data.reverse(), { ...chartLook(chart), hovermode: "closest", showlegend: true, legend: { traceorder: "reversed", orientation: "h", x: 0, y: 1, yanchor: "bottom" } }];
}

// The diagonal is where a model is as often right as it says.
function reliability(chart) {
  const sizes = chart.pairs.map((pairs) => 6 + 18 * Math.sqrt(pairs / Math.max(...chart.pairs)));
  const drawn = chartLook(chart);
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
  const drawn = chartLook(chart);
  return [[{
    type: "bar", x: chart.x, y: chart.y, width: chart.width * 0.92,
    marker: { color: chart.x.map((x) => colour(x < 0 ? "reference" : "system")) },
    hovertemplate: "%{x:.2f}: %{y} pairs<extra></extra>",
  }], { ...drawn, hovermode: "closest" }];
}

const KINDS = { curve, path, points, reliability, bars };

function show(id, [data, look]) {
  const settings = { displayModeBar: false, responsive: true, displaylogo: false };
  return window.Plotly.react(document.getElementById(`chart-${id}`), data, look, settings);
}

async function unpackPlotly(packed) {
  const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}

// `drawAll(charts)` draws those of the page, again if the reader's colour scheme changes.
async function drawCharts(drawAll) {
  const packed = document.getElementById("plotly");
  if (!packed) return;
  try {
    await unpackPlotly(packed);
    const charts = JSON.parse(document.getElementById("charts").textContent);
    drawAll(charts);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(charts));
  } catch (error) {
    for (const figure of document.querySelectorAll(".plot:empty")) figure.textContent = "This chart could not be drawn.";
    console.error(error);
  }
}

