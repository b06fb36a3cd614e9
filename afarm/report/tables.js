// Tables that sort: by a column's numbers, largest first, or by its texts; a third time as they were. Unknown comes last.
function cellValue(row, place) {
  const cell = row.cells[place];
  const { value } = cell.dataset;
  if (value !== undefined) return value === "" ? null : Number(value);
  const text = cell.textContent.trim();
  if (!cell.classList.contains("number")) return text;
  const number = parseFloat(text.replace(/[,$]/g, "").replace("−", "-")); // the first of several in a cell
  return Number.isNaN(number) ? null : number;
}

function compareCells(one, other) {
  return typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const [body] = table.tBodies;
  const given = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    const isNumber = given.some((row) => typeof cellValue(row, place) === "number");
    const [first, second] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const order = now === null ? first : now === first ? second : null;
      for (const each of heads) each.removeAttribute("aria-sort");
      if (!order) {
        body.append(...given);
        return;
      }
      head.setAttribute("aria-sort", order);
      const turn = order === "ascending" ? 1 : -1;
      const known = given.filter((row) => cellValue(row, place) !== null);
      known.sort((one, other) => turn * compareCells(cellValue(one, place), cellValue(other, place)));
      body.append(...known, ...given.filter((row) => cellValue(row, place) === null));
    });
  });
}

