// The table of runs: filtered, sorted, and compared.
const wanted = new URLSearchParams(location.search);
const state = { words: wanted.get("q") ?? "", status: wanted.get("status") ?? "", sort: { by: wanted.get("by"), down: wanted.get("up") === null } };
const selected = new Set();
const unfolded = new Set(); // the runs whose long errors are open
let data = { runs: [], output_dirs: [] };

function remember() {
  const now = new URLSearchParams();
  if (state.words) now.set("q", state.words);
  if (state.status) now.set("status", state.status);
  if (state.sort.by) now.set("by", state.sort.by);
  if (!state.sort.down) now.set("up", "1");
  history.replaceState(null, "", now.size ? `?${now}` : location.pathname);
}

function fits(run) {
  const text = [run.name, run.method, run.recipe, run.judge, run.annotator, `seed ${run.seed}`, run.status, run.output_dir, ...run.settings].join(" ").toLowerCase();
  return (!state.status || run.status === state.status) && state.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function interval(run) {
  if (!isNumber(run.win_rate)) return "";
  const half = Z_95 * (run.standard_error ?? 0);
  const at = (value) => 2 + 0.96 * Math.min(100, Math.max(0, value));
  return h("svg", { class: "stretch", viewBox: "0 0 100 16", role: "img", "aria-label": `95% interval ${decimal(run.win_rate - half, 1)} to ${decimal(run.win_rate + half, 1)}` },
    h("svg:line", { class: "axis", x1: 2, x2: 98, y1: 8, y2: 8 }), h("svg:line", { class: "even", x1: 50, x2: 50, y1: 1, y2: 15 }),
    h("svg:line", { class: "range", x1: at(run.win_rate - half), x2: at(run.win_rate + half), y1: 8, y2: 8 }),
    h("svg:circle", { cx: at(run.win_rate), cy: 8, r: 4 }));
}

const MOST_SETTINGS = 4;
function name(run) {
  const place = h("span", { class: "meaning" }, run.status === "running" && run.stage ? run.stage : moment(run.created));
  const wrong = run.problem.length > 70
    ? h("details", { class: "meaning warn", open: unfolded.has(run.id), ontoggle: (event) => unfolded[event.target.open ? "add" : "delete"](run.id) }, h("summary", {}, `${run.problem.slice(0, 50)}…`), run.problem)
    : run.problem ? h("span", { class: "meaning warn" }, run.problem) : "";
  const settings = run.settings.length ? h("span", { class: "meaning", title: "what most runs of this method have otherwise" }, breakable(run.settings.slice(0, MOST_SETTINGS).join(", ")), run.settings.length > MOST_SETTINGS ? h("span", { title: run.settings.join(", ") }, ` and ${run.settings.length - MOST_SETTINGS} more`) : "") : "";
  const elsewhere = data.runs.some((other) => other.name === run.name && other.id !== run.id) ? h("span", { class: "meaning" }, run.output_dir) : "";
  return [link(runOf(run.id), run.name), settings, elsewhere, place, wrong];
}

function select(run) {
  return h("input", { type: "checkbox", checked: selected.has(run.id), "aria-label": `Select ${run.name}`, onchange: (event) => {
    if (event.target.checked) selected.add(run.id); else selected.delete(run.id);
    event.target.closest("tr").classList.toggle("selected", event.target.checked);
    showChosen();
  } });
}

const short = (judge) => judge.replace(/@.*$/, "");
const COLUMNS = [
  { title: "", box: true, class: "select", cell: select },
  { title: "Run", value: (run) => run.name, cell: name, class: "name" },
  { title: "Win rate, %", number: true, value: (run) => run.win_rate, hint: "against the reference, ± one standard error; the line is the 95% interval, with even in its middle",
    cell: (run) => isNumber(run.win_rate) ? h("span", { class: "rate" }, h("span", {}, h("strong", {}, decimal(run.win_rate, 1)), isNumber(run.standard_error) ? h("span", { class: "error" }, ` ± ${decimal(run.standard_error, 1)}`) : ""), interval(run), run.flags.length ? h("span", { class: "meaning warn", title: run.flags.join("\n") }, run.flags.length === 1 ? "1 flag" : `${run.flags.length} flags`) : "") : UNKNOWN },
  { title: "Status", value: (run) => run.status, cell: (run) => statusChip(run.status) },
  { title: "Method", value: (run) => run.method, cell: (run) => breakable(run.method) },
  { title: "Recipe", value: (run) => run.recipe },
  { title: "Judge", class: "judge", value: (run) => run.judge, cell: (run) => h("span", { title: run.judge, class: run.simulated ? "muted" : null }, breakable(short(run.judge) || UNKNOWN), run.simulated ? h("span", { class: "meaning" }, "simulated") : "") },
  { title: "Seed", number: true, value: (run) => run.seed, cell: (run) => run.seed ?? UNKNOWN },
  { title: "Gold", number: true, value: (run) => run.gold, cell: (run) => decimal(run.gold), hint: "true reward of the toy world, per output" },
  { title: "Reward", number: true, value: (run) => run.reward, cell: (run) => decimal(run.reward), hint: "the reward model's mean score" },
  { title: "KL", number: true, value: (run) => run.kl, cell: (run) => decimal(run.kl), hint: "nats per response from the starting policy" },
  { title: "Length", number: true, value: (run) => run.length, cell: (run) => decimal(run.length, 0), hint: "mean characters of an output" },
  { title: "Spend", number: true, value: (run) => run.dollars, cell: (run) => dollars(run.dollars), hint: "what judges cost to make all stages" },
  { title: "Time", hint: "of all its stages, of reused ones when they were made: what the run takes if it shares nothing", number: true, value: (run) => run.seconds, cell: (run) => duration(run.seconds) },
];

const chosen = h("div", { class: "chosen-bar", role: "status" });
function showChosen() {
  for (const id of [...selected]) if (!data.runs.some((run) => run.id === id)) selected.delete(id);
  const address = `compare.html?${[...selected].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`;
  const many = selected.size > 8 ? "at most 8 at once" : selected.size === 1 ? "select another to compare" : "";
  chosen.replaceChildren(...(selected.size ? [h("span", {}, `${selected.size} selected`), many ? h("span", { class: "muted" }, many) : h("a", { class: "button", href: ROOT + address, id: "compare" }, "Compare"),
    h("button", { type: "button", class: "quiet-button", onclick: () => { selected.clear(); showTable(); showChosen(); } }, "Clear")] : []));
  chosen.hidden = !selected.size;
}

const holder = h("div", { class: "runs-table" });
const shown = h("output", { class: "muted", id: "shown", "aria-live": "polite" });
function showTable() {
  const rows = data.runs.filter(fits);
  const several = new Set(data.runs.map((run) => run.recipe)).size > 1;
  const columns = COLUMNS.filter((column) => column.title === "Recipe" ? several : !["Gold", "Reward", "KL"].includes(column.title) || data.runs.some((run) => isNumber(column.value(run))));
  shown.textContent = rows.length === data.runs.length ? `${rows.length} ${rows.length === 1 ? "run" : "runs"}` : `${rows.length} of ${data.runs.length} runs`;
  const focused = document.activeElement?.getAttribute?.("aria-label");
  const left = holder.querySelector(".scroll")?.scrollLeft ?? 0;
  holder.replaceChildren(rows.length ? table({ columns, rows, caption: "Runs", sort: state.sort, onsort: remember, rowClass: (run) => (selected.has(run.id) ? "selected" : run.status === "running" ? "running" : "") })
    : none(data.runs.length ? "No run fits the filter." : "There is no run here yet: `afarm run` makes one, and it is followed here as it goes."));
  if (left) holder.querySelector(".scroll").scrollLeft = left;
  if (focused) holder.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

const words = h("input", { type: "search", id: "words", value: state.words, placeholder: "Filter: ppo seed 42 …", "aria-label": "Filter runs", oninput: () => { state.words = words.value; remember(); showTable(); } });
const facts = h("p", { class: "muted places" });
const bar = h("div", { class: "toolbar" });
main.replaceChildren(h("div", { class: "section-head" }, h("h1", {}, "Runs"), h("span", { id: "made-by" })), facts, bar, holder, chosen);
keys({ "/": (event) => { event.preventDefault(); words.focus(); }, Escape: () => words.blur() });

follow("data/runs.json", (now) => {
  data = now;
  const statuses = [...new Set(data.runs.map((run) => run.status))];
  if (state.status && !statuses.includes(state.status)) statuses.push(state.status);
  const counted = (status) => data.runs.filter((run) => run.status === status).length;
  const filter = statuses.length > 1 ? options("Status", "status", [["", "all"], ...statuses.map((status) => [status, `${status} ${counted(status)}`])], state.status, (value) => { state.status = value; remember(); showTable(); }) : "";
  if (!bar.contains(words)) bar.append(words);
  bar.querySelector("fieldset")?.remove();
  shown.remove();
  bar.append(...[filter, shown].filter(Boolean));
  facts.replaceChildren(...data.output_dirs.flatMap((place) => [h("code", {}, place.path), place.closed ? h("span", { class: "warn" }, " (may not be read: its rights deny it) ") : place.there ? " " : " (not there yet) "]));
  if (!document.getElementById("made-by").children.length) document.getElementById("made-by").append(command(data.command));
  showTable();
  showChosen();
});
