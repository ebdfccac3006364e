// How busy each lane (GPU, CPU, copies) was between two snapshots, and what it moved.

import { h, setText } from "../base/dom.js";
import { bytes, percent } from "../base/format.js";

const NAMES = { gpu: "GPU", cpu: "CPU", link: "Link" };

export class Lanes {
  constructor() {
    this.rows = new Map();
    this.before = null;
    this.list = h("ul", { class: "lanes" });
    this.note = h("p", { class: "hint" });
    this.element = h("section", { class: "card lanes-card" }, h("h2", {}, "Lanes"), this.list, this.note);
  }

  /** `busy_s` and `bytes` count from the engine's start; a smaller number means that it began anew. */
  update({ time_s: time, lanes = [] }) {
    setText(this.note, lanes.length ? "Share of the time at work, and bytes over the link." : "It begins with the first step.");
    const before = this.before;
    const passed = before ? time - before.time : 0;
    for (const { lane, busy_s: busy, bytes: moved } of lanes) {
      const row = this.row(lane);
      const last = before?.lanes.get(lane);
      if (!last || passed <= 0 || busy < last.busy_s) continue;
      const share = Math.min(1, (busy - last.busy_s) / passed);
      row.bar.style.width = `${100 * share}%`;
      setText(row.share, percent(share));
      setText(row.rate, !moved ? "" : `${bytes(Math.max(0, moved - last.bytes) / passed)}/s`);
    }
    if (!before || passed > 0) this.before = { time, lanes: new Map(lanes.map((each) => [each.lane, each])) };
  }

  /** Nothing has changed for a while. */
  rest() {
    for (const { bar, share, rate } of this.rows.values()) {
      bar.style.width = "0";
      setText(share, percent(0));
      setText(rate, "");
    }
  }

  row(lane) {
    if (!this.rows.has(lane)) {
      const name = NAMES[lane] ?? lane;
      const [bar, share, rate] = [h("i", { class: `bar ${lane in NAMES ? lane : "gpu"}` }), h("span", { class: "numbers" }, "–"), h("span", { class: "numbers hint" })];
      this.list.append(h("li", {}, h("span", {}, name), h("span", { class: "track" }, bar), share, rate));
      this.rows.set(lane, { bar, share, rate });
    }
    return this.rows.get(lane);
  }
}
