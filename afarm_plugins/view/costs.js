// What runs have cost, best of n by n, and what the next experiment would cost.
const Z_POWER = 0.8416; // four times in five
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const known = (values) => values.filter(isNumber);
const frontier = h("div", {});
const best = h("div", {});
const plan = h("div", {});
main.replaceChildren(h("h1", {}, "Costs and plans"), frontier, best, plan);
let data = { runs: [], curves: [], prices: [], command: "" };
// What was drawn once is filled again when data come: sliders and sorting stay as somebody has set them.
const redraws = {};
let [drawnCurves, planned] = ["", false];

async function draw(id, chart) {
  if (!(await loadPlotly())) document.getElementById(`chart-${id}`)?.replaceChildren(none("Charts need plotly: pip install 'afarm[view]'"));
  else if (document.getElementById(`chart-${id}`)) show(id, chart);
}

const plotCard = (id, title) => h("figure", { class: "card chart" }, h("figcaption", {}, title), h("div", { class: "plot", id: `chart-${id}`, role: "img", "aria-label": `Chart: ${title}` }));

// ------------------------------------------------------------------------------------------------ quality and cost

// Runs that differ in nothing but their seeds, in the mean; a machine has a price per hour.
function methods(hour) {
  const groups = new Map();
  const compared = data.runs.filter((run) => run.is_compared);
  const several = new Set(compared.map((run) => run.recipe)).size > 1;
  for (const run of compared) {
    const name = [several && run.recipe, run.method, ...run.settings].filter(Boolean).join(" · ");
    groups.set(name, [...(groups.get(name) ?? []), run]);
  }
  return [...groups].map(([name, runs]) => {
    const rates = known(runs.map((run) => run.win_rate));
    const errors = known(runs.map((run) => run.standard_error));
    const spread = rates.length > 1 ? Math.sqrt(rates.reduce((sum, rate) => sum + (rate - mean(rates)) ** 2, 0) / (rates.length - 1) / rates.length) : errors[0] ?? null;
    const [seconds, judge] = [mean(runs.map((run) => run.seconds)), mean(runs.map((run) => run.dollars))];
    return { name, runs: runs.length, rate: rates.length ? mean(rates) : null, error: spread, seconds, judge, dollars: judge + hour * seconds / 3600 };
  });
}

// The methods that none beats at the same or a lower cost, the cheapest first.
function undominated(rows, cost) {
  const found = [];
  for (const row of rows.filter((one) => isNumber(one.rate)).sort((a, b) => cost(a) - cost(b) || b.rate - a.rate)) if (!found.length || row.rate > found.at(-1).rate) found.push(row);
  return found;
}

// A place for each point's label beside it, at which it covers no other label and no point; none if there is no such.
function labelled(points, width, height) {
  const [most, top] = [Math.max(...points.map((p) => p.x)) || 1, Math.max(...points.map((p) => p.y + p.half))];
  const span = top - Math.min(...points.map((p) => p.y - p.half)) || 1;
  const at = (p) => [p.x / most * width, (top - p.y) / span * height];
  const taken = points.map((p) => [at(p)[0] - 5, at(p)[1] - 5, at(p)[0] + 5, at(p)[1] + 5]);
  const places = (x, y, long) => ({ "top right": [x + 5, y - 22, x + 5 + long, y - 5], "bottom right": [x + 5, y + 5, x + 5 + long, y + 22], "top left": [x - 5 - long, y - 22, x - 5, y - 5], "bottom left": [x - 5 - long, y + 5, x - 5, y + 22] });
  const isFree = (box) => box[0] >= -20 && box[2] <= width + 60 && taken.every((other) => box[2] <= other[0] || other[2] <= box[0] || box[3] <= other[1] || other[3] <= box[1]);
  return points.map((p) => {
    const found = Object.entries(places(...at(p), 7 * p.name.length)).find(([, box]) => isFree(box));
    if (found) taken.push(found[1]);
    return found?.[0] ?? null;
  });
}

function frontierChart(rows, front, cost, unit) {
  const beaten = rows.filter((row) => isNumber(row.rate) && !front.includes(row));
  const drawn = [...front, ...beaten];
  const width = (document.getElementById("chart-frontier")?.clientWidth || 1000) - 70;
  const places = new Map(labelled(drawn.map((row) => ({ name: row.name, x: cost(row), y: row.rate, half: Z_95 * (row.error ?? 0) })), width, 280).map((place, i) => [drawn[i], place]));
  const trace = (some, place, name, mode) => ({ type: "scatter", mode, name, x: some.map(cost), y: some.map((row) => row.rate), text: some.map((row) => (places.get(row) ? plain(row.name) : "")), customdata: some.map((row) => plain(row.name)), textposition: some.map((row) => places.get(row) ?? "top right"), textfont: { color: colour("ink") }, cliponaxis: false,
    marker: { size: 10, color: seriesColour(place), symbol: seriesSymbol(place) }, line: { color: seriesColour(place), width: 2 }, error_y: { type: "data", array: some.map((row) => Z_95 * (row.error ?? 0)), color: seriesColour(place), thickness: 1.5, width: 4 },
    hovertemplate: `%{customdata}: %{y:.1f} %, %{x:.4g} ${unit}<extra></extra>` });
  const traces = [trace(front, 0, "frontier", "lines+markers+text"), ...(beaten.length ? [trace(beaten, 1, "beaten", "markers+text")] : [])];
  return [traces, { ...layout(360), xaxis: { ...axis(`${unit} per run`), rangemode: "tozero" }, yaxis: axis("win rate, %"), shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 50, y1: 50, line: { color: colour("muted"), width: 1, dash: "dot" } }], showlegend: beaten.length > 0, legend: { orientation: "h", y: 1.12 } }];
}

const order = { by: null, down: true };
function showFrontier() {
  if (redraws.frontier) return redraws.frontier();
  if (!data.runs.some((run) => run.is_compared)) return frontier.replaceChildren(h("h2", {}, "Quality and cost"), none("There is no finished run of a method yet: `afarm run` makes one."));
  const hour = slider("Price of the machine per hour", { least: 0, most: 40, step: 0.1, value: 0, write: dollars, kept: "machine hour", onchange: () => fill() });
  const holder = h("div", {});
  const fill = () => {
    const rows = methods(hour.value);
    const paid = rows.some((row) => row.dollars > 0);
    const cost = (row) => (paid ? row.dollars : row.seconds);
    const front = undominated(rows, cost);
    const isDrawn = rows.filter((row) => isNumber(row.rate)).length > 1; // a chart of one point says nothing
    if (!holder.children.length) holder.replaceChildren(h("p", { id: "answer" }), plotCard("frontier", "Win rate over cost"), h("div", { id: "methods" }));
    holder.querySelector("figure").hidden = !isDrawn;
    const [cheapest, highest] = [front[0], front.at(-1)];
    const said = (row) => `${row.name} (${decimal(row.rate, 1)} % for ${paid ? dollars(row.dollars) : duration(row.seconds)})`;
    holder.querySelector("#answer").replaceChildren(!isDrawn ? "" : cheapest === highest ? `${said(highest)} has the highest win rate, and none costs less.` : `${said(highest)} has the highest win rate; ${said(cheapest)} costs the least.`);
    holder.querySelector("#methods").replaceChildren(table({ caption: "Methods", rows: [...rows].sort((a, b) => (b.rate ?? -1) - (a.rate ?? -1)), sort: order, columns: [
      { title: "Method", value: (r) => r.name, cell: (r) => breakable(r.name) }, { title: "Runs", number: true, value: (r) => r.runs }, { title: "Win rate, %", number: true, value: (r) => r.rate, cell: (r) => [decimal(r.rate, 1), isNumber(r.error) ? h("span", { class: "error" }, ` ± ${decimal(r.error, 1)}`) : ""] },
      { title: "Time", number: true, value: (r) => r.seconds, cell: (r) => duration(r.seconds) }, { title: "Judges", number: true, value: (r) => r.judge, cell: (r) => dollars(r.judge) }, { title: "In all", number: true, value: (r) => r.dollars, cell: (r) => dollars(r.dollars) },
      { title: "Frontier", value: (r) => (front.includes(r) ? "yes" : "") },
    ] }));
    const left = data.runs.filter((run) => !run.is_compared).length;
    others.replaceChildren(left ? ` Left out: ${left} of other references or judges, or that compare files.` : "");
    from.replaceChildren(command([data.command, hour.value ? `--hour ${hour.value}` : ""].filter(Boolean).join(" ")));
    if (isDrawn) draw("frontier", frontierChart(rows, front, cost, paid ? "dollars" : "seconds"));
  };
  const [from, others] = [h("span", {}), h("span", {})];
  frontier.replaceChildren(h("section", { id: "frontier", "aria-labelledby": "frontier-title" }, h("div", { class: "section-head" }, h("h2", { id: "frontier-title" }, "Quality and cost"), from),
    h("p", { class: "muted" }, "What a run of each method costs if it shares nothing, and what it reaches: means over runs that differ in nothing but the seed. Settings are named if most runs of the method have others. Bars are 95% intervals, over seeds if there are several.", others), h("div", { class: "sliders short" }, hour.element), holder));
  fill();
  redraws.frontier = fill;
}

// -------------------------------------------------------------------------------------------------------- best of n

const CURVES = [["win_rate", "Win rate", "%"], ["gold", "Gold reward", ""], ["reward", "Reward model’s score", ""]];
const errorOf = (point, name) => ({ win_rate: point.standard_error, gold: point.gold_se })[name] ?? null;

function curveChart(points, name, unit, at) {
  const some = points.filter((point) => isNumber(point[name]));
  const shown = layout(260);
  return [[{ type: "scatter", mode: "lines+markers", x: some.map((p) => Math.log2(p.n)), y: some.map((p) => p[name]), customdata: some.map((p) => p.n), line: { color: colour("system"), width: 2 }, marker: { size: some.map((p) => (p.n === at.n ? 13 : 7)), color: colour("system") },
    error_y: { type: "data", array: some.map((p) => Z_95 * (errorOf(p, name) ?? 0)), color: colour("system"), thickness: 1.5, width: 4 }, hovertemplate: "best of %{customdata}: %{y:.4g}<extra></extra>" }],
    { ...shown, xaxis: { ...axis("n"), tickmode: "array", tickvals: some.map((p) => Math.log2(p.n)), ticktext: some.map((p) => String(p.n)) }, yaxis: axis(unit), shapes: [{ type: "line", x0: Math.log2(at.n), x1: Math.log2(at.n), yref: "paper", y0: 0, y1: 1, line: { color: colour("muted"), width: 1, dash: "dot" } }] }];
}

function showBest() {
  if (!data.curves.length) return best.replaceChildren(section("best-of-n", "Best of n", "afarm best-of-n", none("No curve is stored yet: `afarm best-of-n` makes one from a single run.")));
  let curve = data.curves[0];
  const holder = h("div", {});
  const open = () => {
    const { points } = curve;
    page.replaceChildren(curve.page ? h("a", { href: `${ROOT}document/${curve.page}`, target: "_blank", rel: "noopener" }, "Its page") : "");
    from.replaceChildren(command(curve.command));
    const place = slider("n", { least: 0, most: Math.max(1, points.length - 1), value: points.length - 1, write: (at) => `best of ${points[Math.min(at, points.length - 1)].n}`, onchange: () => fill() });
    const tiles = h("dl", { class: "tiles" });
    const shown = CURVES.filter(([name]) => points.some((point) => isNumber(point[name])));
    holder.replaceChildren(h("div", { class: "sliders short" }, place.element), tiles, h("div", { class: "charts" }, shown.map(([name, title]) => plotCard(`n-${name}`, `${title} by n`))));
    const fill = () => {
      const at = points[Math.min(place.value, points.length - 1)];
      const figure = (name, places) => [decimal(at[name], places), isNumber(errorOf(at, name)) ? h("span", { class: "error" }, ` ± ${decimal(errorOf(at, name), places)}`) : ""];
      tiles.replaceChildren(...shown.map(([name, title, unit]) => tile(title, [figure(name, name === "win_rate" ? 1 : 2), unit ? h("span", { class: "unit" }, ` ${unit}`) : ""])), tile("KL from the start, at most", [decimal(at.kl_bound), h("span", { class: "unit" }, " nats")]), ...(isNumber(at.avg_length) ? [tile("Mean characters", decimal(at.avg_length, 0))] : []));
      for (const [name, title, unit] of shown) draw(`n-${name}`, curveChart(points, name, [title.toLowerCase(), unit].filter(Boolean).join(", "), at));
    };
    fill();
    redraws.best = fill;
  };
  const choice = data.curves.length > 1 ? h("select", { "aria-label": "Curve", onchange: (event) => { curve = data.curves[event.target.selectedIndex]; open(); } }, data.curves.map((one) => h("option", {}, one.name))) : h("span", { class: "muted" }, curve.name);
  const [page, from] = [h("span", {}), h("div", {})];
  best.replaceChildren(section("best-of-n", "Best of n", "", h("div", { class: "toolbar" }, choice, page), from, holder));
  open();
}

// --------------------------------------------------------------------------------------------------------- a plan

const perLabel = (use) => ({ input: use.input_tokens / use.labels, output: use.output_tokens / use.labels });

function showPlan() {
  const bases = [...together(data.runs.filter((run) => run.labels.training?.input_tokens && run.labels.evaluation?.input_tokens), (run) => run.method).values()].flat();
  if (!bases.length) return plan.replaceChildren(section("plan", "The next experiment", "afarm cost", none("A plan is made from the tokens of a run whose labels were bought: there is none yet.")));
  planned = true;
  const read = (run) => perLabel(run.labels.training).input + perLabel(run.labels.evaluation).input;
  let base = bases.reduce((most, run) => (read(run) > read(most) ? run : most)); // that found the fewest answers in the ledger
  const out = h("div", {});
  const fill = () => calculate();
  const price = (label, most, kept) => slider(label, { least: 0.01, most, value: 1, log: true, write: dollars, kept, onchange: () => { judge.value = ""; fill(); } });
  const sliders = {
    pairs: slider("Training pairs", { least: 50, most: 200000, value: base.labels.training.labels, log: true, onchange: fill }),
    evaluation: slider("Evaluation instructions", { least: 50, most: 50000, value: base.labels.evaluation.labels, log: true, onchange: fill }),
    methods: slider("Methods that share the labels", { least: 1, most: 12, value: 1, onchange: fill }),
    seeds: slider("Seeds", { least: 1, most: 20, value: 1, onchange: fill }),
    input: price("Judge: price per million tokens read", 200, "price read"),
    output: price("Judge: price per million tokens written", 1000, "price written"),
    budget: slider("Budget", { least: 0.1, most: 100000, value: 20, log: true, write: dollars, kept: "budget", onchange: fill }),
  };
  const persons = people(fill);
  const judge = h("input", { type: "search", list: "judges", id: "judge", placeholder: "openai:… or anthropic:…", "aria-label": "Judge", autocomplete: "off", oninput: () => {
    const found = data.prices.find((row) => row.judge === judge.value.trim());
    if (!found) return;
    sliders.input.set(found.input);
    sliders.output.set(found.output);
    fill();
  } });
  const calculate = () => {
    const { pairs, evaluation, methods: many, seeds, input, output, budget } = Object.fromEntries(Object.entries(sliders).map(([name, one]) => [name, one.value]));
    const [train, test] = [perLabel(base.labels.training), perLabel(base.labels.evaluation)];
    const each = (use) => (use.input * input + use.output * output) / 1e6;
    const [labels, judged] = [seeds * pairs, seeds * many * evaluation];
    const [forLabels, forTests] = [labels * each(train), judged * each(test)];
    const total = forLabels + forTests;
    const pays = each(train) > 0 ? Math.max(0, (budget - forTests) / (seeds * each(train))) : Infinity;
    const found = isNumber(base.deviation) ? (Z_95 + Z_POWER) * base.deviation / Math.sqrt(evaluation) : null;
    const [hours, paid] = [(labels + judged) * persons[0].value / 3600, (labels + judged) * persons[1].value];
    out.replaceChildren(
      h("div", { class: `card plan-card${total > budget ? " over" : ""}` }, h("p", { class: "label" }, `${judge.value.trim() || "A judge"} at ${dollars(input)} per million tokens read and ${dollars(output)} written would cost about`), h("p", { class: "figure middling" }, dollars(Number(total.toPrecision(3)))),
        h("div", { class: "track", role: "progressbar", "aria-label": "Share of the budget", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.min(100, Math.round(100 * total / budget)) }, h("div", { class: "fill", style: `width: ${Math.min(100, 100 * total / budget).toFixed(1)}%` })),
        h("p", { class: "reading" }, total > budget ? `Over the budget of ${dollars(budget)} by ${dollars(Number((total - budget).toPrecision(3)))}. ` : `${decimal(100 * total / budget, 0)} % of the budget of ${dollars(budget)}. `, pays >= 1 ? `It pays for ${Number.isFinite(pays) ? count(Number(pays.toPrecision(3))) : "any number of"} training pairs per seed.` : "It does not pay for the evaluation alone.")),
      h("dl", { class: "tiles" }, tile("Training labels", dollars(Number(forLabels.toPrecision(3))), `${count(labels)} at ${decimal(train.input, 0)} tokens read, ${decimal(train.output, 1)} written`), tile("Evaluation", dollars(Number(forTests.toPrecision(3))), `${count(judged)} at ${decimal(test.input, 0)} read, ${decimal(test.output, 1)} written`),
        tile("Smallest difference that shows", isNumber(found) ? [decimal(found, 1), h("span", { class: "unit" }, " points")] : UNKNOWN, "from even, four times in five, one seed"), tile("By people instead", dollars(Number(paid.toPrecision(3))), `${count(labels + judged)} labels, ${hours < 10 ? decimal(hours, 1) : count(hours)} hours`)));
    const name = judge.value.trim();
    const shared = [base.places, `--set rows.preference=${pairs}`, `--set rows.evaluation=${evaluation}`, name ? `--judge ${quoted(name)}` : "", base.recipe ? `--recipe ${quoted(base.recipe)}` : "", base.annotator ? `--annotator ${quoted(base.annotator)}` : "", `--budget ${budget}`].filter(Boolean).join(" ");
    const alone = many === 1 && seeds === 1;
    const numbers = Array.from({ length: seeds }, (_, i) => (base.seed ?? 1) + i).join(",");
    commands.replaceChildren(command(alone ? `afarm cost --method ${quoted(base.method)} ${shared}` : `afarm compare --dry-run --methods ${[...new Set(bases.map((run) => run.method))].slice(0, many).map(quoted).join(",")}${many > new Set(bases.map((run) => run.method)).size ? ",…" : ""} --seeds ${numbers} ${shared}`, "command: the exact estimate"));
  };
  const commands = h("span", {});
  const choose = h("select", { "aria-label": "Run whose tokens per label are taken", onchange: (event) => { base = bases[event.target.selectedIndex]; fill(); } }, grouped(bases, (run) => run.method, (run) => h("option", { selected: run === base }, run.name)));
  plan.replaceChildren(h("section", { id: "plan", "aria-labelledby": "plan-title" }, h("div", { class: "section-head" }, h("h2", { id: "plan-title" }, "The next experiment"), commands),
    h("p", { class: "muted" }, "An estimate from the tokens per label of a stored run, times a price. A run that found answers in the ledger took fewer tokens. What judges answered before, they are not paid for again: the command knows."),
    h("div", { class: "plan" }, h("div", { class: "card sliders" }, h("div", { class: "slider" }, h("span", { class: "slider-name" }, "Tokens per label as in"), choose), h("div", { class: "slider" }, h("span", { class: "slider-name" }, "Judge, for its list price"), judge, h("datalist", { id: "judges" }, data.prices.map((row) => h("option", { value: row.judge })))), Object.values(sliders).map((one) => one.element), persons.map((one) => one.element)), h("div", { class: "plan-out", "aria-live": "polite" }, out))));
  calculate();
}

function take(now) {
  data = now;
  showFrontier();
  const curves = JSON.stringify(data.curves);
  if (curves !== drawnCurves) showBest();
  drawnCurves = curves;
  if (!planned) showPlan();
}

follow("data/costs.json", take, 20);
window.matchMedia("(prefers-color-scheme: dark)").onchange = () => Object.values(redraws).forEach((redraw) => redraw());
