// Why one expert ran where it did: the reason, the times of its options, and its layer's experts.

import { requestJson } from "../base/api.js";
import { h } from "../base/dom.js";
import { bytes, microseconds, percent, plural } from "../base/format.js";
import { PLACES } from "./experts.js";

const NAMES = { gpu: "GPU", cpu: "CPU", link: "Link" };
const LISTED = 24;

export class ExpertPanel {
  /** `choose(layer, expert)` shows another one. */
  constructor(choose) {
    this.choose = choose;
    this.place = null;
    this.asked = null; // {layer, experts}: a layer whose reasons were asked for
    this.element = h("section", { class: "card panel", "aria-label": "The chosen expert" });
    this.held = false; // between press and release, so that what was pressed stays
    this.element.addEventListener("pointerdown", () => (this.held = true));
    for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(() => this.release()));
    this.draw();
  }

  release() {
    if (!this.held) return;
    this.held = false;
    this.draw();
  }

  show(layer, expert) {
    this.asked = null;
    this.place = { layer, expert };
    this.draw();
  }

  update(experts, model) {
    this.experts = experts;
    this.model = model;
    if (this.asked?.experts) this.asked = null; // they were of the step before
    this.draw();
  }

  draw() {
    if (this.held) return;
    if (!this.place || !this.experts) {
      this.element.replaceChildren(h("h2", {}, "Why there?"), h("p", { class: "hint" }, "Choose an expert on the map: with a click, or with the arrow keys and Enter. Its reason and the times of its options stand here."));
      return;
    }
    const focused = document.activeElement?.dataset?.expert;
    const { layer, expert } = this.place;
    const detail = this.experts.detail(layer, expert);
    this.element.replaceChildren(
      h("h2", { class: "numbers" }, `Layer ${layer}, expert ${expert}`),
      h("p", { class: "chips" }, this.chips(layer, expert, detail)),
      ...this.reason(layer, expert, detail),
      this.layerList(layer, expert),
    );
    if (focused) this.element.querySelector(`[data-expert="${focused}"]`)?.focus();
  }

  /** A step of very many experts comes without reasons; they are asked for one layer at a time. */
  reason(layer, expert, detail) {
    if (!detail) return [h("p", { class: "hint" }, "No token of the last step chose it.")];
    if (detail.why) return this.explained(detail);
    const asked = this.asked?.layer === layer ? this.asked : null;
    const found = asked?.experts?.find((each) => each.expert === expert);
    if (found) return this.explained(found);
    if (!asked) this.ask(layer);
    return [h("p", { class: "hint" }, asked?.experts ? "No token of the last step chose it." : "Asking for the reason …")];
  }

  /** Without an accelerator, there was one option. */
  explained(detail) {
    const why = h("p", { class: "why" }, detail.why);
    return this.model.accelerator ? [why, options(detail)] : [why];
  }

  async ask(layer) {
    this.asked = { layer, experts: null };
    try {
      const { experts } = await requestJson(`insight/layers/${layer}`);
      if (this.asked.layer !== layer) return;
      this.asked.experts = experts;
      this.draw();
    } catch {
      this.asked = null; // the next snapshot asks again
    }
  }

  chips(layer, expert, detail) {
    const where = this.experts.isResident(layer, expert) ? "in GPU memory" : "in main memory";
    const made = this.model.accelerator ? [h("span", { class: "chip" }, where)] : [];
    if (detail) made.unshift(h("span", { class: `chip ran ${detail.ran}` }, `ran ${PLACES[detail.ran]}`));
    if (detail) made.push(h("span", { class: "chip" }, plural(detail.tokens, "token")));
    return made;
  }

  layerList(layer, chosen) {
    const found = this.experts.byLayer.get(layer);
    if (!found) return "";
    const sorted = [...(found.experts ?? [])].sort((one, other) => other.tokens - one.tokens || one.expert - other.expert);
    const rest = sorted.length - LISTED;
    return h("div", { class: "of-layer" },
      h("h3", {}, `Layer ${layer} in the last step`),
      h("p", { class: "hint numbers" }, layerFacts(found, Boolean(this.model.accelerator))),
      h("ul", {}, sorted.slice(0, LISTED).map((each) => this.entry(layer, each, chosen))),
      rest > 0 ? h("p", { class: "hint" }, `and ${plural(rest, "expert")} with fewer tokens`) : "");
  }

  entry(layer, { expert, ran, tokens }, chosen) {
    const text = `${expert}`;
    const label = `Expert ${expert}, ${PLACES[ran]}, ${plural(tokens, "token")}`;
    return h("li", {}, h("button", {
      type: "button", class: `small tile ${ran}`, "data-expert": expert, title: label, "aria-label": label,
      "aria-pressed": String(expert === chosen), onclick: () => this.choose(layer, expert),
    }, text));
  }
}

function layerFacts({ active, hits, bytes_moved: moved, measured_us: measured, predicted_us: predicted }, accelerated) {
  const parts = [plural(active, "expert")];
  if (accelerated && active) parts.push(`${percent((hits ?? 0) / active)} hits`);
  if (moved) parts.push(`${bytes(moved)} moved`);
  if (measured !== null) parts.push(microseconds(measured));
  if (predicted !== null && predicted !== undefined) parts.push(`${microseconds(predicted)} predicted`);
  return parts.join(" · ");
}

/** A bar for the time of each option; the shortest is not always chosen, since they share devices. */
function options({ ran, options: times }) {
  const known = Object.keys(NAMES).map((kind) => [kind, times?.[`${kind}_us`] ?? null]);
  const longest = Math.max(...known.map(([, time]) => time ?? 0)) || 1;
  const row = ([kind, time]) => {
    const bar = h("i", { class: `bar ${kind}` });
    bar.style.width = `${time === null ? 0 : Math.max(1.5, (100 * time) / longest)}%`;
    return h("li", { class: kind === ran ? "taken" : "" },
      h("span", {}, NAMES[kind]), h("span", { class: "track" }, bar),
      h("span", { class: "numbers" }, time === null ? "–" : microseconds(time)));
  };
  return h("ul", { class: "options", "aria-label": "Times of the options" }, known.map(row));
}
