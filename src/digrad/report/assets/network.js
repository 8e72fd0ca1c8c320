// The digraph: agents on a circle with their weights on demand; many agents as a picture of dots.

const LARGEST_CIRCLE = 60; // agents
const SIZE = 420;
const LETTER = 7, LONGEST_NAME = 17; // the width of a letter, and how many of them are shown
const MOST_STOPS = 300; // of the tab key in one figure: more help nobody

function buildNetwork(network, home, stem) {
  if (!network.edges) {
    home.append(element("p", { class: "faint" }, `${network.n} agents, ${network.n_edges} one-way links: too many to draw.`));
    return;
  }
  const status = element("p", { class: "status", "aria-live": "polite" }, introduction(network));
  const drawing = network.n <= LARGEST_CIRCLE ? circleOf(network, status) : dotsOf(network, status);
  const caption = element("span", {}, `${network.n} agents, ${network.n_edges} one-way links` +
    (network.period === 1 ? "" : "; the network changes with time, and all links that ever occur are drawn"));
  home.append(element("figure", { class: "network" },
    element("figcaption", {}, caption, saveButtons(stem, () => drawing, () => edgeRows(network))), drawing, status));
}

function introduction(network) {
  return "Arrows point from sender to receiver. Point at an agent or a link, or walk through them with the tab key" +
    (network.u ? ": darker agents count more when all pull (u)." : ".");
}

function nameOf(network, agent) {
  return network.names ? network.names[agent] : String(agent);
}

function circleOf(network, status) {
  const middle = SIZE / 2, reach = SIZE / 2 - 34;
  const radius = Math.max(6, Math.min(17, (2.2 * reach) / network.n));
  const places = Array.from({ length: network.n }, (_, agent) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * agent) / network.n;
    return network.n === 1 ? [middle, middle] : [middle + reach * Math.cos(angle), middle + reach * Math.sin(angle)];
  });
  const twoWay = new Set(network.edges.map((edge) => edge.join()));
  const isQuiet = network.edges.length > MOST_STOPS;
  const links = network.edges.map(([from, to], number) => {
    const path = arrow(places[from], places[to], radius, twoWay.has(`${to},${from}`) ? 0.14 : 0);
    return described(shape("g", { class: "link", "data-from": from, "data-to": to, tabindex: isQuiet ? null : 0 },
      shape("path", { d: path.line, class: "edge" }), shape("path", { d: path.head, class: "head" }),
      shape("path", { d: path.line, class: "touch", "data-screen-only": "" })), status, linkText(network, number));
  });
  const letters = largest(places.map((_, agent) => nameOf(network, agent).length));
  const isBeside = LETTER * letters > 2 * radius; // names that no circle can hold
  const agents = places.map(([x, y], agent) => described(shape("g", { class: "agent", tabindex: 0, "data-agent": agent },
    shape("circle", { cx: x, cy: y, r: radius, style: shade(network.u, agent) }),
    isBeside ? nameBeside(network, agent, x - middle, y - middle, radius) :
      shape("text", { x, y: y + 4, class: `tick middle ${isDark(network.u, agent) ? "on-dark" : "on-light"}` },
        nameOf(network, agent))), status, agentText(network, agent)));
  const room = isBeside ? LETTER * Math.min(LONGEST_NAME, letters) : 0;
  const drawing = shape("svg", { class: isBeside ? "chart wide" : "chart", viewBox: `${-room} 0 ${SIZE + 2 * room} ${SIZE}`, role: "group" },
    ...links, ...agents);
  for (const one of agents) highlight(drawing, one, links);
  return drawing;
}

// A name outside of the circle of agents, which are `right` and `down` of its middle.
function nameBeside(network, agent, right, down, radius) {
  const far = (Math.hypot(right, down) + radius + 8) / (Math.hypot(right, down) || 1);
  const side = Math.abs(right) < 2 * radius ? "middle" : right > 0 ? "" : "end";
  return shape("text", { x: SIZE / 2 + far * right, y: SIZE / 2 + far * down + 4, class: `tick ${side}` },
    shortened(nameOf(network, agent), LONGEST_NAME));
}

// A number between 0 and 1: how dark an agent is, relative to the others.
function weightOf(weights, agent) {
  if (!weights) return 0;
  const low = smallest(weights), high = largest(weights);
  return high - low > 1e-9 * high ? (weights[agent] - low) / (high - low) : 0;
}

function shade(weights, agent) {
  const share = weightOf(weights, agent);
  const mix = (from, to) => Math.round(from + share * (to - from));
  return `fill:rgb(${mix(222, 0)},${mix(235, 69)},${mix(247, 110)})`;
}

function isDark(weights, agent) {
  return weightOf(weights, agent) > 0.5;
}

function arrow([x1, y1], [x2, y2], radius, bend) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const middle = [(x1 + x2) / 2 + bend * (y2 - y1), (y1 + y2) / 2 - bend * (x2 - x1)];
  const toward = (from, to, distance) => {
    const size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
    return [from[0] + ((to[0] - from[0]) * distance) / size, from[1] + ((to[1] - from[1]) * distance) / size];
  };
  const target = bend ? middle : [x1, y1], source = bend ? middle : [x2, y2];
  const start = toward([x1, y1], source, radius), tip = toward([x2, y2], target, radius + 1);
  const size = Math.min(8, length / 6), back = toward(tip, target, size);
  const [dx, dy] = [(tip[0] - back[0]) / 2.2, (tip[1] - back[1]) / 2.2];
  const point = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  return {
    line: `M${point(start)}Q${point(bend ? middle : start)} ${point(back)}`,
    head: `M${point(tip)}L${point([back[0] - dy, back[1] + dx])}L${point([back[0] + dy, back[1] - dx])}Z`,
  };
}

function linkText(network, number) {
  const [from, to] = network.edges[number].map((agent) => nameOf(network, agent));
  const parts = [`${from} → ${to}`];
  if (network.R) parts.push(`R = ${figureOf(network.R[number])}, what ${to} gives to the estimate of ${from}`);
  if (network.C) parts.push(`C = ${figureOf(network.C[number])}, the share of its tracker that ${from} passes to ${to}`);
  return parts.join("; ") + ".";
}

function agentText(network, agent) {
  const names = (agents) => agents.map((one) => nameOf(network, one)).join(", ") || "nobody";
  const senders = network.edges.filter(([, to]) => to === agent).map(([from]) => from);
  const receivers = network.edges.filter(([from]) => from === agent).map(([, to]) => to);
  const own = (letter) => (network[`${letter}_self`] ? `, keeps ${letter} = ${figureOf(network[`${letter}_self`][agent])}` : "");
  const vector = (letter) => (network[letter] ? `; ${letter} = ${figureOf(network[letter][agent])}` : "");
  return `Agent ${nameOf(network, agent)} receives from ${names(senders)}${own("R")}; sends to ${names(receivers)}${own("C")}` +
    `${vector("u")}${vector("v")}.`;
}

function described(node, status, text) {
  const show = () => (status.textContent = text);
  node.append(shape("title", {}, text));
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, show);
  return node;
}

function highlight(drawing, node, links) {
  const agent = node.dataset.agent;
  const own = links.filter((link) => link.dataset.from === agent || link.dataset.to === agent);
  const mark = (isOn) => () => {
    drawing.classList.toggle("some", isOn);
    for (const link of own) link.classList.toggle("own", isOn);
  };
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, mark(true));
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, mark(false));
}

function dotsOf(network, status) {
  const cell = (SIZE - 40) / network.n, side = Math.max(0.7, cell * 0.9);
  const path = network.edges.map(([from, to]) => `M${(30 + from * cell).toFixed(2)} ${(10 + to * cell).toFixed(2)}h${side}v${side}h-${side}z`);
  status.textContent = "One dot per link, at its place in the mixing matrices: sender across, receiver down. Point at a dot, " +
    "or walk through the agents with the arrow keys.";
  const drawing = shape("svg", { class: "chart", viewBox: `0 0 ${SIZE} ${SIZE}`, tabindex: 0, role: "img",
    "aria-label": "Links as dots: arrow keys walk through the agents" },
    shape("rect", { x: 30, y: 10, width: cell * network.n, height: cell * network.n, class: "plane" }),
    shape("path", { d: path.join(""), class: "fill1" }),
    shape("text", { x: 30 + (cell * network.n) / 2, y: SIZE - 8, class: "tick middle" }, "sender"),
    shape("text", { x: 14, y: SIZE / 2, class: "tick middle", transform: `rotate(-90 14 ${SIZE / 2})` }, "receiver"));
  readDots(network, drawing, status, cell);
  return drawing;
}

function readDots(network, drawing, status, cell) {
  const numbers = new Map(network.edges.map((edge, number) => [edge.join(), number]));
  const mark = shape("rect", { class: "dot-mark", "data-screen-only": "" });
  const show = (text, x, y, width, height) => {
    status.textContent = text;
    for (const [key, value] of Object.entries({ x, y, width, height })) mark.setAttribute(key, value);
    drawing.append(mark);
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect(), scale = SIZE / box.width;
    const from = Math.floor(((event.clientX - box.left) * scale - 30) / cell);
    const to = Math.floor(((event.clientY - box.top) * scale - 10) / cell);
    const number = numbers.get(`${from},${to}`);
    if (number !== undefined) show(linkText(network, number), 30 + from * cell, 10 + to * cell, cell, cell);
  });
  let agent = -1;
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    agent = Math.max(0, Math.min(network.n - 1, agent + step));
    show(agentText(network, agent), 30, 10 + agent * cell, cell * network.n, cell); // its row: its in-neighbours
  });
}

function edgeRows(network) {
  return [["sender", "receiver", "R", "C"], ...network.edges.map(([from, to], number) =>
    [nameOf(network, from), nameOf(network, to), network.R?.[number], network.C?.[number]])];
}
