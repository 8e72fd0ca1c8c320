// Problems in two dimensions: contour lines of F, and the agents on their way, as an animation one can scrub.

const PLANE = { width: 560, height: 460, left: 52, bottom: 34, top: 8, right: 8 };
const FRAMES_PER_SECOND = 24;
const SECONDS = 8; // that a whole run takes to play
const LEVELS = 14;

function buildPlane(data, runNumber, home, stem) {
  const run = data.runs[runNumber];
  const shown = data.series.filter((series) => series.run === runNumber && "x[0][0]" in series.columns);
  if (!run.plane || !shown.length) return;
  const [low, high] = [run.plane.across, run.plane.up];
  const toX = (x) => PLANE.left + ((x - low[0]) / (low[1] - low[0])) * (PLANE.width - PLANE.left - PLANE.right);
  const toY = (y) => PLANE.height - PLANE.bottom - ((y - high[0]) / (high[1] - high[0])) * (PLANE.height - PLANE.bottom - PLANE.top);
  const clip = `clip-${stem}`;
  const moving = shape("g", { "clip-path": `url(#${clip})` });
  const drawing = shape("svg", { class: "chart", viewBox: `0 0 ${PLANE.width} ${PLANE.height}`, role: "img",
    "aria-label": "Contour lines of F and the ways of the agents" },
    shape("defs", {}, shape("clipPath", { id: clip }, frameOf())), planeAxes(run.plane, toX, toY),
    shape("g", { "clip-path": `url(#${clip})` }, ...contours(run.plane, toX, toY)),
    ...(run.best ? [star(toX(run.best[0]), toY(run.best[1]))] : []), moving);
  const status = element("output", { class: "status" });
  const select = element("select", {}, ...shown.map((series) => element("option", { value: series.number }, series.shown)));
  const scrubber = element("input", { type: "range", min: 0, step: 1, "aria-label": "iteration" });
  const play = element("button", { type: "button", class: "play" }, "Play");
  let paths = [], series = null, timer = 0;

  const draw = () => {
    const row = Number(scrubber.value);
    moving.replaceChildren(...paths.flatMap((path) => trail(path, row, series, toX, toY)));
    status.textContent = `k = ${series.k[row]}` + (series.verdict === "diverged" && row === paths[0].length - 1 ? `, ${verdictOf(series)}` : "");
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const keep = () => view.set({ at: scrubber.value === scrubber.max ? "" : scrubber.value });
  const choose = () => {
    stop();
    const wanted = shown.find((one) => String(one.number) === view.get("plane"));
    series = wanted ?? shown[0];
    select.value = String(series.number);
    paths = pathsOf(series);
    scrubber.max = series.k.length - 1;
    scrubber.value = view.get("at") || scrubber.max;
    draw();
  };
  play.addEventListener("click", () => {
    if (timer) return stop(), keep();
    const last = Number(scrubber.max), stride = Math.max(1, Math.round(last / (FRAMES_PER_SECOND * SECONDS)));
    if (Number(scrubber.value) >= last) scrubber.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      scrubber.value = Math.min(last, Number(scrubber.value) + stride);
      draw();
      if (Number(scrubber.value) >= last) stop(), keep();
    }, 1000 / FRAMES_PER_SECOND);
  });
  scrubber.addEventListener("input", () => {
    stop();
    draw();
  });
  scrubber.addEventListener("change", keep);
  select.addEventListener("change", () => view.set({ plane: select.value, at: "" }));
  const rows = () => [["k", "agent", "x1", "x2"], ...series.k.flatMap((k, row) => paths.map((path, agent) => [k, agent, ...path[row]]))];
  home.append(element("figure", { class: "plane" }, element("figcaption", {},
    element("span", {}, shown.some((one) => one.seeds > 1) ? "Contour lines of F, and the path of every agent, with the first seed" :
      "Contour lines of F, and the path of every agent"), saveButtons(stem, () => drawing, rows)),
    drawing, element("div", { class: "controls" }, element("label", {}, "Method ", select), play, scrubber, status)));
  let drawn = null;
  view.follow(() => {
    const wanted = `${view.get("plane")} ${view.get("at")}`;
    if (wanted !== drawn) choose();
    drawn = wanted;
  });
}

function pathsOf(series) {
  const paths = [];
  for (let agent = 0; `x[${agent}][0]` in series.columns; agent++) {
    const [first, second] = [0, 1].map((entry) => series.columns[`x[${agent}][${entry}]`].median);
    paths.push(first.map((x, row) => [x, second[row]]));
  }
  return paths;
}

function trail(path, row, series, toX, toY) {
  const far = (value) => Math.max(-1e4, Math.min(1e4, value));
  const points = path.slice(0, row + 1).filter(([x, y]) => x != null && y != null).map(([x, y]) => [far(toX(x)), far(toY(y))]);
  if (!points.length) return [];
  const [x, y] = points[points.length - 1];
  return [shape("polyline", { points: points.map((point) => point.map((one) => one.toFixed(1)).join()).join(" "), class: `trail colour${series.colour}` }),
    shape("circle", { cx: x, cy: y, r: 4.5, class: `fill${series.colour} agent-dot` })];
}

function frameOf() {
  return shape("rect", { x: PLANE.left, y: PLANE.top, width: PLANE.width - PLANE.left - PLANE.right,
    height: PLANE.height - PLANE.top - PLANE.bottom, class: "plane" });
}

function planeAxes(plane, toX, toY) {
  const bottom = PLANE.height - PLANE.bottom;
  const across = roundTicks(...plane.across, 6).map((tick) => shape("text", { x: toX(tick), y: bottom + 16, class: "tick middle" }, tickText(tick)));
  const up = roundTicks(...plane.up, 6).map((tick) => shape("text", { x: PLANE.left - 6, y: toY(tick) + 4, class: "tick end" }, tickText(tick)));
  return shape("g", {}, frameOf(), ...across, ...up);
}

function star(x, y) {
  const points = Array.from({ length: 10 }, (_, corner) => {
    const angle = -Math.PI / 2 + (corner * Math.PI) / 5, reach = corner % 2 ? 3.5 : 8;
    return `${(x + reach * Math.cos(angle)).toFixed(1)},${(y + reach * Math.sin(angle)).toFixed(1)}`;
  });
  return shape("polygon", { points: points.join(" "), class: "star" }, shape("title", {}, "the minimum"));
}

// Levels closer together near the minimum, where the agents end: equal steps of the fourth root.
function contours(plane, toX, toY) {
  const values = plane.values.flat().filter((value) => value != null);
  const low = smallest(values), span = largest(values) - low;
  return Array.from({ length: LEVELS }, (_, i) => low + span * ((i + 1) / (LEVELS + 1)) ** 4)
    .map((level) => shape("path", { d: contour(plane, level, toX, toY), class: "contour" }, shape("title", {}, `F = ${figureOf(level)}`)));
}

// Marching squares: in every cell of the grid, the straight pieces between the places where its sides cross the level.
function contour(plane, level, toX, toY) {
  const rows = plane.values.length, columns = plane.values[0].length;
  const at = ([from, to], place, count) => from + ((to - from) * place) / (count - 1);
  const point = (x, y) => `${toX(at(plane.across, x, columns)).toFixed(1)} ${toY(at(plane.up, y, rows)).toFixed(1)}`;
  const pieces = [];
  for (let y = 0; y + 1 < rows; y++)
    for (let x = 0; x + 1 < columns; x++) {
      const corners = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]];
      const heights = corners.map(([i, j]) => plane.values[j][i]);
      if (heights.includes(null)) continue;
      const crossings = [];
      for (let side = 0; side < 4; side++) {
        const [a, b] = [heights[side], heights[(side + 1) % 4]];
        if (a < level === b < level) continue;
        const share = (level - a) / (b - a), [from, to] = [corners[side], corners[(side + 1) % 4]];
        crossings.push(point(from[0] + share * (to[0] - from[0]), from[1] + share * (to[1] - from[1])));
      }
      for (let i = 0; i + 1 < crossings.length; i += 2) pieces.push(`M${crossings[i]}L${crossings[i + 1]}`);
    }
  return pieces.join("") || "M0 0";
}
