"use strict";
// What all pages share. Text reaches the page as text alone: nothing here reads HTML.
const ROOT = document.documentElement.dataset.root;
const RUN = document.documentElement.dataset.run;
const STATIC = "static" in document.documentElement.dataset;
const main = document.getElementById("main");

function h(tag, attributes = {}, ...children) {
  const element = tag === "svg" || tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.replace("svg:", ""))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

// ------------------------------------------------------------------------------------------------------------ data

const marks = new Map();

const IS_FILE = location.protocol === "file:";
const AWAY = "The view does not answer: it was ended, or its machine is away.";
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

// The data of a page; `null` if they are as they were at the last look.
async function look(path) {
  if (IS_FILE) return new Promise(() => {}); // a browser gives no data to files
  const before = marks.get(path);
  const answer = await fetch(ROOT + path, { cache: "no-store", headers: before ? { "if-none-match": before } : {} }).catch(() => { throw new Error(AWAY); });
  if (answer.status === 304) return null;
  const data = await answer.json().catch(() => ({ problem: `the view answered ${answer.status}` }));
  if (!answer.ok) throw new Error(data.problem ?? `the view answered ${answer.status}`);
  if (answer.headers.get("etag")) marks.set(path, answer.headers.get("etag"));
  return data;
}

async function get(path) {
  marks.delete(path);
  return look(path);
}

const pulse = document.getElementById("pulse");

// Looks again every `seconds` while the page is seen, and tells if the view is gone.
function follow(path, show, seconds = 2) {
  let failed = false;
  let isInstead = false; // what is wrong stands in the place of the page
  const step = async () => {
    try {
      const data = await look(path);
      if (data) show(data);
      if (failed) pulse.textContent = "";
      failed = isInstead = false;
    } catch (error) {
      failed = true;
      isInstead ||= !main.querySelector("h1");
      if (isInstead) main.replaceChildren(h("p", { class: "eyebrow" }, link("index.html", "Runs")), h("h1", {}, "Nothing to show"), problem(error.message));
      else pulse.textContent = error.message;
    }
    if (STATIC) return;
    setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", step, { once: true }) : step()), 1000 * seconds);
  };
  return step();
}

// --------------------------------------------------------------------------------------------------------- writing

const UNKNOWN = "–";
const isNumber = (value) => typeof value === "number";
const Z_95 = 1.96; // standard errors on each side of a 95% interval
const minus = (text) => text.replace("-", "−");

// Halves go to the even digit, as in the command line: 46.25 is 46.2. They are exact only with few bits after the point.
function rounded(value, places) {
  const scaled = value * 10 ** places;
  const isHalf = Number.isInteger(value * 2 ** (places + 1)) && Math.abs(scaled % 1) === 0.5;
  return Number(isHalf ? 2 * Math.round(scaled / 2) / 10 ** places : value.toFixed(places));
}

function decimal(value, places = 2) {
  if (!isNumber(value)) return UNKNOWN;
  const text = rounded(value, places).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  return minus(Math.abs(value) > 1e-9 && !/[1-9]/.test(text) ? value.toPrecision(2) : text);
}

const count = (value) => (isNumber(value) ? minus(Math.round(value).toLocaleString("en")) : UNKNOWN);
const compact = (value) => (isNumber(value) ? minus(Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)))) : value ?? UNKNOWN);
const signed = (value, places = 2) => (isNumber(value) && value > 0 ? "+" : "") + decimal(value, places);

function dollars(value) {
  if (!isNumber(value)) return UNKNOWN;
  const places = value <= 0 ? 2 : Math.max(2, 1 - Math.floor(Math.log10(value)));
  return `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: Math.min(places, 12) })}`;
}

function duration(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const whole = Math.round(value);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const place = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
  return `${(value / 1000 ** place).toLocaleString("en", { maximumFractionDigits: place ? 1 : 0 })} ${units[place]}`;
}

function moment(value) {
  if (!isNumber(value)) return UNKNOWN;
  const at = new Date(value * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

// --------------------------------------------------------------------------------------------------------- elements

// Words between backticks are commands.
const worded = (text) => text.split("`").map((part, place) => place % 2 ? h("code", {}, part) : part);
// A long name may break after its points and signs.
const breakable = (text) => text.split(/(?<=[.=_:/])/).flatMap((part) => [part, h("wbr")]);
const problem = (text) => h("aside", { class: "banner", role: "alert" }, h("p", {}, worded(text)));
const none = (text) => h("p", { class: "none" }, worded(text));
if (IS_FILE) document.addEventListener("DOMContentLoaded", () => {
  const directory = decodeURIComponent(new URL(ROOT || ".", location.href).pathname);
  main.replaceChildren(h("h1", {}, "These pages need a web server"), problem(`Browsers give no data to pages that are opened as files. \`python -m http.server -d ${quoted(directory)}\` serves them at http://localhost:8000`));
});
const link = (address, ...children) => h("a", { href: ROOT + address }, ...children);
const outputsOf = (id) => `outputs/${encodeURIComponent(id)}.html`;
const documentOf = (address) => `document/${address.split("/").map(encodeURIComponent).join("/")}`;
const runOf = (id) => `run/${encodeURIComponent(id)}.html`;

const STATUS = { finished: "good", running: "live", stopped: "quiet", failed: "bad", unreadable: "bad" };
const statusChip = (status) => h("span", { class: `chip ${STATUS[status] ?? "quiet"}` }, status);

// Draws a place anew: what was focused there is focused again.
function redraw(place, ...children) {
  const sign = (one) => [one.tagName, one.id, one.name, one.type === "radio" ? one.value : "", one.getAttribute("aria-label"), one.getAttribute("href"), one.id ? "" : one.textContent.slice(0, 200)].join("\n");
  const focused = place.contains(document.activeElement) ? sign(document.activeElement) : null;
  place.replaceChildren(...children);
  if (focused !== null && !place.contains(document.activeElement)) [...place.querySelectorAll("a, button, input, select, summary, [tabindex]")].find((one) => sign(one) === focused)?.focus({ preventScroll: true });
}

// The command behind a figure, opened in place.
function command(text, label = "command") {
  if (!text) return "";
  const button = h("button", { type: "button", class: "quiet-button", onclick: () => copy(text, button) }, "copy");
  return h("details", { class: "command-line" }, h("summary", {}, h("span", { "aria-hidden": "true" }, "$ "), label),
    h("div", { class: "command-box" }, h("code", {}, text), button));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(button.previousSibling);
    button.textContent = "selected";
  }
}

// A section with a heading, and the command that makes what is in it.
function section(id, title, from, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` },
    h("div", { class: "section-head" }, h("h2", { id: `${id}-title` }, title), command(from)), ...children);
}

const tile = (label, value, ...small) =>
  h("div", { class: "card" }, h("dt", {}, label), h("dd", {}, value), small.filter(Boolean).map((text) => h("dd", { class: "small" }, text)));

// columns: { title, value(row) → number or text to sort by, cell(row) → what is shown, number, hint }
function table({ columns, rows, caption, sort, onsort, rowClass }) {
  const order = sort ?? { by: null, down: true };
  const body = h("tbody");
  const fill = () => {
    const column = columns.find((one) => one.title === order.by);
    const known = column ? rows.filter((row) => ![null, undefined, ""].includes(column.value(row))) : rows;
    const sorted = column ? [...known].sort((a, b) => (order.down ? -1 : 1) * byValue(column.value(a), column.value(b))) : rows;
    const unknown = column ? rows.filter((row) => [null, undefined, ""].includes(column.value(row))) : [];
    body.replaceChildren(...[...sorted, ...unknown].map((row) => h("tr", { class: rowClass?.(row) || null }, columns.map((one, place) =>
      h(place === 0 && !one.box ? "th" : "td", { scope: place === 0 && !one.box ? "row" : null, class: one.number ? "number" : one.class ?? null }, one.cell ? one.cell(row) : one.value(row) ?? UNKNOWN)))));
  };
  const heads = columns.map((column) => {
    if (!column.value || column.box) return h("th", { scope: "col", class: column.number ? "number" : null, title: column.hint }, column.title);
    const head = h("th", { scope: "col", class: column.number ? "number" : null, title: column.hint },
      h("button", { type: "button", class: "sort", onclick: () => {
        if (order.by !== column.title) Object.assign(order, { by: column.title, down: Boolean(column.number) });
        else if (order.down === Boolean(column.number)) order.down = !order.down;
        else order.by = null;
        show();
        onsort?.(order);
      } }, column.title));
    head.column = column.title;
    return head;
  });
  const show = () => {
    for (const head of heads) {
      if (head.column && head.column === order.by) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    fill();
  };
  show();
  return h("div", { class: "scroll card table-card", tabindex: "0", role: "group", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), body));
}

const byValue = (a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));

// Options in a row of which one holds.
function options(legend, name, choices, chosen, onchange) {
  return h("fieldset", { class: "filter" }, h("legend", { class: "unseen" }, legend), choices.map(([value, label]) =>
    h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onchange(value) }), h("span", {}, label))));
}

// Rows brought together by a group, such as their method, in the order of the first of each.
function together(rows, group) {
  const groups = new Map();
  for (const row of rows) groups.set(group(row), [...(groups.get(group(row)) ?? []), row]);
  return groups;
}

// The options of a long menu under the names of their groups; of one group alone, or of few options, without.
function grouped(rows, group, option) {
  const groups = together(rows, group);
  if (groups.size < 2 || rows.length < 8) return [...groups.values()].flat().map(option);
  return [...groups].map(([name, some]) => h("optgroup", { label: name || UNKNOWN }, some.map(option)));
}

// A number chosen by a slider or typed: of `log` ones equal steps are equal ratios. Kept from page to page with `kept`.
function slider(label, { least, most, value, step = 1, log = false, write = count, kept = "", onchange }) {
  const recall = () => { try { return Number(localStorage.getItem(`afarm ${kept}`)) || null; } catch { return null; } };
  const steps = log ? 200 : Math.round((most - least) / step);
  const place = (number) => Math.round(steps * (log ? Math.log(number / least) / Math.log(most / least) : (number - least) / (most - least)));
  const read = (at) => (log ? Number((least * (most / least) ** (at / steps)).toPrecision(2)) : Number((least + at * step).toFixed(6)));
  let now = (kept && recall()) || value;
  const output = h("output", { class: "slider-value" });
  const input = h("input", { type: "range", min: 0, max: steps, value: place(now), "aria-label": label });
  const tell = () => { output.textContent = write(now); input.setAttribute("aria-valuetext", write(now)); };
  input.addEventListener("input", () => {
    now = read(Number(input.value));
    tell();
    try { if (kept) localStorage.setItem(`afarm ${kept}`, now); } catch { /* a browser that keeps nothing */ }
    onchange?.(now);
  });
  tell();
  const element = h("div", { class: "slider" }, h("span", { class: "slider-name" }, label), output, input);
  return { element, get value() { return now; }, set(number) { now = number; input.value = place(Math.min(most, Math.max(least, number || least))); tell(); } };
}

// What people would take and be paid for labels: chosen once for all pages.
const people = (onchange) => [
  slider("Person’s seconds per label", { least: 2, most: 1200, value: 60, log: true, write: duration, kept: "label seconds", onchange }),
  slider("Person’s price per label", { least: 0.01, most: 20, value: 0.25, log: true, write: dollars, kept: "label price", onchange }),
];

// plotly.js, fetched once and only by pages with charts; false if it is not installed.
let plotly = null;
function loadPlotly() {
  plotly ??= new Promise((done) => {
    const script = h("script", { src: `${ROOT}static/plotly.js`, onload: () => done(true), onerror: () => done(false) });
    document.head.append(script);
  });
  return plotly;
}

function keys(pressed) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
    pressed[event.key]?.(event);
  });
}
