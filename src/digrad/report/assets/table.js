// The table of results: the page brings it complete; here it can be sorted, and its columns hidden.

function buildTable(table, home, times) {
  const head = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows];
  const keys = head.map((cell) => cell.dataset.key);
  const hiddenAtFirst = head.filter((cell) => cell.hidden).map((cell) => cell.dataset.key);
  fillTimes(rows, keys, times);
  for (const cell of head)
    sortOnClick(cell, () => view.set({ sort: nextSort(cell.dataset.key, view.get("sort")) }));
  const boxes = keys.map((key, place) => columnBox(key, head[place].textContent, keys, hiddenAtFirst));
  const saving = element("button", { type: "button", onclick: () => save("results.csv", "text/csv", csv(tableRows(table))) }, "CSV");
  home.append(element("details", { class: "columns" }, element("summary", {}, "Columns"),
    element("div", { class: "entries" }, ...boxes.slice(1))), saving);
  const show = () => {
    const hidden = hiddenColumns(hiddenAtFirst);
    for (const row of [table.tHead.rows[0], ...rows])
      keys.forEach((key, place) => (row.cells[place].hidden = hidden.has(key)));
    boxes.forEach((label, place) => (label.querySelector("input").checked = !hidden.has(keys[place])));
    sortRows(table, head, rows, keys, view.get("sort"));
  };
  view.follow(show);
}

// A table without columns to hide, such as that of a sweep: a click on a heading sorts it, a second one the other way.
function buildPlainTable(table, number) {
  const head = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows], keys = Object.keys(head);
  const sorts = () => new Map(view.get("tables").split(",").filter(Boolean).map((one) => one.split("=")));
  const now = () => sorts().get(String(number)) ?? "";
  for (const cell of table.querySelectorAll("td.number"))
    cell.dataset.value = cell.textContent.replace("inf", "Infinity");
  head.forEach((cell, place) => sortOnClick(cell, () => {
    const wanted = sorts().set(String(number), nextSort(keys[place], now()));
    view.set({ tables: [...wanted].filter(([, sort]) => sort).map((one) => one.join("=")).join(",") });
  }));
  const show = () => sortRows(table, head, rows, keys, now());
  view.follow(show);
}

function sortOnClick(cell, onclick) {
  cell.replaceChildren(element("button", { type: "button", onclick }, cell.textContent));
}

function fillTimes(rows, keys, times) {
  const place = keys.indexOf("seconds");
  rows.forEach((row) => {
    const seconds = times.seconds[Number(row.dataset.series)];
    row.cells[place].dataset.value = seconds;
    row.cells[place].textContent = seconds.toFixed(2);
  });
}

function hiddenColumns(hiddenAtFirst) {
  const cols = view.get("cols");
  return new Set(cols === "" ? hiddenAtFirst : cols === "all" ? [] : cols.split(","));
}

function columnBox(key, title, keys, hiddenAtFirst) {
  const box = element("input", { type: "checkbox", "data-column": key });
  box.addEventListener("change", () => {
    const hidden = hiddenColumns(hiddenAtFirst);
    hidden[box.checked ? "delete" : "add"](key);
    const isFirst = hidden.size === hiddenAtFirst.length && hiddenAtFirst.every((one) => hidden.has(one));
    view.set({ cols: isFirst ? "" : hidden.size ? keys.filter((one) => hidden.has(one)).join(",") : "all" });
  });
  return element("label", {}, box, ` ${title}`);
}

function nextSort(key, sort) {
  const [now, way] = sort.split(":");
  if (now !== key) return `${key}:up`;
  return way === "up" ? `${key}:down` : "";
}

function sortRows(table, head, rows, keys, sort) {
  const [key, way] = sort.split(":");
  const place = keys.indexOf(key);
  head.forEach((cell, i) => cell.setAttribute("aria-sort",
    i !== place ? "none" : way === "up" ? "ascending" : "descending"));
  const sorted = place < 0 ? rows : [...rows].sort((a, b) => compare(a.cells[place], b.cells[place]) * (way === "up" ? 1 : -1));
  table.tBodies[0].append(...sorted);
}

// What is not finite is larger than any number: the worst ends where the worst belongs.
function compare(a, b) {
  const [first, second] = [a, b].map((cell) => cell.dataset.value);
  if (first === undefined && second === undefined) return a.textContent.localeCompare(b.textContent);
  const [one, other] = [first, second].map((value) => (value === "" || value === undefined ? Infinity : Number(value)));
  return one === other ? 0 : one < other ? -1 : 1;
}

function tableRows(table) {
  const cells = (row) => [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent.trim());
  return [[...table.tHead.rows[0].cells].map((cell) => cell.dataset.key), ...[...table.tBodies[0].rows].map(cells)];
}
