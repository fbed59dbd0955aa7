// Draws the charts of a report when they come near to the window, each with the rows of its run.
const OPTIONS = {
  mode: "vega-lite", // the specifications have no $schema
  renderer: "canvas",
  actions: {export: true, source: false, compiled: false, editor: false},
  config: {
    font: "system-ui, sans-serif",
    view: {stroke: null},
    axis: {domain: false, ticks: false, gridColor: "#e4e7eb", labelColor: "#52606d", titleColor: "#52606d",
      titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 11, labelOverlap: true},
    legend: {labelColor: "#52606d", titleColor: "#52606d", titleFontWeight: "normal", labelFontSize: 12,
      titleFontSize: 12, labelLimit: 260, orient: "top"},
    scale: {invalid: {color: {value: "#d1495b"}}}
  }
};
const tables = new WeakMap(), drawn = new WeakMap();

function rowsOf(chart) {
  const run = chart.closest("article");
  if (!tables.has(run)) {
    const columns = Object.entries(JSON.parse(run.querySelector(".table").textContent));
    tables.set(run, columns[0][1].map((_, n) => Object.fromEntries(columns.map(([name, its]) => [name, its[n]]))));
  }
  return tables.get(run);
}

function draw(chart) {
  if (!drawn.has(chart)) {
    const spec = JSON.parse(chart.querySelector("script").textContent);
    const patch = vega => {
      for (const data of vega.data) if (data.name === "rows") data.values = rowsOf(chart);
      return vega;
    };
    drawn.set(chart, vegaEmbed(chart, spec, {...OPTIONS, patch}));
  }
  return drawn.get(chart);
}

const drawAll = () => Promise.all([...document.querySelectorAll(".chart")].filter(its => its.checkVisibility()).map(draw));
const near = new IntersectionObserver(entries => entries.filter(its => its.isIntersecting).forEach(({target}) => {
  near.unobserve(target);
  draw(target);
}), {rootMargin: "600px"});
document.querySelectorAll(".chart").forEach(chart => near.observe(chart));
addEventListener("beforeprint", drawAll);
