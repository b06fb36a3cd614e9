// Boards and studies, with links to their files.
main.replaceChildren(h("h1", {}, "Boards and studies"));
const holder = h("div", {});
main.append(holder);
const order = (name) => ["html", "md", "svg", "csv", "json"].indexOf(name.split(".").at(-1));

function listed(title, rows, maker) {
  return h("section", {}, h("h2", {}, title), rows.length
    ? h("ul", { class: "documents" }, rows.map((row) => h("li", { class: "card" }, h("strong", {}, row.name), h("span", { class: "muted" }, ` ${moment(row.changed)}`),
      h("p", {}, [...row.files].sort((a, b) => order(a.name) - order(b.name)).map((file) => [h("a", { href: ROOT + documentOf(file.address), target: "_blank", rel: "noopener" }, file.name), " "])), command(row.command))))
    : none(`None here yet: ${maker}.`));
}

follow("data/boards.json", (data) => {
  holder.replaceChildren(listed("Boards", data.boards, "`afarm compare` makes one"), listed("Studies", data.studies, "`afarm study` and `afarm best-of-n` make one"));
}, 5);
