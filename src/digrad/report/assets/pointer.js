// Reading values off a figure, with the pointer or the arrow keys, and selecting a part of the axis.

function followReading(drawing, reading, state) {
  let place = null; // of the reading line, as a fraction of the axis
  const show = (fraction) => {
    place = state.place = Math.max(0, Math.min(1, fraction));
    showReading(drawing, reading, state, place);
  };
  drawing.addEventListener("pointermove", (event) => show(fractionAt(drawing, state, event)));
  drawing.addEventListener("pointerleave", () => stopReading(drawing, reading));
  drawing.addEventListener("blur", () => stopReading(drawing, reading));
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") stopReading(drawing, reading);
    if (step === undefined) return;
    event.preventDefault();
    show(nextPlace(state, place ?? (step > 0 ? -0.01 : 1.01), step));
  });
}

function fractionAt(drawing, state, event) {
  const box = drawing.getBoundingClientRect();
  return (event.clientX - box.left - MARGIN.left) / state.inner.width;
}

// The next row of any curve to the left or right; steps are at least two pixels, or a key would seem dead.
function nextPlace(state, place, step) {
  if (!Number.isFinite(step)) return step > 0 ? 1 : 0;
  const least = 2 / state.inner.width;
  const places = state.curves.flatMap((curve) => curve.x.map((value) => state.scale.place(value)));
  const ahead = places.filter((one) => (one - place) * step >= least);
  if (!ahead.length) return step > 0 ? 1 : 0;
  return step > 0 ? smallest(ahead) : largest(ahead);
}

function showReading(drawing, reading, state, place) {
  drawing.querySelector(".reading-line")?.remove();
  if (!state.curves.some((curve) => curve.x.length)) return;
  const at = state.scale.value(place);
  const found = state.curves.filter((curve) => curve.x.length).map((curve) => ({ curve, row: nearest(curve.x, at, state.scale) }));
  const closest = found.reduce((a, b) => (away(a, place, state) <= away(b, place, state) ? a : b));
  const x = closest.curve.x[closest.row], left = state.toX(x);
  const marks = found.map(({ curve, row }) => shape("circle", { cx: state.toX(curve.x[row]),
    cy: clamped(state.toY(curve.values[row])), r: 3, class: `fill${curve.series.colour}` }));
  drawing.append(shape("g", { class: "reading-line", "data-screen-only": "" },
    shape("line", { x1: left, x2: left, y1: MARGIN.top, y2: TALL - MARGIN.bottom, class: "cursor" }), ...marks));
  const rows = found.map(({ curve, row }) => element("tr", {}, element("td", {}, swatch(curve.series)),
    element("td", {}, curve.series.title), element("td", { class: "number" }, readingOf(curve, row)),
    element("td", { class: "faint" }, curve.x[row] === x ? "" : `at ${amount(curve.x[row])}`)));
  reading.replaceChildren(element("p", {}, `${view.get("x") === "k" ? "k = " : ""}${amount(x)}`),
    element("table", {}, ...rows));
  reading.hidden = false;
  const isLeft = left > state.width / 2;
  reading.style.left = isLeft ? "" : `${left + 12}px`;
  reading.style.right = isLeft ? `${state.width - left + 12}px` : "";
}

function away({ curve, row }, place, { scale }) {
  return Math.abs(scale.place(curve.x[row]) - place);
}

function readingOf({ values, low, high }, row) {
  const spread = low ? ` [${figureOf(low[row])}, ${figureOf(high[row])}]` : "";
  return figureOf(values[row]) + spread;
}

function amount(value) {
  return view.get("x") === "bytes_sent" ? bytesOf(value) : figureOf(value);
}

function stopReading(drawing, reading) {
  reading.hidden = true;
  drawing.querySelector(".reading-line")?.remove();
}

function nearest(sorted, value, scale) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle;
  }
  const place = scale.place(value);
  return Math.abs(scale.place(sorted[low]) - place) <= Math.abs(scale.place(sorted[high]) - place) ? low : high;
}

// Dragging across a figure shows that part of the axis, in every figure, and so does + around the reading line; a double
// click or - shows all of it again.
function selectRange(drawing, state) {
  let began = null;
  drawing.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) began = fractionAt(drawing, state, event);
  });
  drawing.addEventListener("pointerup", (event) => {
    if (began === null) return;
    const ends = [began, fractionAt(drawing, state, event)].map((end) => Math.max(0, Math.min(1, end)));
    began = null;
    if (Math.abs(ends[0] - ends[1]) < 0.02) return; // a click
    show(ends.sort((a, b) => a - b));
  });
  const show = (ends) => {
    const [from, to] = ends.map((end) => String(Number(state.scale.value(end).toPrecision(6))));
    view.set({ from, to });
  };
  const showAll = () => view.set({ from: "", to: "" });
  drawing.addEventListener("dblclick", showAll);
  drawing.addEventListener("keydown", (event) => {
    const middle = Math.max(0.25, Math.min(0.75, state.place ?? 0.25));
    if (event.key === "+") show([middle - 0.25, middle + 0.25]);
    if (event.key === "-") showAll();
  });
}
