// Every judged pair of a run: a list that draws only the rows in sight, and all about the one that is chosen.
const PAGE_ROWS = 100;
const ROW = 64; // pixels, as in the style sheet
const PAUSE = 30; // milliseconds that a search waits for the next letter: answers to fewer letters are dropped
const TALLEST = 8_000_000; // pixels that browsers let an element have, with room to spare
const FILTERS = ["q", "verdict", "member", "family", "longer_from", "longer_to", "kind", "flips", "order", "ascending"];
const NAMES = { win: "won", loss: "lost", draw: "draw", none: "no answer" };

const given = new URLSearchParams(location.search);
const query = Object.fromEntries(FILTERS.map((name) => [name, given.get(name) ?? ""]));
let pages = new Map(); // number of the page of rows → its rows, or the promise of them
let total = 0;
let facts = null;
let chosen = given.get("pair") === null ? null : Number(given.get("pair")); // its number in the file
let place = 0; // of the chosen one in the list
let turn = 0; // which query answers belong to
let showDiff = true;

const address = () => new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));

function remember() {
  const now = address();
  if (chosen !== null) now.set("pair", chosen);
  history.replaceState(null, "", now.size ? `?${now}` : location.pathname);
}

// ------------------------------------------------------------------------------------------------------- the source

async function rowsFrom(start) {
  if (STATIC) return staticRows(query, start, PAGE_ROWS);
  const wanted = address();
  wanted.set("from", start);
  wanted.set("count", PAGE_ROWS);
  return get(`data/outputs/${encodeURIComponent(RUN)}.json?${wanted}`);
}

async function pairOf(number) {
  if (STATIC) return (await chunk(Math.floor(number / columns.chunk)))[number % columns.chunk];
  return get(`data/pair/${encodeURIComponent(RUN)}/${number}.json`);
}

// Of exported pages: the columns of all rows, and files of some hundred pairs each.
let columns = null;
const chunks = new Map();
async function chunk(number) {
  if (!chunks.has(number)) chunks.set(number, get(`data/pairs/${encodeURIComponent(RUN)}/${number}.json`));
  return chunks.get(number);
}

async function staticRows(wanted, start, many) {
  columns ??= await get(`data/outputs/${encodeURIComponent(RUN)}.json`);
  const { rows } = columns;
  let kept = rows;
  const terms = [...wanted.q.toLowerCase().matchAll(/"([^"]+)"|(\S+)/g)].map((found) => found[1] ?? found[2]);
  if (terms.length) {
    const all = (await Promise.all([...Array(Math.ceil(rows.length / columns.chunk)).keys()].map(chunk))).flat();
    const texts = (pair) => ["instruction", "input", "output_1", "output_2"].map((name) => pair[name].text.toLowerCase()).join("\n");
    kept = kept.filter((row) => { const text = texts(all[row.number]); return terms.every((term) => text.includes(term)); });
  }
  if (wanted.member) kept = kept.filter((row) => row.member === wanted.member);
  if (wanted.family) kept = kept.filter((row) => row.family === wanted.family);
  if (wanted.longer_from !== "") kept = kept.filter((row) => row.longer >= Number(wanted.longer_from));
  if (wanted.longer_to !== "") kept = kept.filter((row) => row.longer <= Number(wanted.longer_to));
  if (wanted.kind) kept = kept.filter((row) => row[wanted.kind]);
  const counts = Object.fromEntries(Object.keys(NAMES).map((verdict) => [verdict, kept.filter((row) => row.verdict === verdict).length]));
  if (wanted.verdict) kept = kept.filter((row) => row.verdict === wanted.verdict);
  if (wanted.order) {
    const known = kept.filter((row) => row[wanted.order] !== null);
    known.sort((a, b) => (wanted.ascending ? 1 : -1) * (a[wanted.order] - b[wanted.order]));
    kept = [...known, ...kept.filter((row) => row[wanted.order] === null)];
  }
  return { ready: true, rows: kept.slice(start, start + many), total: kept.length, of: rows.length, counts, choices: columns.choices, commands: columns.commands, skipped: 0, problem: "" };
}

// ---------------------------------------------------------------------------------------------------------- the list

const list = h("div", { class: "virtual", tabindex: "0", role: "listbox", "aria-label": "Pairs", id: "list" });
const space = h("div", { class: "space" });
list.append(space);
const shown = h("output", { id: "shown", class: "muted", "aria-live": "polite" });
const detail = h("article", { id: "pair", class: "detail", "aria-label": "The chosen pair", tabindex: "-1" });

const height = () => Math.min(TALLEST, total * ROW);
const stretch = () => (total * ROW) / Math.max(1, height()); // above 1 only with more rows than pixels allow

async function page(number) {
  if (!pages.has(number)) {
    const mine = turn;
    pages.set(number, rowsFrom(number * PAGE_ROWS).then((answer) => {
      if (mine === turn) {
        pages.set(number, answer.rows);
        draw();
      }
    }).catch((error) => { pages.delete(number); pulse.textContent = error.message; }));
  }
}

function draw() {
  space.style.height = `${height()}px`;
  const first = Math.max(0, Math.floor((list.scrollTop * stretch()) / ROW) - 4);
  const last = Math.min(total, first + Math.ceil(list.clientHeight / ROW) + 10);
  const rows = [];
  for (let i = first; i < last; i += 1) {
    const held = pages.get(Math.floor(i / PAGE_ROWS));
    if (!Array.isArray(held)) page(Math.floor(i / PAGE_ROWS));
    rows.push(item(i, Array.isArray(held) ? held[i % PAGE_ROWS] : null, list.scrollTop + i * ROW - list.scrollTop * stretch()));
  }
  space.replaceChildren(...rows);
}

function item(i, row, top) {
  if (!row) return h("div", { class: "row loading", style: `top: ${top}px` });
  const marks = [row.flagged && h("span", { class: "chip bad", title: "an output talks to the judge" }, "flagged"), row.cut && h("span", { class: "chip quiet", title: "an output was cut off by its length limit" }, "cut")];
  const figures = [row.who, isNumber(row.longer) ? `${signed(row.longer, 0)} chars` : "", isNumber(row.margin) ? `margin ${signed(row.margin)}` : ""].filter(Boolean).join(" · ");
  const element = h("div", { class: `row${row.number === chosen ? " chosen" : ""}`, style: `top: ${top}px`, role: "option", id: `row-${row.number}`, "aria-selected": String(row.number === chosen), "aria-posinset": i + 1, "aria-setsize": total, onclick: () => choose(i, row) },
    h("div", { class: "row-top" }, h("span", { class: `chip ${row.verdict}` }, NAMES[row.verdict]), h("span", { class: "row-text", dir: "auto" }, row.instruction || "(no instruction)")),
    h("div", { class: "row-below muted" }, h("span", {}, `#${row.number + 1}`), h("span", {}, figures), marks.filter(Boolean)));
  if (row.number === chosen) list.setAttribute("aria-activedescendant", element.id);
  return element;
}

async function ask() {
  turn += 1;
  const mine = turn;
  const before = performance.now();
  const was = chosen;
  try {
    const answer = await rowsFrom(0);
    if (mine !== turn) return;
    pages = new Map([[0, answer.rows]]);
    total = answer.total;
    facts = answer;
    list.scrollTop = 0;
    draw();
    summary(Math.round(performance.now() - before));
    if (!makers.children.length) makers.append(...[command(answer.commands.result), command(answer.commands.outputs, "as files")].filter(Boolean));
    if (answer.ready) filters();
    else setTimeout(() => mine === turn && ask(), 300);
    if (query.kind === "flagged" && answer.looked_at < answer.of) setTimeout(() => mine === turn && ask(), 2000);
    // What was chosen while the answer was on its way stays.
    if (total && (chosen === null || (chosen === was && !given.has("pair")))) choose(0, answer.rows[0], false);
    if (!total) detail.replaceChildren(none("No pair fits."));
  } catch (error) {
    if (mine === turn) { shown.textContent = error.message; total = 0; draw(); }
  }
}

function summary(milliseconds) {
  const of = facts.ready && facts.total !== facts.of ? ` of ${count(facts.of)}` : "";
  const looking = query.kind === "flagged" && facts.looked_at < facts.of ? `looking for more: ${Math.floor((100 * facts.looked_at) / facts.of)} %` : "";
  const more = [looking, facts.skipped ? `${count(facts.skipped)} lines that are no rows` : "", facts.problem ?? ""].filter(Boolean).join("; ");
  shown.textContent = facts.ready ? `${count(total)}${of} pairs${more ? `; ${more}` : ""}` : `indexing ${Math.round(100 * facts.progress)} % …`;
  shown.title = `${milliseconds} ms`;
  document.documentElement.dataset.answered = facts.ready ? String(milliseconds) : "";
}

list.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
new ResizeObserver(() => draw()).observe(list);

// ------------------------------------------------------------------------------------------------------- the filters

const words = h("input", { type: "search", id: "words", value: query.q, placeholder: "Search all texts", "aria-label": "Search prompts and outputs", title: "In the first 200,000 characters of each text: as much as is shown of it." });
const bar = h("div", { class: "toolbar filters" });
let waiting = 0;
let underWay = false;
words.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, PAUSE); });

// One search at a time: the next one begins with what this one finds.
async function search() {
  if (underWay || words.value === query.q) return;
  underWay = true;
  await set({ q: words.value });
  underWay = false;
  search(); // what was typed meanwhile
}

function set(values) {
  Object.assign(query, values);
  given.delete("pair");
  remember();
  return ask();
}

function select(label, name, choices, more = []) {
  return h("label", { class: "select-label" }, h("span", { class: "unseen" }, label), h("select", { "aria-label": label, onchange: (event) => set({ [name]: event.target.value }) },
    choices.map(([value, text]) => h("option", { value, selected: query[name] === value }, text)), more));
}

let others = []; // runs whose verdicts may differ
function filters() {
  const { counts, choices } = facts;
  const verdicts = [["", `all ${count(Object.values(counts).reduce((a, b) => a + b, 0))}`], ...Object.entries(NAMES).filter(([v]) => counts[v] || v === query.verdict).map(([v, text]) => [v, `${text} ${count(counts[v])}`])];
  const figures = [["", "in the order of the file"], ...(choices.gold || choices.reward ? [["margin", "by margin"]] : []), ...(choices.gold ? [["gold", "by gold"]] : []), ...(choices.reward ? [["reward", "by reward"]] : []), ["longer", "by length difference"]];
  const lengths = [["", "any length"], ["longer", "system longer"], ["shorter", "system shorter"], ["much", "longer by 100+"]];
  const lengthNow = query.longer_from === "100" ? "much" : query.longer_from === "1" ? "longer" : query.longer_to === "-1" ? "shorter" : "";
  const kinds = [["", "any"], ["flagged", `flagged${isNumber(choices.flagged) ? ` ${count(choices.flagged)}` : ""}`], ["cut", `cut off ${count(choices.cut)}`]];
  redraw(bar, words, options("Verdict", "verdict", verdicts, query.verdict, (value) => set({ verdict: value })),
    choices.members.length > 1 ? select("Prompt", "member", [["", "any prompt"], ...choices.members.map(([name, n]) => [name, `${name} (${count(n)})`])]) : "",
    choices.families.length ? select("Family", "family", [["", "any family"], ...choices.families.map(([name, n]) => [name, `${name} (${count(n)})`])]) : "",
    h("label", { class: "select-label" }, h("select", { "aria-label": "Length", onchange: (event) => set({ longer_from: { longer: "1", much: "100" }[event.target.value] ?? "", longer_to: event.target.value === "shorter" ? "-1" : "" }) }, lengths.map(([value, text]) => h("option", { value, selected: value === lengthNow }, text)))),
    select("Marked", "kind", kinds), others.length && !STATIC ? select("Flips", "flips", [["", "flips against …"]], grouped(others, (run) => run.method, (run) => h("option", { value: run.id, selected: query.flips === run.id }, `flips: ${run.name}`))) : "",
    select("Order", "order", figures),
    query.order ? h("button", { type: "button", class: "quiet-button", onclick: () => set({ ascending: query.ascending ? "" : "1" }) }, query.ascending ? "lowest first ↑" : "highest first ↓") : "", shown);
}

// ---------------------------------------------------------------------------------------------------------- the pair

async function choose(i, row, scroll = true) {
  chosen = row.number;
  place = i;
  remember();
  if (scroll) {
    const top = (i * ROW) / stretch();
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  }
  draw();
  await showPair();
}

async function step(by) {
  const next = Math.min(total - 1, Math.max(0, place + by));
  const number = Math.floor(next / PAGE_ROWS);
  if (!Array.isArray(pages.get(number))) { await page(number); await pages.get(number); }
  const row = pages.get(number)?.[next % PAGE_ROWS];
  if (row) choose(next, row);
}

async function showPair() {
  const number = chosen;
  try {
    const pair = await pairOf(number);
    if (number !== chosen) return;
    detail.replaceChildren(...described(pair).filter(Boolean));
    detail.scrollTop = 0;
  } catch (error) {
    detail.replaceChildren(problem(error.message));
  }
}

function described(pair) {
  const names = { output_1: pair.generator_1 || "reference", output_2: pair.generator_2 || "system" };
  const choice = { win: `${names.output_2} preferred`, loss: `${names.output_1} preferred`, draw: "draw", none: pair.outcome || "no usable answer" }[pair.verdict];
  const found = showDiff ? differences(pair.output_1.text, pair.output_2.text) : null;
  const part = (text, parts) => (text.text ? h("div", { class: "text", dir: "auto", tabindex: text.length > 1200 ? "0" : null }, parts ? marked(parts) : text.text) : none("empty output"));
  const cut = (text) => (text.length > text.text.length ? h("p", { class: "cut" }, `Cut here: the first ${count(text.text.length)} of ${count(text.length)} characters; all of it is in outputs.jsonl.`) : "");
  const figures = (side) => [["gold", pair[side === "output_2" ? "gold" : "gold_reference"]], ["reward", pair[side === "output_2" ? "reward" : "reward_reference"]]].filter(([, value]) => isNumber(value)).map(([name, value]) => h("span", { class: "figure-chip" }, `${name} ${decimal(value)}`));
  const output = (side, kind, won, parts) => h("div", { class: `${kind}${won ? " chosen" : ""}` }, h("h3", {}, names[side], won ? h("span", { class: "mark" }, "✓ judge’s choice") : "", h("span", { class: "length" }, `${count(pair[side].length)} characters${pair[`finish_reason_${side.slice(-1)}`] === "length" ? ", cut off" : ""}`)), part(pair[side], parts), cut(pair[side]), h("p", { class: "figures" }, figures(side)));
  const margins = [["gold", pair.gold, pair.gold_reference], ["reward", pair.reward, pair.reward_reference]].filter(([, ours, theirs]) => isNumber(ours) && isNumber(theirs)).map(([name, ours, theirs]) => `${name} margin ${signed(ours - theirs)}`);
  return [
    h("div", { class: "detail-head" }, h("button", { type: "button", class: "quiet-button back", onclick: () => { document.documentElement.classList.remove("reading"); list.focus(); } }, "← list"), h("span", { class: "muted" }, `#${pair.number + 1}`), h("span", { class: `chip ${pair.verdict}` }, choice),
      h("span", { class: "muted" }, [pair.who ? `by ${pair.who}` : "", ...margins, pair.source && pair.source !== "judge" ? `source ${pair.source}` : ""].filter(Boolean).join(" · ")),
      h("label", { class: "toggle" }, h("input", { type: "checkbox", id: "diff", checked: showDiff, onchange: (event) => { showDiff = event.target.checked; showPair(); } }), " mark what differs")),
    h("h2", { class: "prompt", dir: "auto" }, pair.instruction.text || "(no instruction)"), cut(pair.instruction),
    pair.input.text ? h("p", { class: "input", dir: "auto" }, pair.input.text) : "", cut(pair.input),
    pair.flags.length ? h("aside", { class: "banner" }, h("ul", {}, pair.flags.map((flag) => h("li", {}, `${names[flag.side]}: ${flag.flag} (${flag.pattern}): `, h("q", {}, flag.quote))))) : "",
    showDiff && !found && pair.output_1.text && pair.output_2.text ? h("p", { class: "muted" }, `Nothing is marked: the outputs ${[pair.output_1, pair.output_2].some((output) => wordsOf(output.text).length > MOST_WORDS) ? "are too long to be compared" : "have little in common"}.`) : "",
    h("div", { class: "pair" }, output("output_1", "reference", pair.verdict === "loss", found?.[0]), output("output_2", "system", pair.verdict === "win", found?.[1])),
    jurors(pair, names),
    votes(pair, names),
    command(pair.command, "all answers as a file"),
  ];
}

// An answer about several pairs, its lines that begin with the number of this one marked.
function pointed(text, place) {
  if (!place) return text;
  const begins = new RegExp(`^\\W*${place}\\b`);
  return text.split(/(?<=\n)/).map((line) => (begins.test(line) ? h("mark", {}, line) : line));
}

// What each juror of a jury said; who is not in it was not asked, since the majority was fixed.
function jurors(pair, names) {
  const sides = { output_2: "win", output_1: "loss" };
  const chip = (one) => h("span", { class: `chip ${sides[one.says] ?? "draw"}` }, names[one.says] ? `prefers ${names[one.says]}` : one.says);
  return pair.jurors?.length ? h("section", { class: "jurors", "aria-label": "Jurors" }, h("h3", {}, "Jurors"), h("ul", {}, pair.jurors.map((one) => h("li", {}, h("strong", {}, one.juror), " ", chip(one))))) : "";
}

function votes(pair, names) {
  const own = pair.votes.filter((vote) => vote.own).length;
  const head = h("h3", { id: "votes" }, pair.votes.length ? `${pair.votes.length} ${pair.votes.length === 1 ? "vote" : "votes"}` : "Votes");
  if (!pair.votes.length) return h("section", { class: "votes" }, head, none(pair.votes_problem || (pair.source === "noise" ? "Label noise decided: a coin, no judge." : pair.verdict === "draw" && pair.output_1.text === pair.output_2.text ? "The outputs are identical: a draw, and no judge was asked." : "The ledger has no answer about this pair: a reward model, a formula or a person may have labelled it.")));
  return h("section", { class: "votes", "aria-labelledby": "votes" }, head, own < pair.votes.length ? h("p", { class: "muted" }, `${own} made this label; the others were about the same pair.`) : "",
    pair.votes.map((vote) => h("div", { class: `card vote${vote.own ? "" : " other"}` },
      h("p", { class: "vote-head" }, h("strong", {}, vote.who || "unknown judge"), vote.says ? h("span", { class: `chip ${{ output_2: "win", output_1: "loss" }[vote.says] ?? "draw"}` }, names[vote.says] ? `prefers ${names[vote.says]}` : vote.says) : "",
        h("span", { class: "muted" }, [vote.order ? `saw ${names[`output_${vote.order[0]}`]} first` : "", isNumber(vote.p2) && vote.p2 !== 0 && vote.p2 !== 1 ? `p = ${decimal(vote.p2)}` : "", vote.sample ? `sample ${vote.sample + 1}` : ""].filter(Boolean).join(" · "))),
      vote.reason ? h("blockquote", { class: "reason" }, vote.reason) : "",
      h("p", { class: "muted" }, [vote.judge, vote.model && vote.model !== vote.judge ? vote.model : "", isNumber(vote.price) ? `${dollars(vote.price)}${vote.shared_by > 1 ? ` for ${vote.shared_by} pairs in one prompt` : ""}` : vote.text === null ? "" : "price unknown", isNumber(vote.input_tokens) ? `${count(vote.input_tokens)} + ${count(vote.output_tokens)} tokens` : "", isNumber(vote.seconds) && vote.seconds > 0.005 ? duration(vote.seconds) : ""].filter(Boolean).join(" · ")),
      vote.text === null ? none("The answer is not in this ledger.") : h("details", { open: vote.own && !vote.reason }, h("summary", {}, "raw answer", vote.place ? `: this pair is number ${vote.place} of ${vote.shared_by} in the prompt` : ""), h("pre", { class: "raw", tabindex: "0" }, vote.text ? pointed(vote.text, vote.place) : "(empty)")),
      vote.prompt ? h("details", {}, h("summary", {}, "what it was asked"), h("pre", { class: "raw", tabindex: "0" }, vote.prompt)) : "")));
}

// ----------------------------------------------------------------------------------------------------------- the page

const makers = h("span", { class: "makers" });
main.classList.add("outputs");
main.replaceChildren(h("header", { class: "outputs-head" }, h("p", { class: "eyebrow" }, link("index.html", "Runs"), " / ", link(runOf(RUN), RUN)), h("h1", { class: "small" }, "Outputs"), makers, h("span", { class: "muted keys" }, "j k next, previous · / search · d differences")), bar,
  h("div", { class: "panes" }, list, detail));
bar.replaceChildren(words, shown);
list.addEventListener("click", () => document.documentElement.classList.add("reading"));
list.addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -total, End: total }[event.key];
  if (event.key === "Enter") { document.documentElement.classList.add("reading"); detail.focus(); }
  if (by) { event.preventDefault(); step(by); }
});
keys({ j: () => step(1), k: () => step(-1), "/": (event) => { event.preventDefault(); words.focus(); }, Escape: () => { words.blur(); document.documentElement.classList.remove("reading"); }, d: () => { showDiff = !showDiff; showPair(); } });

ask().then(() => {
  if (chosen !== null && given.has("pair")) showPair();
  if (!STATIC) get("data/runs.json").then((table) => { others = table.runs.filter((run) => run.id !== RUN && run.status === "finished"); if (facts?.ready) filters(); }).catch(() => {});
});
