// Several runs beside each other.
const VERDICT = { win: "won", loss: "lost", draw: "draw", none: "no answer" };

function swatch(i) {
  return h("span", { class: "swatch", style: `background: var(--series-${1 + (i % 8)})`, "aria-hidden": "true" });
}

function figures(data) {
  const rows = [["Status", (r) => r.status], ["Method", (r) => r.method], ["Seed", (r) => r.seed], ["Judge", (r) => r.judge.replace(/@.*$/, "")], ["Win rate, %", (r) => (isNumber(r.win_rate) ? `${decimal(r.win_rate, 1)} ± ${decimal(r.standard_error, 1)}` : null)], ["Against", (r) => r.reference], ["Gold", (r) => isNumber(r.gold) ? decimal(r.gold) : null], ["Reward", (r) => isNumber(r.reward) ? decimal(r.reward) : null], ["KL, nats", (r) => isNumber(r.kl) ? decimal(r.kl) : null], ["Mean characters", (r) => isNumber(r.length) ? decimal(r.length, 0) : null], ["Spend", (r) => isNumber(r.dollars) ? dollars(r.dollars) : null], ["Time of its stages", (r) => isNumber(r.seconds) ? duration(r.seconds) : null]];
  const shown = rows.filter(([, value]) => data.runs.some((run) => ![null, ""].includes(value(run))));
  return h("div", { class: "scroll card table-card", tabindex: "0", role: "group", "aria-label": "Figures" }, h("table", {}, h("caption", { class: "unseen" }, "Figures of the runs"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), data.runs.map((run, i) => h("th", { scope: "col" }, swatch(i), " ", link(runOf(run.id), run.name))))),
    h("tbody", {}, shown.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), data.runs.map((run) => h("td", {}, String(value(run) ?? UNKNOWN))))))));
}

function settings(data) {
  return h("div", { class: "scroll card table-card", tabindex: "0", role: "group", "aria-label": "Settings" }, h("table", {}, h("caption", { class: "unseen" }, "Settings that differ"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), data.runs.map((run, i) => h("th", { scope: "col" }, swatch(i), " ", run.name)))),
    h("tbody", {}, data.settings.map((row) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, row.name)), row.values.map((value) => h("td", {}, value === null ? UNKNOWN : h("code", { class: "cell" }, value))))))));
}

function difference(one) {
  if (one.problem) return h("div", { class: "card" }, h("p", {}, one.names.join(" → ")), problem(one.problem));
  const half = Z_95 * (one.standard_error ?? 0);
  const clear = isNumber(one.difference) && Math.abs(one.difference) > half && half > 0;
  const found = one.incomparable.length ? "" : clear ? " Two standard errors leave no room for zero." : " Zero is within two standard errors: no difference is shown.";
  return h("div", { class: "card" }, h("p", { class: "label" }, `${one.names[1]} less ${one.names[0]}`),
    one.incomparable.length ? h("aside", { class: "banner" }, h("p", {}, `Not comparable: ${one.incomparable.join("; ")}.`)) : "",
    h("p", { class: "figure middling" }, signed(one.difference, 1), h("span", { class: "unit" }, " points"), isNumber(one.standard_error) ? h("span", { class: "error" }, ` ± ${decimal(one.standard_error, 1)} s.e.`) : ""),
    h("p", { class: "reading" }, isNumber(one.difference) ? `Paired over ${count(one.shared)} instructions.${found}` : "No instruction has a usable label in both."),
    table({ caption: "Where it comes from", rows: one.contributions, columns: [{ title: "Because of", value: (r) => ({ label: "the judge’s label", policy: "the system’s output", reference: "the reference’s output" }[r.reason] ?? r.reason) }, { title: "Changed", number: true, value: (r) => r.changed, cell: (r) => count(r.changed) }, { title: "Flips", number: true, value: (r) => r.flips, cell: (r) => count(r.flips) }, { title: "Points", number: true, value: (r) => r.points, cell: (r) => signed(r.points, 1) }] }),
    h("p", {}, STATIC ? "" : link(`${outputsOf(one.second)}?flips=${encodeURIComponent(one.first)}`, "All flips →")), command(one.command));
}

function overlay(chart) {
  const data = chart.series.map((series) => ({ type: "scatter", mode: series.x.length <= 60 ? "lines+markers" : "lines", x: series.x, y: series.y, name: plain(series.name), line: { color: seriesColour(series.run), width: 2 }, marker: { size: 5, symbol: seriesSymbol(series.run), color: seriesColour(series.run) }, hovertemplate: `${plain(series.name)}: %{y:.4g}<extra></extra>` }));
  return [data, { ...layout(260), xaxis: axis(chart.x_title), yaxis: axis(chart.y_title) }];
}

const FIRST = 12; // instructions, until the others are asked for
let all = false;
function outputs(data) {
  const { shared, flips } = data.outputs;
  const rows = all ? data.outputs.rows : data.outputs.rows.slice(0, FIRST);
  if (!rows.length) return none("The runs have no judged instruction in common.");
  return [h("p", {}, `${count(shared)} instructions in common; on ${count(flips)} the verdicts differ. ${rows.length < shared ? `The first ${rows.length}${flips ? ", those that differ before the others" : ""}:` : ""}`),
    h("ol", { class: "comparisons" }, rows.map((row) => h("li", { class: "card comparison" }, h("h3", { dir: "auto" }, row.instruction || "(no instruction)"), row.input ? h("p", { class: "input", dir: "auto" }, row.input) : "",
      h("div", { class: "beside", style: `--many: ${data.runs.length}` }, row.outputs.map((output, i) => h("div", { style: `border-top-color: var(--series-${1 + (i % 8)})` }, h("h4", {}, data.runs[i].name, h("span", { class: `chip ${output.verdict}` }, VERDICT[output.verdict])),
        h("div", { class: "text", dir: "auto" }, output.text || "(empty output)"), output.length > output.text.length ? h("p", { class: "cut" }, `the first ${count(output.text.length)} of ${count(output.length)} characters`) : "", link(`${outputsOf(data.runs[i].id)}?pair=${output.number}`, "votes →"))))))),
    rows.length < data.outputs.rows.length ? h("p", {}, h("button", { type: "button", class: "quiet-button", onclick: () => { all = true; document.getElementById("outputs").replaceWith(section("outputs", "Outputs side by side", data.commands.outputs, outputs(data))); } }, `Show ${data.outputs.rows.length - rows.length} more`)) : ""];
}

async function drawCompared(data) {
  if (!data.charts.length) return;
  if (!(await loadPlotly())) return;
  data.charts.forEach((chart, i) => { if (document.getElementById(`chart-${i}`)?.closest("details")?.open !== false) show(i, overlay(chart)); });
}

const asked = new URLSearchParams(location.search).getAll("run");
const from = STATIC ? `data/compare/${asked.map(encodeURIComponent).join("/")}.json` : `data/compare.json?${asked.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`;
main.replaceChildren(h("p", { class: "muted" }, "Comparing …"));
get(from).then((data) => {
  const first = data.charts.slice(0, 6);
  const plot = (chart, i) => h("figure", { class: "card chart" }, h("figcaption", {}, chart.title, chart.stage ? h("span", { class: "by" }, ` ${chart.stage}`) : ""), h("div", { class: "plot", id: `chart-${i}`, role: "img", "aria-label": `Chart: ${chart.title}` }));
  const legend = h("p", { class: "legend-line" }, data.runs.map((run, i) => h("span", {}, swatch(i), " ", run.name)));
  main.replaceChildren(h("p", { class: "eyebrow" }, link("index.html", "Runs")), h("h1", {}, `${data.runs.length} runs compared`),
    section("figures", "Figures", data.command, figures(data)),
    section("difference", "Paired difference", data.command, h("div", { class: "cards" }, data.differences.map(difference))),
    ...(data.charts.length ? [section("curves", "Curves", data.commands.curves, legend, h("div", { class: "charts" }, first.map(plot)), data.charts.length > 6 ? h("details", { ontoggle: () => drawCompared(data) }, h("summary", {}, `${data.charts.length - 6} more curves`), h("div", { class: "charts" }, data.charts.slice(6).map((chart, i) => plot(chart, i + 6)))) : "")] : []),
    section("settings", "Settings that differ", data.command, data.settings.length ? settings(data) : none("All settings are the same.")),
    section("outputs", "Outputs side by side", data.commands.outputs, outputs(data)));
  drawCompared(data);
  window.matchMedia("(prefers-color-scheme: dark)").onchange = () => drawCompared(data);
}).catch((error) => main.replaceChildren(h("h1", {}, "Runs compared"), problem(asked.length < 2 ? "Select two or more runs in the table of runs." : STATIC ? "These runs were not exported beside each other." : error.message)));
