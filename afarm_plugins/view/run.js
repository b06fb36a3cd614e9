// One run: what came of it, or what it is at.
let drawn = "";
const opened = { settings: false, more: false, evaluators: false, versions: false };
let sureUntil = 0; // the second press on Stop must come before

const stageTime = (stage, now) => (stage.status === "working" && isNumber(stage.began) ? now - stage.began : stage.seconds);

function heading(run) {
  const facts = [["judged by", run.judged_by || run.judge], ["method", run.method], ["against", run.reference], ["recipe", run.recipe], ["annotator", run.annotator], ["seed", run.seed], ["begun", moment(run.created)], ["time of its stages", duration(run.seconds)]];
  return h("header", { class: "run-head" }, h("p", { class: "eyebrow" }, link("index.html", "Runs")),
    h("h1", {}, run.name, " ", statusChip(run.status)),
    h("dl", { class: "facts" }, facts.filter(([, value]) => ![null, "", UNKNOWN].includes(value)).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    h("p", { class: "links" }, run.outputs ? link(outputsOf(run.id), "All outputs and votes →") : "", run.report ? h("a", { href: ROOT + (STATIC ? documentOf(run.report) : `report/${encodeURIComponent(run.id)}.html`), target: "_blank", rel: "noopener" }, "Its report") : "", link("artifacts.html", "Artifacts"), link("ledger.html", "Ledger")));
}

function meter(label, done, total, text) {
  const share = total ? Math.min(1, done / total) : 0;
  return h("div", { class: "meter" }, h("div", { class: "meter-head" }, h("span", {}, label), h("span", { class: "muted" }, text)),
    h("div", { class: "track", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share) }, h("div", { class: "fill", style: `width: ${(100 * share).toFixed(1)}%` })));
}

function live(run) {
  if (!run.live) return "";
  const done = run.stages.filter((stage) => ["made", "reused"].includes(stage.status)).length;
  const working = run.stages.find((stage) => stage.status === "working");
  const { spend } = run.live;
  const place = working ? `stage ${Math.min(done + 1, run.stages.length)} of ${run.stages.length}: ${working.stage}` : `${done} of ${run.stages.length} stages`;
  const committed = run.live.committed ?? spend.dollars ?? 0;
  const budget = isNumber(run.live.budget) ? meter("Spend against the budget", committed, run.live.budget, `${dollars(committed)} of ${dollars(run.live.budget)}, reservations included`) : "";
  const left = (loop) => (isNumber(loop.seconds_left) ? `, ${duration(loop.seconds_left)} left` : "");
  const loops = run.live.loops.map((loop) => meter(loop.description, loop.done, loop.total, isNumber(loop.total) ? `${count(loop.done)} of ${count(loop.total)}${left(loop)}` : count(loop.done)));
  const waits = run.live.waits.length ? h("ul", { class: "waits" }, run.live.waits.map((text) => h("li", {}, text))) : "";
  const token = document.documentElement.dataset.token;
  const stop = run.status === "running" && token ? h("button", { type: "button", class: "stop", id: "stop", onclick: () => ask(run) }, Date.now() < sureUntil ? SURE : "Stop it") : "";
  return h("section", { id: "live", class: `card live-card ${run.status}`, "aria-label": "What it is at" },
    h("div", { class: "section-head" }, h("h2", {}, run.status === "running" ? "At work" : { failed: "Failed", unreadable: "No record" }[run.status] ?? "Stopped"), stop),
    run.problem ? h("p", { class: "warn" }, run.problem) : "",
    meter("Stages", done, run.stages.length, place), loops, budget,
    h("dl", { class: "tiles small-tiles" }, tile("Spend this time", dollars(spend.dollars ?? 0), spend.unpriced_calls ? `${count(spend.unpriced_calls)} calls of unknown price` : ""), tile("Calls", count(spend.calls ?? 0), spend.answers_reused ? `${count(spend.answers_reused)} answers reused` : ""),
      run.status === "running" ? tile("Calls per second", decimal(run.live.calls_per_second ?? 0, 1)) : "", tile("Refused for now (429)", count(run.live.refusals ?? 0))),
    waits ? [h("h3", {}, "What it waits for"), waits] : "");
}

const SURE = "Stop it? Press again";
async function ask(run) {
  const button = () => document.getElementById("stop") ?? {};
  if (Date.now() > sureUntil) {
    sureUntil = Date.now() + 4000;
    button().textContent = SURE;
    setTimeout(() => { button().textContent = "Stop it"; }, 4000);
    return;
  }
  const answer = await fetch(`${ROOT}stop/${encodeURIComponent(run.id)}`, { method: "POST", headers: { "x-afarm-token": document.documentElement.dataset.token } });
  const said = await answer.json();
  pulse.textContent = said.done ?? said.problem;
}

function result(run) {
  const head = run.headline;
  if (!run.win_rates.length && !isNumber(head.win_rate) && !isNumber(head.reward)) return "";
  const change = (before, after, places) => [isNumber(before) ? h("span", { class: "before" }, `${decimal(before, places)} → `) : "", decimal(after, places)];
  const tiles = [
    isNumber(head.win_rate) && tile(`Win rate against ${head.reference}`, [decimal(head.win_rate, 1), h("span", { class: "unit" }, " %"), isNumber(head.standard_error) ? h("span", { class: "error" }, ` ± ${decimal(head.standard_error, 1)}`) : ""], isNumber(head.low) ? `95% interval ${decimal(head.low, 1)} to ${decimal(head.high, 1)}` : "", head.undetectable),
    isNumber(head.gold) && tile("Gold reward, per output", change(head.gold_reference, head.gold), isNumber(head.gold_difference) ? `difference ${decimal(head.gold_difference)} ± ${decimal(head.gold_difference_se)}` : ""),
    isNumber(head.reward) && tile("Reward-model score", change(head.reward_reference, head.reward)),
    isNumber(head.kl) && tile("KL from the start", [decimal(head.kl), h("span", { class: "unit" }, " nats")]),
    isNumber(head.length) && tile("Mean characters", change(head.length_reference, head.length, 0)),
    isNumber(run.dollars) && tile("Spend", dollars(run.dollars), [`${count(run.calls)} calls, `, h("a", { href: "#stages" }, "by stage")]),
  ];
  // The pairs behind a count of the main evaluation, whose outputs are stored.
  const pairs = (verdict, many) => (rate) => (rate === run.win_rates[0] && run.outputs && many(rate) ? link(`${outputsOf(run.id)}?verdict=${verdict}`, count(many(rate))) : count(many(rate)));
  const counts = [["Won", "win", (r) => r.n_wins], ["Lost", "loss", (r) => r.n_wins_base], ["Draws", "draw", (r) => r.n_draws], ["No answer", "none", (r) => r.unanswered]];
  return section("result", "Result", run.commands.result, h("dl", { class: "tiles" }, tiles.filter(Boolean)),
    [...run.flags, ...run.notes, ...run.training].length ? h("aside", { class: "banner" }, h("ul", {}, [...run.flags, ...run.notes, ...run.training].map((text) => h("li", {}, text)))) : "",
    run.win_rates.length ? table({ caption: "Win rates", rows: run.win_rates, columns: [
      { title: "System", value: (r) => r.system }, { title: "Against", value: (r) => r.reference },
      { title: "Win rate, %", number: true, value: (r) => r.win_rate, cell: (r) => decimal(r.win_rate, 1) }, { title: "± s.e.", number: true, value: (r) => r.standard_error, cell: (r) => decimal(r.standard_error, 1) },
      ...counts.map(([title, verdict, many]) => ({ title, number: true, value: many, cell: pairs(verdict, many) })),
    ] }) : "",
    run.other_results.length ? h("details", { open: opened.evaluators, ontoggle: (event) => { opened.evaluators = event.target.open; } }, h("summary", {}, "Every evaluator’s figures"), h("div", { class: "tables" }, run.other_results.map((other) => table({ caption: `${other.evaluator} ${other.system}`, rows: other.rows.map(([name, values]) => ({ name, values })), columns: [{ title: other.evaluator, value: (r) => r.name }, ...other.comparisons.map((title, place) => ({ title, number: true, value: (r) => r.values[place], cell: (r) => compact(r.values[place]) }))] })))) : "");
}

// Who labels in the diagram: the judges that did, or people at the reader's hours and price.
const JUDGED = ["annotate", "evaluate"];
let labelled = "simulated";
const [pace, wage] = people(() => redrawn?.());
let redrawn = null;
const byPeople = (stage) => labelled === "human" && JUDGED.includes(stage.kind) && isNumber(stage.rows);

function labellers(run) {
  const judged = run.stages.filter((stage) => JUDGED.includes(stage.kind) && isNumber(stage.rows));
  if (!run.diagrams.length || !judged.length) return "";
  const many = judged.reduce((sum, stage) => sum + stage.rows, 0);
  const paid = judged.reduce((sum, stage) => sum + (stage.spend.dollars ?? 0), 0);
  const took = judged.reduce((sum, stage) => sum + (stage.seconds ?? 0), 0);
  const drawing = h("div", {}, diagram(run));
  const told = h("p", { class: "reading", id: "labelled" });
  const dials = h("div", { class: "sliders short" }, pace.element, wage.element);
  const tell = () => {
    dials.hidden = labelled !== "human";
    told.textContent = labelled === "human" ? `${count(many)} labels: ${duration(many * pace.value)} of people’s time and ${dollars(many * wage.value)}, instead of ${duration(took)} and ${dollars(paid)}.` : `${count(many)} labels, simulated: ${duration(took)} and ${dollars(paid)}.`;
  };
  redrawn = () => { tell(); drawing.replaceChildren(...diagram(run)); };
  tell();
  const choice = options("Labels", "labelled", [["simulated", "simulated"], ["human", "human"]], labelled, (value) => { labelled = value; redrawn(); });
  return h("div", { class: "labellers" }, choice, dials, drawing, told);
}

function diagram(run) {
  return run.diagrams.map((one) => {
    const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
    return h("div", { class: "diagram" }, h("svg", { viewBox: `0 0 ${one.width} ${one.height}`, style: `--width: ${one.width}px`, role: "img", "aria-label": `Diagram of the ${run.stages.length} stages; the table below has the same facts` },
      h("svg:defs", {}, h("svg:marker", { id: "tip", viewBox: "0 0 8 8", refX: 1, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, h("svg:path", { d: "M0 0L8 4L0 8z" }))),
      one.arrows.map((d) => h("svg:path", { class: "arrow", d, "marker-end": "url(#tip)" })),
      one.boxes.map((box, place) => {
        const stage = run.stages[place];
        const paid = stage.spend.calls ? `${dollars(stage.spend.dollars)}, ${count(stage.spend.calls)} calls` : isNumber(stage.rows) ? `${count(stage.rows)} rows` : "";
        const human = [box.subject || "by people", duration((stage.rows ?? 0) * pace.value), `${dollars((stage.rows ?? 0) * wage.value)}, ${count(stage.rows)}`];
        const lines = byPeople(stage) ? human : [box.subject, stage.status === "reused" ? `reused (${duration(stage.seconds)})` : duration(stageTime(stage, Date.now() / 1000)), paid].filter(Boolean);
        return h("svg:g", { class: byPeople(stage) ? "people" : stage.status, transform: `translate(${box.x} ${box.y})` }, h("svg:title", {}, stage.stage), h("svg:rect", { width: one.box[0], height: one.box[1], rx: 10 }),
          h("svg:text", { class: "name", x: 11, y: 25 }, cut(box.kind, 17)), lines.map((text, i) => h("svg:text", { x: 11, y: 43 + 18 * i }, cut(text, 20))));
      })));
  });
}

function stages(run) {
  const now = Date.now() / 1000;
  const most = Math.max(...run.stages.filter((s) => s.status === "made").map((s) => s.seconds ?? 0), 0.001);
  const bar = (stage) => h("span", { class: "bar-cell", style: `--share: ${stage.status === "made" ? (100 * (stage.seconds ?? 0) / most).toFixed(1) : 0}%` }, duration(stageTime(stage, now)));
  return section("stages", "Stages", run.commands.stages, labellers(run) || diagram(run), table({ caption: "Stages", rows: run.stages, columns: [
    { title: "Stage", value: (s) => s.stage },
    { title: "Outcome", value: (s) => s.status, cell: (s) => h("span", { class: `chip ${{ made: "good", working: "live" }[s.status] ?? "quiet"}` }, s.status) },
    { title: "Time", number: true, value: (s) => stageTime(s, now), cell: bar },
    { title: "Cost", number: true, value: (s) => s.spend.dollars, cell: (s) => (s.spend.calls ? dollars(s.spend.dollars) : UNKNOWN) },
    { title: "Calls", number: true, value: (s) => s.spend.calls, cell: (s) => (s.spend.calls ? count(s.spend.calls) : UNKNOWN) },
    { title: "Rows", number: true, value: (s) => s.rows, cell: (s) => count(s.rows) },
    { title: "Made from", value: (s) => s.inputs.join(", "), cell: (s) => s.inputs.join(", ") || UNKNOWN },
    { title: "Artifact", value: (s) => s.key, cell: (s) => (s.key ? h("code", { title: s.artifact }, s.key.slice(0, 12)) : UNKNOWN) },
    { title: "Why it was made", value: (s) => s.why, cell: (s) => s.why || UNKNOWN },
  ] }));
}

const plotOf = (id, chart) => h("figure", { class: "card chart" }, h("figcaption", {}, chart.title, chart.stage ? h("span", { class: "by" }, ` ${chart.stage}`) : ""), h("div", { class: "plot", id: `chart-${id}`, role: "img", "aria-label": `Chart: ${chart.title}` }));

function curves(run) {
  const { main: first, others, held_out: heldOut } = run.charts;
  if (![first, others, heldOut].some((charts) => charts.length) && !run.over_n) return run.status === "running" ? section("curves", "Curves", "", none("Nothing is logged yet.")) : "";
  return section("curves", "Curves", run.commands.result, h("div", { class: "charts" }, first.map((chart, i) => plotOf(`main-${i}`, chart))),
    run.over_n ? h("div", { class: "section-head", id: "over-n" }, h("p", { class: "muted" }, "A run evaluates its own n alone. Win rate and gold over n are measured from one run of the largest n, and are on ", link("costs.html#best-of-n", "Costs and plans"), " then."), command(run.over_n)) : "",
    others.length ? h("details", { open: opened.more, id: "more", ontoggle: (event) => { opened.more = event.target.open; if (opened.more) draw(run); } }, h("summary", {}, `${others.length} more logged curves`), h("div", { class: "charts" }, others.map((chart, i) => plotOf(`others-${i}`, chart)))) : "",
    heldOut.length ? [h("h3", {}, "The reward model on held-out pairs"), h("p", { class: "muted" }, run.held_out.map(([name, value]) => `${name} ${compact(value)}`).join(", ")), h("div", { class: "charts" }, heldOut.map((chart, i) => plotOf(`held-out-${i}`, chart)))] : "");
}

async function draw(run) {
  if (!document.querySelector("#curves .plot")) return;
  if (!(await loadPlotly())) {
    for (const plot of document.querySelectorAll(".plot:empty")) plot.replaceChildren(none("Charts need plotly: pip install 'afarm[view]'"));
    return;
  }
  const all = [...run.charts.main.map((chart, i) => [`main-${i}`, chart]), ...run.charts.held_out.map((chart, i) => [`held-out-${i}`, chart]), ...(opened.more ? run.charts.others.map((chart, i) => [`others-${i}`, chart]) : [])];
  for (const [id, chart] of all) if (document.getElementById(`chart-${id}`)) show(id, KINDS[chart.kind](chart));
}

function labels(run) {
  const { annotators } = run;
  if (!annotators.rows.length) return "";
  return section("labels", "Who labelled", run.commands.ledger, table({ caption: "Labels by annotator", rows: annotators.rows, columns: [
    { title: "Annotator", value: (r) => r.name, cell: (r) => [r.name, r.meaning ? h("span", { class: "meaning" }, r.meaning) : ""] },
    ...annotators.uses.flatMap((use, i) => [{ title: use, number: true, value: (r) => r.uses[i].count, cell: (r) => count(r.uses[i].count) }, { title: `share of ${use}`, number: true, value: (r) => r.uses[i].share, cell: (r) => `${decimal(100 * r.uses[i].share, 1)} %` }]),
  ] }));
}

function settings(run) {
  const pairs = (rows) => h("table", { class: "settings" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), h("td", {}, h("code", {}, String(value ?? UNKNOWN)))))));
  return section("repeat", "Repeat it", "", run.part_of ? h("p", { class: "muted" }, `This is one run of a ${run.part_of}: the command makes all of them, and none that is there already.`) : "", run.command ? h("pre", { class: "command" }, h("code", {}, run.command)) : "",
    h("details", { open: opened.settings, ontoggle: (event) => { opened.settings = event.target.open; } }, h("summary", {}, `All ${run.config.length} settings, as resolved`), h("div", { class: "scroll" }, pairs(run.config))),
    Object.keys(run.machine).length ? h("details", { open: opened.versions, ontoggle: (event) => { opened.versions = event.target.open; } }, h("summary", {}, "Versions and machine"), h("div", { class: "scroll" }, pairs([...Object.entries(run.versions), ...Object.entries(run.machine)]))) : "");
}

function log(run) {
  if (!run.log.length) return "";
  const at = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
  return h("details", { open: run.status !== "finished", id: "log" }, h("summary", {}, "Log"), h("ol", { class: "log", tabindex: "0", "aria-label": "Log" }, run.log.map(([time, text]) => h("li", {}, h("time", {}, isNumber(time) ? at(time) : ""), ` ${text}`))));
}

follow(`data/run/${encodeURIComponent(RUN)}.json`, (run) => {
  document.title = `${run.name} · afarm view`;
  // Charts are kept as they stand if nothing but the time has changed: they would flicker.
  const kept = JSON.stringify(run.charts) === drawn ? document.getElementById("curves") : null;
  drawn = JSON.stringify(run.charts);
  const top = scrollY;
  redraw(main, ...[heading(run), live(run), result(run), kept ?? curves(run), run.stages.length ? stages(run) : run.problem ? problem(run.problem) : "", log(run), labels(run), settings(run)].filter(Boolean));
  scrollTo(0, top);
  const ends = main.querySelector(".log");
  if (ends) ends.scrollTop = ends.scrollHeight;
  if (!kept) draw(run);
  window.matchMedia("(prefers-color-scheme: dark)").onchange = () => draw(run);
}, 1.5);
