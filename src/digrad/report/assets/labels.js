// How differently the agents' data are: one bar per agent, split by label.

const BAR = 18, GAP = 5;
const WIDEST = 220; // room for a name; the bar tells a longer one

function buildLabels(labels, names, home, stem) {
  const nameOfRow = (agent) => (names ? names[agent] : `agent ${agent}`);
  const letters = largest(labels.counts.map((_, agent) => nameOfRow(agent).length));
  // As wide as there is room, so that letters keep their size on a phone.
  const width = Math.min(640, home.clientWidth || 640), left = Math.min(WIDEST, 24 + 7 * letters), right = 70;
  const most = largest(labels.counts.map((row) => row.reduce((sum, count) => sum + count, 0)));
  const status = element("p", { class: "status", "aria-live": "polite" },
    "How many samples of each label every agent has. Point at a part to read it, or walk through them with the tab key.");
  const isQuiet = labels.counts.flat().filter(Boolean).length > MOST_STOPS;
  const tall = labels.counts.length * (BAR + GAP) + GAP;
  const drawing = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${tall}`, role: "group" });
  labels.counts.forEach((counts, agent) => {
    const y = GAP + agent * (BAR + GAP), name = nameOfRow(agent);
    const total = counts.reduce((sum, count) => sum + count, 0);
    let x = left;
    drawing.append(shape("text", { x: left - 8, y: y + BAR - 5, class: "tick end" },
      shortened(name, (left - 24) / 7), shape("title", {}, name)));
    counts.forEach((count, label) => {
      if (!count) return;
      const length = ((width - left - right) * count) / most;
      const text = `${name}: ${count} of ${total} samples (${((100 * count) / total).toFixed(1)} %) have label ${labels.names[label]}.`;
      drawing.append(described(shape("rect", { x: x.toFixed(1), y, width: length.toFixed(1), height: BAR,
        class: "label-part",
        tabindex: isQuiet ? null : 0, style: labelShade(label, labels.names.length) }), status, text));
      x += length;
    });
    drawing.append(shape("text", { x: x + 6, y: y + BAR - 5, class: "tick" }, String(total)));
  });
  const key = element("p", { class: "entries" }, ...labels.names.map((name, label) => element("span", { class: "entry" },
    shape("svg", { width: 14, height: 14, class: "swatch" },
      shape("rect", { width: 14, height: 14, class: "label-part", style: labelShade(label, labels.names.length) })),
    `label ${name}`)));
  const rows = () => [["agent", ...labels.names], ...labels.counts.map((row, agent) => [agent, ...row])];
  home.append(element("figure", { class: "labels" }, element("figcaption", {}, element("span", {}, "Samples of each label, agent by agent"),
    saveButtons(stem, () => drawing, rows)), drawing, key, status));
}

// From dark blue to light yellow, in order of lightness, which no colour blindness takes away.
const LIGHTNESS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

function labelShade(label, count) {
  const place = count === 1 ? 0 : (label / (count - 1)) * (LIGHTNESS.length - 1);
  const first = Math.min(LIGHTNESS.length - 2, Math.floor(place));
  const mixed = LIGHTNESS[first].map((one, i) => Math.round(one + (place - first) * (LIGHTNESS[first + 1][i] - one)));
  return `fill:rgb(${mixed.join(",")})`;
}
