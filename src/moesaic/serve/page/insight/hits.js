// The live hit rate of the expert cache, beside LRU's and Belady's on the same routing.

import { h, setText } from "../base/dom.js";
import { percent } from "../base/format.js";
import { lineChart } from "./chart.js";

const POINTS = 120;
const FEWEST = 20; // so that the first ones do not fill the chart
const SERIES = [
  ["actual", "this cache"],
  ["lru", "LRU"],
  ["belady", "Belady, which knows the future"],
];

export class HitRates {
  constructor() {
    this.history = SERIES.map(([name]) => ({ name, values: [] }));
    this.numbers = {};
    this.note = h("p", { class: "hint" });
    this.figure = h("div");
    const list = SERIES.map(([name, text]) => {
      this.numbers[name] = h("b", {}, "–");
      return h("li", {}, h("i", { class: `key line ${name}` }), this.numbers[name], ` ${text}`);
    });
    this.element = h("section", { class: "card hits" }, h("h2", {}, "Hit rate"), h("ul", { class: "legend numbers" }, list), this.figure, this.note);
    this.actual = this.element.querySelector("li");
  }

  add({ hits }, model) {
    for (const { name, values } of this.history) {
      values.push(hits?.[name] ?? null);
      if (values.length > POINTS) values.shift();
    }
    for (const [name] of SERIES) setText(this.numbers[name], hits?.[name] == null ? "–" : percent(hits[name]));
    this.actual.hidden = !model.accelerator;
    this.figure.replaceChildren(lineChart(this.history, Math.max(FEWEST, this.history[0].values.length)));
    setText(this.note, this.describe(hits, model));
  }

  describe(hits, model) {
    if (!hits || (hits.lru ?? hits.actual ?? null) === null) return "It begins with the first decode steps.";
    const window = hits.window_steps ? ` over the last ${hits.window_steps} steps` : "";
    if (model.accelerator) return `Share of the chosen experts that GPU memory held${window}.`;
    const ratio = hits.what_if_ratio ? ` ${percent(hits.what_if_ratio)} of the experts` : " some experts";
    return `Nothing is cached here, since the CPU computes all. A cache for${ratio} would have had these${window}.`;
  }
}
