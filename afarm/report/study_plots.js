// Plots of studies: series with intervals, names, fitted curves, a diagonal or a level.
const ASIDE = 0.009; // of an axis: between points of several series at one place, which would hide each other
const BESIDE = 0.06; // of an axis: free beyond its first and last point
const BESIDE_NAMES = 0.16; // the same where points have names, which would be cut off

const known = (values) => values.filter((value) => value !== null);
const said = (number) => Number(number.toPrecision(3)).toString().replace("-", "−");

function between({ at, low, high }, i) {
  if (typeof at[i] !== "number") return at[i];
  return said(at[i]) + (low[i] === null || high[i] === null ? "" : ` (${said(low[i])} to ${said(high[i])})`);
}

function pointTexts(chart, series) {
  return series.x.at.map((_, i) => [
    series.labels[i] ?? series.name, `${chart.x_title}: ${between(series.x, i)}`, `${chart.y_title}: ${between(series.y, i)}`,
  ]);
}

function rangeOf(values, beside) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const free = beside * (high - low) || Math.abs(high) * beside || 0.5;
  return [low - free, high + free];
}

const ends = (figures) => known([...figures.at, ...figures.low, ...figures.high]);

// The axis of a plot: texts side by side, or numbers, whose logarithms plotly takes.
function across(chart, shown) {
  const beside = shown.some((series) => series.labels.length) ? BESIDE_NAMES : BESIDE;
  const values = shown.flatMap((series) => known(series.x.at));
  if (values.some((value) => typeof value === "string")) {
    const places = [...new Set(values.map(String))];
    const room = Math.max(6, Math.floor((narrow() ? 40 : 90) / places.length));
    const ticks = { tickmode: "array", tickvals: places.map((_, i) => i), ticktext: places.map((text) => plain(text, room)) };
    return { ...ticks, at: (value) => places.indexOf(String(value)), range: [-0.5, places.length - 0.5], showgrid: false };
  }
  if (chart.diagonal) return { at: (value) => value, range: rangeOf(shown.flatMap((series) => [...ends(series.x), ...ends(series.y)]), beside) };
  const isLog = chart.log_x && values.every((value) => value > 0);
  const at = (value) => (isLog ? Math.log10(value) : value);
  const range = rangeOf(shown.flatMap((series) => ends(series.x)).map(at), beside);
  if (!isLog) return { at, range };
  const all = [...new Set(values)].sort((one, other) => one - other);
  const least = (range[1] - range[0]) / (narrow() ? 5 : 9); // nearer ones would overlap
  const ticks = all.reduce((kept, value) => (kept.length && at(value) - at(kept.at(-1)) < least ? kept : [...kept, value]), []);
  return { at, range, tickmode: "array", tickvals: ticks.map(at), ticktext: ticks.map(said) };
}

function errorBars({ at, low, high }, ink) {
  const apart = (one, other) => (one === null || other === null ? null : one - other);
  return {
    type: "data", symmetric: false, color: ink, thickness: 1.5, width: 4,
    array: at.map((middle, i) => apart(high[i], middle)), arrayminus: at.map((middle, i) => apart(middle, low[i])),
  };
}

// Series that have a place in common stand a little apart there, or their bars would hide each other.
function areAtOnePlace(chart) {
  const places = chart.series.map((series) => new Set(series.x.at));
  return new Set(places.flatMap((each) => [...each])).size < places.reduce((sum, each) => sum + each.size, 0);
}

function study(chart, isShown) {
  const shown = chart.series.filter((_, i) => isShown(i));
  if (!shown.length) return [[], { ...layout(360), xaxis: axis(chart.x_title), yaxis: axis(chart.y_title) }];
  const { at, range, ...ticks } = across(chart, shown);
  const aside = areAtOnePlace(chart) && !chart.diagonal ? ASIDE * (range[1] - range[0]) : 0;
  const data = chart.series.map((series, i) => ({
    type: "scatter", mode: series.joined ? "lines+markers" : "markers", visible: isShown(i),
    x: series.x.at.map((x) => (x === null ? null : at(x) + aside * (i - (chart.series.length - 1) / 2))), y: series.y.at,
    line: { color: seriesColour(i), width: 2 }, marker: { size: 9, color: seriesColour(i), symbol: seriesSymbol(i) },
    error_x: errorBars(series.x, seriesColour(i)), error_y: errorBars(series.y, seriesColour(i)),
    hovertext: pointTexts(chart, series).map((lines) => lines.map((line) => plain(line, 60)).join("<br>")),
    hovertemplate: "%{hovertext}<extra></extra>", cliponaxis: false,
  }));
  const fits = chart.series.filter((series) => series.fit.x.length).map((series) => {
    const i = chart.series.indexOf(series);
    return {
      type: "scatter", mode: "lines", visible: isShown(i), x: series.fit.x.map(at), y: series.fit.y, hoverinfo: "skip",
      line: { color: seriesColour(i), width: 2 },
    };
  });
  // Names come after all bars, which would strike them through.
  const names = chart.series.flatMap((series, i) => (series.labels.length ? [{
    type: "scatter", mode: "text", visible: isShown(i), x: data[i].x, y: data[i].y, hoverinfo: "skip", cliponaxis: false,
    text: series.labels.map((label, j) => (series.sides[j] ? `\u2002${plain(label)}\u2002` : "")),
    textposition: series.sides.map((side) => side || "top right"), textfont: { color: colour("ink") },
  }] : []));
  // As a trace, and not as a shape, it is within the axis.
  const level = typeof chart.level === "number" ? [{
    type: "scatter", mode: "lines", x: range, y: [chart.level, chart.level], hoverinfo: "skip", showlegend: false,
    line: { color: colour("muted"), width: 1, dash: "dash" },
  }] : [];
  const look = { ...layout(narrow() ? 300 : 380), xaxis: { ...axis(chart.x_title), ...ticks, range }, yaxis: axis(chart.y_title) };
  if (chart.diagonal) {
    look.height = narrow() ? 340 : 480;
    look.yaxis.range = range;
    const [x0, x1] = range;
    look.shapes = [{ type: "line", layer: "below", x0, x1, y0: x0, y1: x1, line: { color: colour("muted"), width: 1, dash: "dash" } }];
  }
  return [[...data, ...fits, ...level, ...names], look];
}
