// The settings in which two runs differ, from the configs that the runs were started with.
(function diff() {
  const [from, to] = ["diff-from", "diff-to"].map((id) => document.getElementById(id));
  DATA.cells.forEach((cell, index) => {
    for (const select of [from, to]) select.append(make("option", { value: index }, cell.label));
  });
  to.value = String(Math.min(1, DATA.cells.length - 1));
  const table = document.getElementById("diff");

  function show() {
    const [before, after] = [from, to].map((select) => DATA.cells[Number(select.value)]);
    const keys = [...new Set([...Object.keys(before.settings), ...Object.keys(after.settings)])].sort();
    const rows = keys.filter((key) => before.settings[key] !== after.settings[key]).map((key) =>
      make("tr", {}, make("th", { scope: "row" }, key), ...[before, after].map((cell) => {
        const source = `${cell.source.split("/")[0]}/config.yaml#${key}`;
        return make("td", { "data-source": source, title: `from ${source}` }, cell.settings[key] ?? "not set");
      })));
    const head = make("thead", {}, make("tr", {}, ...["setting", before.label, after.label].map((text) => make("th", { scope: "col" }, text))));
    const none = make("tr", {}, make("td", { colspan: "3" }, "None: both runs have the same settings."));
    table.replaceChildren(head, make("tbody", {}, ...(rows.length ? rows : [none])));
  }
  for (const select of [from, to]) select.addEventListener("change", show);
  show();
})();
