// What judges cost: by day, judge, annotator and run.
const GROUPS = [["day", "By day"], ["judge", "By judge"], ["annotator", "By annotator"], ["run", "By run"], ["account", "By account"]];
const MEANINGS = { run: "What the stages of each run bought. A stage that runs share counts with the oldest of them.", account: "Who paid: a run, or a study, a comparison or a search for all of its runs." };
// What the names of accounts begin with that several runs share.
const SHARED = { "study-": "all runs of one study", "compare-": "all runs of one comparison", "tune-": "all trials of one search" };
const sharing = (name) => Object.entries(SHARED).find(([begin]) => name.startsWith(begin))?.[1];
main.replaceChildren(h("h1", {}, "Ledger"), h("p", { class: "muted" }, "Every answer that judges gave, what it cost, and what was not paid for again."));
const holder = h("div", {});
main.append(holder);

function accounts(rows, title) {
  const most = Math.max(...rows.map((row) => row.dollars), 0);
  const columns = [
    { title: title.replace("By ", ""), value: (r) => r.name || UNKNOWN, cell: (r) => [r.id ? link(runOf(r.id), r.name) : r.name || (title === "By run" ? "(no run that is here)" : UNKNOWN), title === "By account" && sharing(r.name) ? h("span", { class: "meaning" }, sharing(r.name)) : ""] },
    { title: "Dollars", number: true, value: (r) => r.dollars, cell: (r) => h("span", { class: "bar-cell", style: `--share: ${most ? (100 * r.dollars / most).toFixed(1) : 0}%` }, dollars(r.dollars)) },
    { title: "Answers", number: true, value: (r) => r.answers, cell: (r) => count(r.answers) },
    { title: "Tokens in", number: true, value: (r) => r.input_tokens, cell: (r) => count(r.input_tokens) },
    { title: "Tokens out", number: true, value: (r) => r.output_tokens, cell: (r) => count(r.output_tokens) },
    { title: "Unpriced", number: true, value: (r) => r.unpriced, cell: (r) => count(r.unpriced), hint: "answers of unknown price, not in the sum" },
    { title: "Reused", number: true, value: (r) => r.reused, cell: (r) => count(r.reused), hint: "answers that were not paid for again" },
    { title: "Saved", number: true, value: (r) => r.saved, cell: (r) => dollars(r.saved) },
  ];
  const shown = columns.filter((column) => !["Unpriced", "Reused", "Saved"].includes(column.title) || rows.some(column.value));
  return table({ caption: title, rows, columns: shown });
}

follow("data/ledger.json", (data) => {
  holder.replaceChildren(...data.ledgers.map((ledger) => {
    if (ledger.missing || ledger.problem) return h("section", {}, h("h2", {}, h("code", {}, ledger.place)), ledger.problem ? problem(ledger.problem) : none("No ledger is here: no judge has been asked."));
    const total = ledger.by.judge.reduce((sum, row) => ({ dollars: sum.dollars + row.dollars, answers: sum.answers + row.answers, reused: sum.reused + row.reused, saved: sum.saved + row.saved, unpriced: sum.unpriced + row.unpriced }), { dollars: 0, answers: 0, reused: 0, saved: 0, unpriced: 0 });
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, h("code", {}, ledger.place)), command(ledger.command)),
      h("dl", { class: "tiles" }, tile("Paid in all", dollars(total.dollars), total.unpriced ? `${count(total.unpriced)} answers of unknown price` : ""), tile("Answers", count(total.answers)), tile("Not paid again", count(total.reused), `${dollars(total.saved)} saved`),
        tile("Open", count(ledger.in_flight.requests), ledger.in_flight.requests ? `at most ${dollars(ledger.in_flight.reserved)}: in flight, or charged without an answer` : "nothing in flight")),
      ledger.batches.map((batch) => h("p", { class: "note" }, `Batch ${batch.ticket} of ${batch.judge}: ${count(batch.requests)} requests, at most ${dollars(batch.reserved)}; the same command collects it.`)),
      ledger.unanswered.length ? h("p", { class: "note" }, `Answers without a text: ${ledger.unanswered.map(([why, many]) => `${count(many)} ${why || "without a reason"}`).join(", ")}.`) : "",
      GROUPS.map(([group, title]) => [h("h3", {}, title), MEANINGS[group] ? h("p", { class: "muted" }, MEANINGS[group]) : "", ledger.by[group].length ? accounts(ledger.by[group], title) : none("Nothing yet.")]));
  }));
}, 5);
