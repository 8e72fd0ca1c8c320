// Elements, numbers as people read them, and files to save.

const SVG = "http://www.w3.org/2000/svg"; // a name, never fetched

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function figureOf(value) {
  if (value == null || !Number.isFinite(value)) return "inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(5)));
}

function shortened(text, letters) {
  return text.length <= letters ? text : `${text.slice(0, Math.max(1, letters - 1))}…`;
}

function bytesOf(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const place = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${Number((value / 1000 ** place).toPrecision(4))} ${units[place]}`;
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function csv(rows) {
  const quote = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  return rows.map((row) => row.map((cell) => quote(cell == null ? "" : String(cell))).join(",")).join("\n") + "\n";
}

// A drawing takes its colours from the page. Saved, it stands alone, and is meant for paper: the computed style of
// every part is written into it, in light colours whatever the page shows.
const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"];

function saveDrawing(name, drawing) {
  const copy = drawing.cloneNode(true);
  for (const part of copy.querySelectorAll("[data-screen-only]")) part.remove();
  const holder = element("div", { class: "for-paper" });
  holder.append(copy);
  document.body.append(holder);
  for (const part of [copy, ...copy.querySelectorAll("*")]) {
    const style = getComputedStyle(part);
    const values = KEPT.map((key) => `${key}:${style.getPropertyValue(key)}`);
    part.setAttribute("style", values.join(";"));
  }
  holder.remove();
  copy.prepend(shape("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  save(name, "image/svg+xml", new XMLSerializer().serializeToString(copy));
}

// Buttons that save a drawing and its numbers; `rows` is called when they are wanted.
function saveButtons(stem, drawing, rows) {
  const svg = element("button", { type: "button", "aria-label": `Save ${stem} as SVG` }, "SVG");
  const data = element("button", { type: "button", "aria-label": `Save the data of ${stem} as CSV` }, "CSV");
  svg.addEventListener("click", () => saveDrawing(`${stem}.svg`, drawing()));
  data.addEventListener("click", () => save(`${stem}.csv`, "text/csv", csv(rows())));
  return element("span", { class: "buttons" }, svg, data);
}
