// Tables that sort by a click on a header (a second click turns the order round) and filter by text
// and status. Rows without a number stay at the end in both directions.
function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const keyed = rows.map((row) => {
    const cell = row.cells[column];
    const text = cell.dataset.text ?? cell.dataset.value;
    return { row, text, number: text === "" ? NaN : Number(text) };
  });
  keyed.sort((a, b) => {
    if ((a.text === "") !== (b.text === "")) return a.text === "" ? 1 : -1;
    const bothNumbers = !Number.isNaN(a.number) && !Number.isNaN(b.number);
    return direction * (bothNumbers ? a.number - b.number : a.text.localeCompare(b.text));
  });
  body.append(...keyed.map((entry) => entry.row));
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    header.setAttribute("aria-sort", index === column ? (direction > 0 ? "ascending" : "descending") : "none");
  });
}

function unsort(table) {
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => a.cells[0].dataset.value - b.cells[0].dataset.value));
  for (const header of table.tHead.rows[0].cells) header.setAttribute("aria-sort", "none");
}

function filterTable(table) {
  const words = document.querySelector(`[data-filters="${table.id}"]`).value.toLowerCase().split(/\s+/).filter(Boolean);
  const status = document.querySelector(`[data-status-of="${table.id}"]`)?.value ?? "";
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = [...row.cells].map((cell) => `${cell.dataset.label ?? ""}=${cell.textContent.trim()}`).join(" ").toLowerCase();
    const fits = words.every((word) => text.includes(word)) && (row.dataset.status ?? "").includes(status);
    row.hidden = !fits;
    shown += fits;
  }
  const total = table.tBodies[0].rows.length;
  document.querySelector(`[data-count-of="${table.id}"]`).textContent = shown === total ? "" : `${shown} of ${total} rows`;
}

for (const table of document.querySelectorAll('table[role="table"]')) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.firstElementChild.addEventListener("click", () => {
      const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      sortTable(table, column, direction);
    });
  });
  document.querySelector(`[data-sorts="${table.id}"]`).addEventListener("change", (event) => {
    if (event.target.value === "") unsort(table);
    else sortTable(table, Number(event.target.value), 1);
  });
  for (const control of document.querySelectorAll(`[data-filters="${table.id}"], [data-status-of="${table.id}"]`)) {
    control.addEventListener("input", () => filterTable(table));
  }
}
