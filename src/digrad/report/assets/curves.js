// The curves: one figure per column of the traces, all over the same horizontal axis.

const MARGIN = { left: 62, right: 14, top: 10, bottom: 40 };
const TALL = 260;

function horizontalScale(data, hidden) {
  const axis = view.get("x"), wanted = view.get("xscale");
  const ends = data.series.filter((one) => !hidden.has(one.number)).map((one) => across(one, axis));
  const finite = ends.flat().filter((value) => value != null);
  const last = finite.length ? largest(finite) : 1;
  const positive = finite.filter((value) => value > 0);
  const unit = positive.length ? smallest(positive) : 1;
  const shortest = smallest(ends.map((one) => one[one.length - 1] ?? 0));
  // A run that ends within a few pixels of the start would be a vertical line.
  const isLog = wanted === "log" || (wanted === "auto" && shortest > 0 && shortest < last / 50);
  const from = view.get("from") === "" ? 0 : Number(view.get("from"));
  const to = view.get("to") === "" ? last : Number(view.get("to"));
  return isLog ? symlogScale(from, to, unit) : linearScale(from, to);
}

function buildCurves(data, home) {
  const figures = data.metrics.map((metric, number) => curveFigure(data, metric, `clip-${number}`));
  home.append(...figures.map((figure) => figure.root));
  let isDue = false;
  const draw = () => {
    isDue = false;
    const hidden = hiddenSeries(data);
    const scale = horizontalScale(data, hidden);
    for (const figure of figures) figure.draw(hidden, scale);
  };
  const later = () => {
    if (!isDue) requestAnimationFrame(draw);
    isDue = true;
  };
  new ResizeObserver(later).observe(home);
  view.follow(draw);
}

function curveFigure(data, metric, clip) {
  const drawing = shape("svg", { class: "chart", tabindex: 0, role: "img",
    "aria-label": `${metric.title}: arrow keys move the reading line, + looks closer, - shows all` });
  const reading = element("div", { class: "reading", "aria-live": "polite", hidden: true });
  const state = { curves: [], scale: null, values: null, width: 0 };
  const title = element("span", {}, element("strong", {}, metric.title), metric.what ? ` — ${metric.what}` : "");
  const buttons = saveButtons(metric.key, () => drawing, () => curveRows(data, metric));
  const frame = element("div", { class: "frame" }, drawing, reading);
  const root = element("figure", { class: "curve", id: `curve-${metric.key}` },
    element("figcaption", {}, title, buttons), frame);

  function draw(hidden, scale) {
    state.scale = scale;
    state.width = Math.max(240, Math.round(frame.clientWidth));
    state.curves = data.series
      .filter((series) => !hidden.has(series.number) && metric.key in series.columns)
      .map((series) => curveOf(series, metric, scale));
    const minimum = metric.key === "loss" ? commonMinimum(data, state.curves) : null;
    const seen = state.curves.map((curve) => ({ values: allValues(curve), diverged: curve.series.verdict === "diverged" }));
    state.values = valueScale(seen, view.get("yscale"), metric.log, minimum == null ? [] : [minimum]);
    const isVisible = minimum != null && Number.isFinite(state.values.place(minimum));
    paint(drawing, state, clip, isVisible ? minimum : null, axisTitle(data));
    stopReading(drawing, reading);
  }

  followReading(drawing, reading, state);
  selectRange(drawing, state);
  return { root, draw };
}

// What is drawn of a series: the rows within the axis that have a value.
function curveOf(series, metric, scale) {
  const x = across(series, view.get("x")), band = series.columns[metric.key];
  const rows = [];
  band.median.forEach((value, row) => {
    const place = x[row] == null ? NaN : scale.place(x[row]);
    if (value != null && isInside(place)) rows.push(row);
  });
  return { series, metric, x: rows.map((row) => x[row]), values: rows.map((row) => band.median[row]),
    low: band.low && rows.map((row) => band.low[row]), high: band.high && rows.map((row) => band.high[row]) };
}

function isInside(place) {
  return place >= -1e-9 && place <= 1 + 1e-9;
}

// A band belongs to its curve; of a method that diverged only the median counts, or it would squash the others.
function allValues({ values, low, high, series }) {
  if (!low || series.verdict === "diverged") return values;
  return [...values, ...low.filter((value) => value != null), ...high.filter((value) => value != null)];
}

function commonMinimum(data, curves) {
  const found = new Set(curves.map(({ series }) => data.runs[series.run].minimum));
  return found.size === 1 ? [...found][0] : null;
}

function axisTitle(data) {
  return data.axes.find((axis) => axis.key === view.get("x"))?.title ?? view.get("x");
}

function buildRemark(data, home) {
  const thinned = data.series.filter((series) => series.recorded > series.k.length);
  if (!thinned.length) return;
  const most = thinned.reduce((a, b) => (a.recorded > b.recorded ? a : b));
  home.append(`Of ${most.recorded} recorded rows this page holds ${most.k.length} (${most.title}): those with the ` +
    "smallest and the largest value of every stretch, of every curve.");
}

function paint(drawing, state, clip, minimum, xTitle) {
  const { width, scale, values } = state;
  const inner = { width: width - MARGIN.left - MARGIN.right, height: TALL - MARGIN.top - MARGIN.bottom };
  state.toX = (value) => MARGIN.left + scale.place(value) * inner.width;
  state.toY = (value) => MARGIN.top + (1 - values.place(value)) * inner.height;
  state.inner = inner;
  drawing.setAttribute("viewBox", `0 0 ${width} ${TALL}`);
  drawing.setAttribute("width", width);
  drawing.setAttribute("height", TALL);
  drawing.replaceChildren(
    shape("defs", {}, shape("clipPath", { id: clip },
      shape("rect", { x: MARGIN.left, y: MARGIN.top, width: inner.width, height: inner.height }))),
    axes(state, xTitle),
    shape("g", { "clip-path": `url(#${clip})` }, ...(minimum == null ? [] : [minimumLine(state, minimum)]),
      ...state.curves.flatMap((curve) => lines(state, curve))),
    ...(minimum == null ? [] : [minimumText(state, minimum)]),
    ...state.curves.filter(({ series }) => series.verdict === "diverged").map((curve) => cross(state, curve)),
  );
}

function axes({ scale, values, toX, toY, inner }, xTitle) {
  const bottom = MARGIN.top + inner.height, right = MARGIN.left + inner.width;
  const parts = [];
  for (const tick of values.ticks(6)) {
    const y = toY(tick);
    if (!(y >= MARGIN.top - 1 && y <= bottom + 1)) continue;
    parts.push(shape("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: "grid" }),
      shape("text", { x: MARGIN.left - 6, y: y + 4, class: "tick end" }, tickText(tick)));
  }
  let taken = -Infinity;
  for (const tick of scale.ticks(Math.max(2, Math.floor(inner.width / 90)))) {
    if (view.get("x") === "k" && !Number.isInteger(tick)) continue; // there is no iteration 0.5
    const x = toX(tick), text = tickText(tick), half = 3.4 * text.length;
    if (!(x >= MARGIN.left - 1 && x <= right + 1) || x - half < taken) continue;
    taken = x + half + 4;
    parts.push(shape("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "axis" }),
      shape("text", { x: Math.min(x, right - half + 8), y: bottom + 17, class: "tick middle" }, text));
  }
  parts.push(shape("path", { d: `M${MARGIN.left} ${MARGIN.top}V${bottom}H${right}`, class: "axis" }),
    shape("text", { x: MARGIN.left + inner.width / 2, y: TALL - 5, class: "tick middle" }, xTitle));
  return shape("g", {}, ...parts);
}

function minimumLine({ toY, inner }, minimum) {
  const y = toY(minimum);
  return shape("line", { x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y, y2: y, class: "minimum" });
}

function minimumText({ toY, inner }, minimum) {
  const y = toY(minimum);
  const label = `F* = ${figureOf(minimum)}`;
  return shape("text", { x: MARGIN.left + inner.width - 4, y: y - 5, class: "tick end minimum-text" }, label);
}

function lines(state, curve) {
  const { series, x, values, low, high } = curve;
  const points = x.map((at, i) => [state.toX(at), state.toY(values[i])]);
  const parts = [];
  if (low && low.length) {
    const above = x.map((at, i) => [state.toX(at), clamped(state.toY(high[i] ?? values[i]))]);
    const below = x.map((at, i) => [state.toX(at), clamped(state.toY(low[i] ?? values[i]))]).reverse();
    parts.push(shape("path", { d: `${pathOf([...above, ...below])}Z`, class: `band fill${series.colour}` }));
  }
  parts.push(shape("path", { d: pathOf(points), class: `line colour${series.colour}`,
    "stroke-dasharray": series.dash, "data-series": series.number }));
  return parts;
}

// On a logarithmic axis zero lies infinitely far below.
function clamped(y) {
  return Number.isFinite(y) ? Math.max(-TALL, Math.min(2 * TALL, y)) : 2 * TALL;
}

function pathOf(points) {
  let isOpen = false, path = "";
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) {
      isOpen = false; // a value that the axis cannot show leaves a gap
      continue;
    }
    path += `${isOpen ? "L" : "M"}${x.toFixed(1)} ${clamped(y).toFixed(1)}`;
    isOpen = true;
  }
  return path || "M0 0";
}

// At the iteration of the divergence, even where nothing finite is known of it; none if that is outside the axis.
function cross(state, { series, metric }) {
  const found = series.k.findIndex((k) => k >= series.diverged_at), row = found < 0 ? series.k.length - 1 : found;
  const x = across(series, view.get("x"))[row], value = series.columns[metric.key].median[row];
  if (x == null || !isInside(state.scale.place(x))) return shape("g");
  const at = state.toX(x), highest = MARGIN.top + 6, lowest = TALL - MARGIN.bottom;
  const height = value == null ? highest : state.toY(value);
  const y = Number.isFinite(height) ? Math.max(highest, Math.min(lowest, height)) : lowest;
  return shape("path", { d: `M${at - 5} ${y - 5}l10 10m0 -10l-10 10`, class: `cross colour${series.colour}`,
    "data-diverged": series.number }, shape("title", {}, `${series.title}: ${verdictOf(series)}`));
}

function curveRows(data, metric) {
  const hidden = hiddenSeries(data), axis = view.get("x");
  const head = ["run", "method", "k", ...(axis === "k" ? [] : [axis]), metric.key, "smallest", "largest"];
  const rows = [head];
  for (const series of data.series) {
    if (hidden.has(series.number) || !(metric.key in series.columns)) continue;
    const band = series.columns[metric.key], x = across(series, axis);
    series.k.forEach((k, row) => rows.push([data.runs[series.run].name, series.shown, k,
      ...(axis === "k" ? [] : [x[row]]), band.median[row], band.low?.[row] ?? "", band.high?.[row] ?? ""]));
  }
  return rows;
}
