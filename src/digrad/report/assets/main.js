// Puts the parts together, once the page and its data are there.

function start() {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("data"), times = read("times");
  const home = (id) => document.getElementById(id);
  document.documentElement.classList.add("alive");
  view.read();
  prepareSeries(data, times);
  buildTheme(home("theme"));
  document.querySelectorAll("table.sortable").forEach(buildPlainTable);
  if (data.series.length) {
    buildTable(home("results"), home("table-controls"), times);
    buildControls(data, home("controls"));
    buildLegend(data, home("legend"));
    buildCurves(data, home("curves"));
    buildRemark(data, home("remark"));
  }
  data.runs.forEach((run, number) => {
    const title = data.runs.length > 1 ? [element("h3", {}, `${run.folder}: ${run.name}`)] : [];
    const place = (id) => {
      const part = element("div", {}, ...title.map((one) => one.cloneNode(true)));
      home(id)?.append(part);
      return part;
    };
    if (run.plane) buildPlane(data, number, place("planes"), `plane-${number}`);
    if (run.labels) buildLabels(run.labels, run.network?.names, place("labels"), `labels-${number}`);
    if (run.network) buildNetwork(run.network, place("networks"), `network-${number}`);
  });
  for (const button of document.querySelectorAll("button[data-copy]"))
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      if (button.dataset.name) save(button.dataset.name, "text/plain", text);
      else navigator.clipboard?.writeText(text).then(() => (button.textContent = "Copied"), () => {});
    });
}

start();
