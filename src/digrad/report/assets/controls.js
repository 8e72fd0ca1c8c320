// What the reader can change: axes, scales, which curves, the look of the page.

function buildControls(data, home) {
  const scales = [["auto", "automatic"], ["linear", "linear"], ["log", "logarithmic"]];
  home.append(
    choice("x", "Over", data.axes.map((axis) => [axis.key, axis.title]), { from: "", to: "" }),
    choice("xscale", "Horizontal axis", scales, { from: "", to: "" }),
    choice("yscale", "Vertical axis", [...scales, ["symlog", "both signs, logarithmic"]]),
    element("button", { type: "button", id: "reset", onclick: () => view.reset() }, "Reset the view"),
  );
}

function choice(key, title, options, others = {}) {
  const select = element("select", { id: `choose-${key}` },
    ...options.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", () => view.set({ [key]: select.value, ...others }));
  const show = () => {
    select.value = view.get(key);
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  };
  view.follow(show);
  return element("label", {}, `${title} `, select);
}

function buildLegend(data, home) {
  const boxes = new Map();
  const groups = data.runs.map((run, number) => {
    const members = data.series.filter((series) => series.run === number);
    const entries = members.map((series) => entry(data, series, boxes));
    if (data.runs.length === 1) return element("div", { class: "entries" }, ...entries);
    return element("fieldset", {}, element("legend", {}, whole(data, members, `${run.folder}: ${run.name}`)),
      element("div", { class: "entries" }, ...entries));
  });
  const all = element("button", { type: "button", id: "show-all", onclick: () => hide(new Set()) }, "Show all");
  home.append(...groups, ...(data.series.length > 1 ? [all] : []));
  const show = () => {
    const hidden = hiddenSeries(data);
    for (const [number, box] of boxes) box.checked = !hidden.has(number);
  };
  view.follow(show);
}

function entry(data, series, boxes) {
  const box = element("input", { type: "checkbox", "data-series": series.number });
  box.addEventListener("change", () => {
    const hidden = hiddenSeries(data);
    if (box.checked) hidden.delete(series.number);
    else hidden.add(series.number);
    hide(hidden);
  });
  boxes.set(series.number, box);
  const look = { converged: "good", diverged: "bad" }[series.verdict] ?? "open";
  const seeds = series.seeds > 1 ? [element("span", { class: "faint" }, ` ${series.seeds} seeds`)] : [];
  return element("label", { class: "entry" }, box, swatch(series), series.shown, ...seeds,
    element("span", { class: `verdict ${look}` }, verdictOf(series)));
}

function whole(data, members, title) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => {
    const hidden = hiddenSeries(data);
    for (const series of members) hidden[box.checked ? "delete" : "add"](series.number);
    hide(hidden);
  });
  const show = () => {
    const hidden = hiddenSeries(data);
    const count = members.filter((series) => !hidden.has(series.number)).length;
    box.checked = count === members.length;
    box.indeterminate = count > 0 && count < members.length;
  };
  view.follow(show);
  return element("label", {}, box, ` ${title}`);
}

function buildTheme(home) {
  home.append(choice("theme", "Colours", [["auto", "as the system"], ["light", "light"], ["dark", "dark"]]));
  const show = () => {
    document.documentElement.dataset.theme = view.get("theme");
  };
  view.follow(show);
}
