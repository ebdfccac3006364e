// What the colours of the map mean, and how many experts have each.

import { h, setText } from "../base/dom.js";
import { count } from "../base/format.js";

const KINDS = [
  ["gpu", "ran on the GPU"],
  ["cpu", "ran on the CPU"],
  ["link", "ran over the link"],
  ["resident", "rested in GPU memory"],
  ["elsewhere", "rested"],
];

export class Legend {
  constructor() {
    this.numbers = {};
    this.entries = {};
    this.element = h("ul", { class: "legend numbers" }, KINDS.map(([kind, text]) => {
      this.numbers[kind] = h("b", {}, "0");
      this.entries[kind] = h("li", {}, h("i", { class: `key ${kind}` }), this.numbers[kind], ` ${text}`);
      return this.entries[kind];
    }));
  }

  update(experts, model) {
    const { ran, resident } = experts;
    const found = { gpu: 0, cpu: 0, link: 0, resident: 0, elsewhere: 0 };
    const kinds = [null, "gpu", "cpu", "link"];
    for (let place = 0; place < ran.length; place += 1) {
      found[kinds[ran[place]] ?? (resident[place] ? "resident" : "elsewhere")] += 1;
    }
    for (const [kind] of KINDS) {
      setText(this.numbers[kind], count(found[kind]));
      this.entries[kind].hidden = !model.accelerator && kind !== "cpu" && kind !== "elsewhere";
    }
    setText(this.entries.elsewhere.lastChild, model.accelerator ? " rested in main memory" : " rested");
  }
}
