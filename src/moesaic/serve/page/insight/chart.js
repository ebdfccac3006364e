// A small line chart over time, as SVG.

import { svg } from "../base/dom.js";

const WIDTH = 320;
const HEIGHT = 120;

/** `series`: [{name, values}] with values from 0 to 1 or null; the newest is at the right. */
export function lineChart(series, points) {
  const grid = [0, 0.5, 1].map((share) => {
    const y = HEIGHT * (1 - share);
    return svg("path", { class: "grid", d: `M0 ${y}H${WIDTH}` });
  });
  const lines = series.map(({ name, values }) => svg("path", { class: `line ${name}`, d: path(values, points) }));
  const view = `-1 -4 ${WIDTH + 2} ${HEIGHT + 8}`;
  return svg("svg", { class: "chart", viewBox: view, preserveAspectRatio: "none", "aria-hidden": "true" }, grid, lines);
}

function path(values, points) {
  let made = "";
  let drawing = false;
  values.forEach((value, place) => {
    if (value === null) {
      drawing = false;
      return;
    }
    const x = WIDTH * (1 - (values.length - 1 - place) / Math.max(1, points - 1));
    made += `${drawing ? "L" : "M"}${x.toFixed(1)} ${(HEIGHT * (1 - value)).toFixed(1)}`;
    drawing = true;
  });
  return made;
}
