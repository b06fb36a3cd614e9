// Who labelled and what they prefer, and if judges have shifted.
const members = h("div", { id: "members" });
const holder = h("div", {});
const drift = h("div", {});
const choice = h("select", { class: "wide", "aria-label": "Labels", onchange: () => open() });
const from = h("span", {});
main.replaceChildren(h("h1", {}, "Annotators and drift"),
  h("section", { id: "annotators", "aria-labelledby": "annotators-title" }, h("div", { class: "section-head" }, h("h2", { id: "annotators-title" }, "Annotators"), from),
    h("p", { class: "muted" }, "What each member’s labels cost and prefer, ± standard error, over labels of different outputs. Bars are 95% intervals; a share of 0.5 is no preference; labels that all agree have no error to show."), h("div", { class: "toolbar" }, choice), members, holder), drift);
let files = [];
let shown = null;

function estimate(row, column) {
  const found = row[column.name];
  if (!found) return UNKNOWN;
  return [decimal(found.value, column.places), found.error ? h("span", { class: "error" }, ` ± ${decimal(found.error, column.places)}`) : "", h("span", { class: "meaning" }, `n = ${count(found.n)}`)];
}

function profiles(data) {
  return table({ caption: "Annotators", rows: data.rows, columns: [
    { title: "Annotator", value: (r) => r.annotator }, { title: "Labels", number: true, value: (r) => r.labels, cell: (r) => count(r.labels) },
    ...data.columns.map((column) => ({ title: column.title, number: true, value: (r) => r[column.name]?.value ?? null, cell: (r) => estimate(r, column) })),
  ] });
}

function dots(data, column) {
  const rows = data.rows.filter((row) => row[column.name]);
  const [x, half] = [rows.map((row) => row[column.name].value), rows.map((row) => Z_95 * (row[column.name].error ?? 0))];
  const range = [Math.max(0, Math.min(0.5, ...x.map((at, i) => at - half[i]))) - 0.03, Math.min(1, Math.max(0.5, ...x.map((at, i) => at + half[i]))) + 0.03];
  return [[{ type: "scatter", mode: "markers", x, y: rows.map((_, i) => i), marker: { size: 9, color: colour("system") }, error_x: { type: "data", symmetric: false, array: half.map((h, i) => Math.min(h, 1 - x[i])), arrayminus: half.map((h, i) => Math.min(h, x[i])), color: colour("system"), thickness: 1.5, width: 4 }, customdata: rows.map((row) => plain(row.annotator)), hovertemplate: "%{customdata}: %{x:.2f}<extra></extra>" }],
    { ...layout(90 + 24 * rows.length), xaxis: { ...axis("share"), range }, yaxis: { ...axis(""), range: [rows.length - 0.5, -0.5], showgrid: false, tickmode: "array", tickvals: rows.map((_, i) => i), ticktext: rows.map((row) => plain(row.annotator)) },
      shapes: [{ type: "line", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }] }];
}

async function draw() {
  if (!shown) return;
  const preferences = shown.columns.filter((column) => column.preference);
  const isThere = preferences.length && await loadPlotly();
  if (isThere) for (const column of preferences) if (document.getElementById(`chart-${column.name}`)) show(column.name, dots(shown, column));
}

async function open() {
  const file = files[choice.selectedIndex];
  if (!file) return;
  from.replaceChildren(command(file.command));
  holder.replaceChildren(h("p", { class: "muted" }, "Looking at the labels …"));
  members.replaceChildren();
  try {
    const data = await get(`data/annotators/${encodeURIComponent(file.run)}/${file.use}.json`);
    if (file !== files[choice.selectedIndex]) return;
    if (data.problem) throw new Error(data.problem);
    shown = data;
    holder.replaceChildren(profiles(data));
    members.replaceChildren(file.judged_by ? h("p", {}, `Judged by ${file.judged_by}; the names below are those of prompts.`) : "", h("div", { class: "charts" }, data.columns.filter((column) => column.preference).map((column) => h("figure", { class: "card chart" }, h("figcaption", {}, column.title), h("div", { class: "plot", id: `chart-${column.name}`, role: "img", "aria-label": `Chart: ${column.title}` })))));
    draw();
  } catch (error) {
    shown = null;
    holder.replaceChildren(problem(error.message));
  }
}

function probes(place) {
  const rows = place.probes.map((probe) => ({ ...probe, judge: [...new Set(Object.values(probe.judges ?? {}))].join(", ") }));
  return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "Drift of judges"), command(place.command)), place.output_dir ? h("p", { class: "muted" }, h("code", {}, place.output_dir)) : "",
    place.problem ? problem(place.problem) : rows.length ? [rows.some((row) => row.shifted) ? problem("A judge has shifted: what is evaluated after it stands on boards of its own.") : "",
      table({ caption: "Probes", rows, columns: [
        { title: "Probe", value: (r) => r.epoch }, { title: "Annotator", value: (r) => r.annotator }, { title: "Judge", value: (r) => r.judge }, { title: "Shift", value: (r) => (r.shifted ? "shifted" : "none shown"), cell: (r) => h("span", { class: `chip ${r.shifted ? "bad" : "good"}` }, r.shifted ? "shifted" : "none shown") },
        { title: "p", number: true, value: (r) => r.p_value, cell: (r) => decimal(r.p_value, 4) }, { title: "Pairs", number: true, value: (r) => r.pairs, cell: (r) => count(r.pairs) },
        { title: "From stored, %", hint: "disagreement of the new labels with the stored one", number: true, value: (r) => r.disagreement, cell: (r) => decimal(r.disagreement, 1) }, { title: "from itself, %", hint: "disagreement of the two new labels", number: true, value: (r) => r.noise, cell: (r) => decimal(r.noise, 1) },
        { title: "Won before, %", hint: "win rate of output_2 by the stored labels, and by the new ones", number: true, value: (r) => r.win_rate_before, cell: (r) => decimal(r.win_rate_before, 1) }, { title: "now, %", number: true, value: (r) => r.win_rate_now, cell: (r) => decimal(r.win_rate_now, 1) },
        { title: "Made", number: true, value: (r) => r.created || null, cell: (r) => moment(r.created || null) },
      ] })] : none("No judge was asked again yet: `afarm drift RUN` asks about labels that are stored, twice each, and tests if it has shifted."));
}

follow("data/annotators.json", (data) => {
  const before = files[choice.selectedIndex];
  files = [...together(data.files, (file) => file.method).values()].flat();
  choice.replaceChildren(...grouped(files, (file) => file.method, (file) => h("option", {}, `${file.name}: ${file.use}${file.shared_by > 1 ? `, shared by ${file.shared_by} runs` : ""}`)));
  const place = before ? files.findIndex((file) => file.run === before.run && file.use === before.use) : 0;
  choice.selectedIndex = Math.max(0, place);
  const probed = data.drift.filter((place) => place.probes.length || place.problem);
  drift.replaceChildren(...(probed.length ? probed : data.drift.slice(0, 1).map((place) => ({ ...place, output_dir: "" }))).map(probes));
  if (!files.length) holder.replaceChildren(none("No labels are stored yet: `afarm run` makes some."));
  else if (!before || place < 0) open();
}, 10);
window.matchMedia("(prefers-color-scheme: dark)").onchange = draw;
