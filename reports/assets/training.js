"use strict";
// One cursor through all charts: hovering a step in one shows that step's value in each.
const { columns, geometry } = JSON.parse(document.getElementById("data").textContent);
const [left, right] = geometry;
const NS = "http://www.w3.org/2000/svg";

function short(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

const charts = [...document.querySelectorAll("figure")].map((figure) => {
  const { low, high, first, last, top, bottom } = Object.fromEntries(
    Object.entries(figure.dataset).filter(([key]) => key !== "column").map(([key, value]) => [key, Number(value)]),
  );
  const svg = figure.querySelector("svg");
  const output = figure.querySelector("output");
  const cursor = svg.appendChild(document.createElementNS(NS, "line"));
  const mark = svg.appendChild(document.createElementNS(NS, "circle"));
  cursor.setAttribute("class", "cursor");
  mark.setAttribute("class", "mark");
  mark.setAttribute("r", "4");
  const points = columns[figure.dataset.column];
  const x = (step) => left + (right - left) * (last > first ? (step - first) / (last - first) : 0.5);
  const y = (value) => bottom - (bottom - top) * ((value - low) / (high - low));
  function show(step) {
    const at = points.find(([other]) => other === step);
    cursor.style.display = mark.style.display = at ? "" : "none";
    output.textContent = step === null ? short(points.at(-1)[1]) : at ? `step ${at[0]}: ${short(at[1])}` : "";
    if (!at) return;
    for (const [name, value] of [["x1", x(at[0])], ["x2", x(at[0])], ["y1", top], ["y2", bottom]]) cursor.setAttribute(name, value);
    mark.setAttribute("cx", x(at[0]));
    mark.setAttribute("cy", y(at[1]));
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const nearest = points.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best));
    charts.forEach((chart) => chart.show(nearest[0]));
  });
  svg.addEventListener("pointerleave", () => charts.forEach((chart) => chart.show(null)));
  return { show };
});
charts.forEach((chart) => chart.show(null));
