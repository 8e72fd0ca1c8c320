// Axes: from values to the length of a screen and back, and where their ticks are. `place` and `value` work on
// fractions of the axis, from 0 at its low end to 1 at its high end.

const NEGLIGIBLE = 1e-5; // an initial value below this part of what most calm curves reach is a rounding error, no scale
const EXPLOSION = 1e3; // a value this many times the largest initial one is left outside the axes

function linearScale(low, high) {
  const width = high - low || 1;
  return {
    kind: "linear",
    place: (value) => (value - low) / width,
    value: (place) => low + place * width,
    ticks: (count) => roundTicks(low, high, count),
  };
}

function logScale(low, high) {
  const first = Math.log10(low), width = Math.log10(high) - first || 1;
  return {
    kind: "log",
    place: (value) => (value > 0 ? (Math.log10(value) - first) / width : NaN),
    value: (place) => 10 ** (first + place * width),
    ticks: (count) => decadeTicks(low, high, count),
  };
}

// Logarithmic beyond `unit` on both sides of zero, which it shows: the first iterations, and values of both signs.
function symlogScale(low, high, unit) {
  const bend = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / unit);
  const first = bend(low), width = bend(high) - first || 1;
  return {
    kind: "symlog",
    place: (value) => (bend(value) - first) / width,
    value: (place) => {
      const bent = first + place * width;
      return Math.sign(bent) * unit * (10 ** Math.abs(bent) - 1);
    },
    ticks: (count) => {
      const positive = high > 0 ? decadeTicks(Math.max(unit, low), high, count) : [];
      const negative = low < 0 ? decadeTicks(Math.max(unit, -high), -low, count).map((tick) => -tick) : [];
      const zero = low <= 0 && high >= 0 ? [0] : [];
      return [...negative.reverse(), ...zero, ...positive];
    },
  };
}

function roundTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough) ?? rough;
  const ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high + step * 1e-9; place++)
    ticks.push(Number((place * step).toPrecision(12)));
  return ticks;
}

function decadeTicks(low, high, count) {
  const first = Math.log10(low), last = Math.log10(high);
  if (last - first < 1.2) {
    const ticks = roundTicks(low, high, count).filter((tick) => tick > 0);
    if (last - first < 0.7) return ticks;
  }
  const digits = last - first < count / 3 ? [1, 2, 5] : [1];
  const stride = [1, 2, 5, 10, 20, 50, 100].find((size) => (last - first) / size <= count) ?? 200;
  const ticks = [];
  for (let decade = Math.floor(first); decade <= last; decade++) {
    if (decade % stride) continue;
    for (const digit of digits) {
      const tick = Number(`${digit}e${decade}`);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
    }
  }
  return ticks;
}

function tickText(value) {
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(6)));
  const power = Math.floor(Math.log10(size) + 1e-9);
  const digit = Number((value / 10 ** power).toPrecision(4));
  const raised = [...String(power)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
  return digit === 1 ? `10${raised}` : digit === -1 ? `−10${raised}` : `${digit}·10${raised}`;
}

// The scale of the values of several curves, each `{values, diverged}`. An explosion must not squash what it is
// compared with: where nothing is negative, values beyond a thousand times the largest initial one stay outside, unless
// all curves explode.
function valueScale(curves, wanted, allowLog, extra = []) {
  const drawn = curves.filter((curve) => curve.values.length);
  const all = drawn.flatMap((curve) => curve.values);
  if (!all.length) return linearScale(0, 1);
  const [low, high] = shownRange(drawn, all);
  const seen = [...all.filter((value) => value >= low && value <= high), ...extra];
  const least = smallest(seen), most = largest(seen);
  const positive = seen.filter((value) => value > 0);
  const deserved = allowLog && smallest(all) >= 0 && positive.length && most / 10 >= smallest(positive);
  if (positive.length && (wanted === "log" || (wanted === "auto" && deserved))) {
    const first = Math.log10(smallest(positive)), last = Math.log10(largest(positive));
    const margin = 0.05 * (last - first) || 0.3;
    return logScale(10 ** Math.max(first - margin, -305), 10 ** Math.min(last + margin, 305));
  }
  const margin = 0.05 * (most - least || Math.abs(most) || 1);
  if (wanted === "symlog") {
    const sizes = seen.map(Math.abs).filter((value) => value > 0);
    const unit = Math.max(sizes.length ? smallest(sizes) : 1, largest(sizes.length ? sizes : [1]) * 1e-12);
    return symlogScale(Math.min(0, least), Math.max(0, most) * 1.2 || 1, unit);
  }
  return linearScale(least - margin, most + margin);
}

function shownRange(curves, all) {
  const calm = curves.filter((curve) => !curve.diverged);
  if (!calm.length) return [smallest(all), largest(all)]; // nothing is squashed
  const initial = curves.map((curve) => curve.values[0]);
  const reached = calm.map((curve) => largest(curve.values)).sort((a, b) => a - b)[calm.length >> 1];
  if (smallest(all) >= 0 && largest(initial) > NEGLIGIBLE * reached) return [0, EXPLOSION * largest(initial)];
  const trusted = [...initial, ...calm.flatMap((curve) => curve.values)];
  return [smallest(trusted), largest(trusted)];
}

// Math.min(...values) overflows the stack for long arrays.
function smallest(values) {
  return values.reduce((least, value) => (value < least ? value : least), Infinity);
}

function largest(values) {
  return values.reduce((most, value) => (value > most ? value : most), -Infinity);
}
