// One curve per method: its numbers over any axis, its look, whether it is shown.

const COLOURS = 8;
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4"];
const RESERVED = { CGT: 0, AB: 1 }; // the protagonists look the same on every page

// The colour says the method, and of several runs the dashes say which; of runs of one method the colour says that.
function prepareSeries(data, times) {
  const isCompared = data.runs.length > 1, isOneMethod = new Set(data.series.map((one) => one.label)).size === 1;
  const places = new Map(Object.entries(RESERVED));
  const nameOf = (series) => (isCompared && isOneMethod ? series.run : series.label);
  for (const series of data.series) if (!places.has(nameOf(series))) places.set(nameOf(series), places.size);
  const rounds = Math.ceil(places.size / COLOURS); // how often the colours are used
  data.series.forEach((series, number) => {
    series.number = number;
    series.seconds = times.seconds[number];
    const place = places.get(nameOf(series)), round = Math.floor(place / COLOURS);
    series.colour = place % COLOURS;
    series.dash = isCompared && !isOneMethod ? dashes(series.run * rounds + round) : dashOf(series.colour, round);
    const of = isCompared ? `${data.runs[series.run].folder}: ` : "";
    series.title = of + series.shown;
  });
}

// Colour and dash together are different for all; neighbours differ in both, for those without colour vision.
function dashOf(colour, round) {
  const first = colour < 2 ? 0 : colour;
  return round < DASHES.length ? DASHES[(first + round) % DASHES.length] : dashes(round);
}

function dashes(round) {
  return round < DASHES.length ? DASHES[round] : `${round} 3 1 3`;
}

// Where the rows of a series are on an axis.
function across(series, axis) {
  const per_step = {
    k: 1,
    evaluations: series.evaluations_per_step,
    seconds: series.steps ? series.seconds / series.steps : 0, // one duration is stored: all steps count the same
  }[axis];
  if (per_step !== undefined) return axis === "k" ? series.k : series.k.map((k) => k * per_step);
  if (axis !== "bytes_sent") return series.columns[axis].median;
  const sent = series.bytes_sent;
  return Array.isArray(sent) ? sent : series.k.map((k) => sent.first + k * sent.per_step);
}

function hiddenSeries(data) {
  const off = view.get("off");
  if (off === "none") return new Set();
  if (off) return new Set(off.split(",").map(Number));
  // Many runs on one axis are a tangle: they begin with the first, and the others are one click away.
  const crowded = data.runs.length > 1 && data.series.length > 12;
  return new Set(crowded ? data.series.filter((series) => series.run > 0).map((series) => series.number) : []);
}

function hide(numbers) {
  view.set({ off: numbers.size ? [...numbers].sort((a, b) => a - b).join(",") : "none" });
}

function swatch(series) {
  const line = shape("line", { x1: 1, y1: 6, x2: 27, y2: 6, class: `line colour${series.colour}`,
    "stroke-dasharray": series.dash });
  return shape("svg", { width: 28, height: 12, class: "swatch", "aria-hidden": "true" }, line);
}

function verdictOf(series) {
  const at = series.diverged_at == null ? "" : ` at k = ${series.diverged_at}`;
  return series.verdict + at;
}
