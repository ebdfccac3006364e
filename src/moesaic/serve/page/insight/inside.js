// The view of what the engine does: the map, and the cards around it.

import { askForKey } from "../base/dialogs.js";
import { byId, h, setText } from "../base/dom.js";
import { bytes, count, microseconds, plural } from "../base/format.js";
import { KvBlocks } from "./blocks.js";
import { Capture } from "./capture.js";
import { Experts } from "./experts.js";
import { Feed } from "./feed.js";
import { HitRates } from "./hits.js";
import { Lanes } from "./lanes.js";
import { LayerTimes } from "./layers.js";
import { Legend } from "./legend.js";
import { ExpertMap } from "./map.js";
import { ExpertPanel } from "./panel.js";

const REST_MS = 2_000; // without a change, the lanes rest

let view = null;

/** Begin or end to follow the engine. */
export function showInside(shown) {
  if (!shown) {
    view?.hide();
    return;
  }
  view ??= new Inside(byId("inside-view"));
  view.show();
}

class Inside {
  constructor(element) {
    this.model = null;
    this.paused = false;
    this.shown = false;
    const reveal = () => this.panel.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
    this.map = new ExpertMap((layer, expert) => this.choose(layer, expert), reveal);
    this.panel = new ExpertPanel((layer, expert) => this.choose(layer, expert, true));
    this.layers = new LayerTimes((layer) => this.choose(layer, this.busiest(layer), true));
    this.legend = new Legend();
    [this.hits, this.lanes, this.blocks, this.capture] = [new HitRates(), new Lanes(), new KvBlocks(), new Capture()];
    this.feed = new Feed({
      model: (model) => this.setModel(model),
      snapshot: (snapshot) => this.paused || this.update(snapshot),
      trouble: (error) => this.trouble(error),
    });
    this.build(element);
    document.addEventListener("visibilitychange", () => this.shown && (document.hidden ? this.feed.stop() : this.feed.start()));
  }

  build(element) {
    this.title = h("h1", {}, "Inside the model");
    this.facts = h("p", { class: "hint numbers" });
    this.step = h("p", { class: "step numbers" }, "No step yet: send a message in the chat.");
    this.notice = h("p", { class: "notice", role: "status", hidden: true });
    this.pause = h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.togglePause() }, "Pause");
    this.content = h("div", { class: "cards", hidden: true },
      h("section", { class: "card map-card" }, h("header", { class: "row" }, h("h2", {}, "Experts in the last step"), h("span", { class: "spring" }), this.pause), this.step, this.map.element, this.legend.element),
      this.panel.element,
      this.layers.element, this.hits.element, this.lanes.element, this.blocks.element, this.capture.element);
    element.replaceChildren(h("div", { class: "inside-scroll" }, h("header", { class: "inside-head" }, this.title, this.facts), this.notice, this.content));
  }

  show() {
    this.shown = true;
    this.feed.start();
  }

  hide() {
    this.shown = false;
    this.feed.stop();
  }

  setModel(model) {
    this.model = model;
    this.notice.hidden = true;
    this.content.hidden = false;
    setText(this.title, `Inside ${model.name}`);
    setText(this.facts, describeModel(model));
    this.capture.setModel(model);
    this.apply(new Experts(model, null));
  }

  update(snapshot) {
    this.notice.hidden = true;
    if (snapshot.step) setText(this.step, describeStep(snapshot.step));
    this.apply(new Experts(this.model, snapshot));
    this.layers.update(snapshot);
    this.hits.add(snapshot, this.model);
    this.lanes.update(snapshot);
    this.blocks.update(snapshot);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.lanes.rest(), REST_MS);
  }

  apply(experts) {
    this.experts = experts;
    this.map.update(experts, this.model);
    this.legend.update(experts, this.model);
    this.panel.update(experts, this.model);
  }

  choose(layer, expert, moves = false) {
    if (moves) this.map.moveTo({ layer, expert });
    this.panel.show(layer, expert);
  }

  busiest(layer) {
    const found = this.experts.byLayer.get(layer)?.experts ?? [];
    return found.reduce((one, other) => (other.tokens > (one?.tokens ?? 0) ? other : one), null)?.expert ?? 0;
  }

  togglePause() {
    this.paused = !this.paused;
    this.pause.setAttribute("aria-pressed", String(this.paused));
    setText(this.pause, this.paused ? "Go on" : "Pause");
  }

  /** Says what is wrong; returns whether to try again. */
  trouble(error) {
    const [text, again] = explain(error);
    setText(this.notice, text);
    this.notice.hidden = false;
    if (error.status === 401) askForKey().then((given) => given && this.shown && this.feed.start());
    return again && this.shown;
  }
}

function explain({ status, message }) {
  if (status === 401) return ["This server wants an API key.", false];
  if (status === 404) return ["This server shows nothing of its engine: it is older than this view, or was started without it.", false];
  if (status === 503) return [`The engine is away, and what is shown is its last state: ${message}.`, true];
  if (status > 0) return [`The engine's state cannot be read: ${message}.`, true];
  return ["The server does not respond. What is shown is the last state; this page tries again.", true];
}

function describeModel({ layers, experts, top_k: chosen, shared_experts: shared, expert_bytes: size, executor, accelerator, slots, why_layerwise: why }) {
  const parts = [`${layers} layers with ${experts} experts`, `${chosen} of them per token${shared ? " beside shared ones" : ""}`];
  if (size) parts.push(`${bytes(size)} each`);
  if (accelerator) parts.push(`${accelerator.name ?? accelerator.kind} with room for ${count(slots ?? 0)} experts`);
  else parts.push("no accelerator: the CPU computes all experts");
  if (executor) parts.push(`executor ${executor}${why ? ` (${why})` : ""}`);
  return parts.join(" · ");
}

function describeStep({ number, kind, tokens, sequences, latency_us: latency }) {
  return `Step ${count(number)} · ${kind} · ${plural(tokens, "token")} of ${plural(sequences, "sequence")} · ${microseconds(latency)}`;
}
