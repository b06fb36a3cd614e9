// The artifacts of each output directory: what made what, at what cost.
let words = "";
const field = h("input", { type: "search", "aria-label": "Filter artifacts", placeholder: "Filter: train, sft, a key …", oninput: (event) => { words = event.target.value.toLowerCase(); showAll(); } });
const holder = h("div", {});
let data = { stores: [] };
main.replaceChildren(h("h1", {}, "Artifacts"), h("p", { class: "muted" }, "Every stage that was made, newest first. An equal stage with equal inputs is reused: the runs that share one are named."), h("div", { class: "toolbar" }, field), holder);

const short = (name) => `${name.split("/")[0]}/${name.split("/")[1]?.slice(0, 8) ?? ""}`;
const to = (name) => h("a", { href: `#${encodeURIComponent(name)}`, title: name }, short(name));

function showAll() {
  holder.replaceChildren(...data.stores.map((store) => {
    const rows = store.rows.filter((row) => [row.name, row.label, ...row.runs].join(" ").toLowerCase().includes(words));
    const uses = new Map();
    for (const row of store.rows) for (const name of row.inputs) uses.set(name, [...(uses.get(name) ?? []), row.name]);
    const total = rows.reduce((sum, row) => sum + (row.bytes ?? 0), 0);
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, h("code", {}, store.output_dir)), command(store.command)), h("p", { class: "muted" }, `${count(rows.length)} artifacts, ${bytes(total)}`),
      rows.length ? table({ caption: "Artifacts", rows, sort: { by: null, down: true }, columns: [
        { title: "Artifact", value: (r) => r.name, cell: (r) => h("span", { id: encodeURIComponent(r.name) }, h("code", { class: "whole", title: r.name }, short(r.name)), r.partial ? [" ", h("span", { class: "chip live" }, "unfinished")] : "", r.problem ? h("span", { class: "meaning warn" }, r.problem) : "") },
        { title: "Stage", value: (r) => r.label || r.stage },
        { title: "Made", number: true, value: (r) => r.created, cell: (r) => moment(r.created) },
        { title: "Time", number: true, value: (r) => r.seconds, cell: (r) => duration(r.seconds) },
        { title: "Cost", number: true, value: (r) => r.dollars, cell: (r) => (isNumber(r.calls) && r.calls ? dollars(r.dollars) : UNKNOWN) },
        { title: "Calls", number: true, value: (r) => r.calls, cell: (r) => (r.calls ? count(r.calls) : UNKNOWN) },
        { title: "Size", number: true, value: (r) => r.bytes, cell: (r) => bytes(r.bytes) },
        { title: "Made from", value: (r) => r.inputs.join(" "), cell: (r) => (r.inputs.length ? r.inputs.map((name, i) => [i ? ", " : "", to(name)]) : UNKNOWN) },
        { title: "Made into", value: (r) => (uses.get(r.name) ?? []).join(" "), cell: (r) => ((uses.get(r.name) ?? []).length ? uses.get(r.name).map((name, i) => [i ? ", " : "", to(name)]) : UNKNOWN) },
        { title: "Runs", value: (r) => r.runs.length, number: true, cell: (r) => (r.runs.length ? h("details", { class: "inline" }, h("summary", {}, String(r.runs.length)), r.runs.map((id) => h("div", {}, link(runOf(id), id)))) : UNKNOWN) },
      ] }) : none("None here."));
  }));
}
follow("data/artifacts.json", (now) => { data = now; showAll(); }, 5);
