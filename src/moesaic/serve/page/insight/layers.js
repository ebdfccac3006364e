// Each layer's measured time as a bar, and what the planner predicted as a mark on it.

import { h, setText, svg } from "../base/dom.js";
import { microseconds } from "../base/format.js";

const HEIGHT = 110;
const STEP = 10;

export class LayerTimes {
  /** `choose(layer)` is called when a layer's bar is clicked. */
  constructor(choose) {
    this.choose = choose;
    this.shown = [];
    // Bars are drawn anew with each snapshot, perhaps between press and release: their place counts.
    this.figure = h("div", { onclick: (event) => this.clicked(event) });
    this.note = h("p", { class: "hint numbers" });
    const keys = h("ul", { class: "legend" },
      h("li", {}, h("i", { class: "key measured" }), "measured"), h("li", {}, h("i", { class: "key predicted" }), "predicted"));
    this.element = h("section", { class: "card times" }, h("h2", {}, "Time of each layer"), keys, this.figure, this.note);
  }

  update({ layers }) {
    const known = this.shown = (layers ?? []).filter(({ measured_us: measured }) => measured !== null && measured !== undefined);
    setText(this.note, describe(known));
    if (!known.length) {
      this.figure.replaceChildren();
      return;
    }
    const longest = Math.max(...known.map((each) => Math.max(each.measured_us, each.predicted_us ?? 0)), 1);
    const bars = known.map((each, place) => this.bar(each, place, longest));
    const view = `0 0 ${known.length * STEP} ${HEIGHT}`;
    this.figure.replaceChildren(svg("svg", { class: "chart bars", viewBox: view, preserveAspectRatio: "none", role: "img", "aria-label": describe(known) }, bars));
  }

  clicked({ clientX }) {
    const { left, width } = this.figure.getBoundingClientRect();
    const place = Math.floor(((clientX - left) / width) * this.shown.length);
    if (this.shown[place]) this.choose(this.shown[place].layer);
  }

  bar(each, place, longest) {
    const { layer, measured_us: measured, predicted_us: predicted } = each;
    const [x, height] = [place * STEP, (HEIGHT * measured) / longest];
    const group = svg("g", {},
      svg("title", {}, `Layer ${layer}: ${times(each)}`),
      svg("rect", { class: "hit", x, y: 0, width: STEP, height: HEIGHT }),
      svg("rect", { class: "measured", x: x + 1.5, y: HEIGHT - height, width: STEP - 3, height }));
    if (predicted !== null && predicted !== undefined) {
      const y = HEIGHT - (HEIGHT * predicted) / longest;
      group.append(svg("rect", { class: "predicted", x: x + 0.5, y: Math.max(0, y - 1.5), width: STEP - 1, height: 3 }));
    }
    return group;
  }
}

function times({ measured_us: measured, predicted_us: predicted }) {
  const expected = predicted === null || predicted === undefined ? "" : `, predicted ${microseconds(predicted)}`;
  return `measured ${microseconds(measured)}${expected}`;
}

function describe(layers) {
  if (!layers.length) return "No step has been measured layer by layer yet.";
  const sum = (name) => layers.reduce((total, each) => total + (each[name] ?? 0), 0);
  const slowest = layers.reduce((one, other) => (other.measured_us > one.measured_us ? other : one));
  const foreseen = layers.some((each) => each.predicted_us !== null && each.predicted_us !== undefined);
  const predicted = foreseen ? `, ${microseconds(sum("predicted_us"))} predicted` : "";
  return `${microseconds(sum("measured_us"))} in all${predicted}. The slowest is layer ${slowest.layer} with ${microseconds(slowest.measured_us)}.`;
}
