// Boards and studies: what each found, its first table and its first plot, with links to its files.
main.replaceChildren(h("h1", {}, "Boards and studies"));
const holder = h("div", {});
main.append(holder);
const order = (name) => ["html", "md", "svg", "csv", "json"].indexOf(name.split(".").at(-1));

function ranking({ title, columns, rows }) {
  return table({ caption: title, rows, columns: columns.map(([heading, number], place) => ({
    title: heading, number, value: (row) => (row[place][2] === "" ? row[place][0] : Number(row[place][2])),
    cell: (row) => [row[place][0] || UNKNOWN, row[place][1] ? h("span", { class: "error" }, ` (${row[place][1]})`) : ""],
  })) });
}

function files(row) {
  const sorted = [...row.files].sort((a, b) => order(a.name) - order(b.name));
  const links = sorted.map((file) => [h("a", { href: ROOT + documentOf(file.address), target: "_blank", rel: "noopener" }, file.name.endsWith(".html") ? "The whole page" : file.name), " "]);
  return sorted.length > 4 ? [h("p", {}, links[0]), h("details", {}, h("summary", {}, `${sorted.length - 1} files`), h("p", {}, links.slice(1)))] : h("p", {}, links);
}

function shown(row, id) {
  const { title, answer, note, table: first, chart } = row.summary;
  const drawn = chart ? h("figure", { class: "card chart" }, h("figcaption", {}, chart.title), chart.series.length > 1 ? h("p", { class: "legend-line muted" }, chart.series.map((series, i) => h("span", {}, h("span", { class: "swatch", style: `background: var(--series-${1 + (i % 8)})` }), ` ${series.name}`))) : "", h("div", { class: "plot", id: `chart-${id}`, role: "img", "aria-label": `Plot: ${chart.title}` })) : "";
  return h("article", { class: "card board" }, h("h3", {}, title || row.name), h("p", { class: "muted" }, `${row.name}, ${moment(row.changed)}`), answer ? h("p", { class: "answer" }, answer) : "", note ? h("p", { class: "muted" }, note) : "",
    h("div", { class: "board-parts" }, first ? ranking(first) : "", drawn), files(row), command(row.command));
}

async function draw(rows) {
  if (!rows.some((row) => row.summary.chart) || !(await loadPlotly())) return;
  rows.forEach((row, id) => { if (row.summary.chart) show(id, study(row.summary.chart, () => true)); });
}

follow("data/boards.json", (data) => {
  const rows = [...data.boards, ...data.studies];
  const listed = (title, some, maker) => h("section", {}, h("h2", {}, title), some.length ? some.map((row) => shown(row, rows.indexOf(row))) : none(`None here yet: ${maker}.`));
  holder.replaceChildren(listed("Boards", data.boards, "`afarm compare` makes one"), listed("Studies", data.studies, "`afarm study` and `afarm best-of-n` make one"));
  draw(rows);
  window.matchMedia("(prefers-color-scheme: dark)").onchange = () => draw(rows);
}, 5);
