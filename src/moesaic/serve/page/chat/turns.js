// How one turn of a conversation is shown, and what can be done with it.

import { h, setText } from "../base/dom.js";
import { copyButton } from "../base/files.js";
import { count, plural, rate, seconds } from "../base/format.js";
import { MarkdownView } from "../markdown/render.js";
import { failureCard } from "./failures.js";

/** The view of a turn: `element`, and `update()` after it has changed. `deeds` are functions. */
export function turnView(turn, deeds) {
  return turn.role === "assistant" ? new AssistantView(turn, deeds) : new SaidView(turn, deeds);
}

/** What the reader wrote, or the result of a tool. */
class SaidView {
  constructor(turn, deeds) {
    this.turn = turn;
    this.deeds = deeds;
    this.element = h("li", { class: "turn user" });
    this.update();
  }

  update() {
    const { role, name, text } = this.turn;
    const edit = h("button", { type: "button", class: "quiet small", onclick: () => this.edit() }, "Edit");
    const label = role === "tool" ? h("div", { class: "hint" }, `Result of ${name}`) : h("span", { class: "unseen" }, "You: ");
    this.element.replaceChildren(
      h("div", { class: "said", dir: "auto" }, label, text),
      h("div", { class: "deeds" }, copyButton(() => this.turn.text), role === "user" ? edit : null),
    );
  }

  edit() {
    const field = h("textarea", { rows: Math.min(12, this.turn.text.split("\n").length + 1), "aria-label": "Message" });
    field.value = this.turn.text;
    const cancel = () => this.update();
    const send = () => field.value.trim() && this.deeds.resend(this.turn, field.value.trim());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    });
    this.element.replaceChildren(
      h("div", { class: "editing" }, field,
        h("div", { class: "row end" },
          h("button", { type: "button", class: "quiet small", onclick: cancel }, "Cancel"),
          h("button", { type: "button", class: "main small", onclick: send }, "Send again"))),
    );
    field.focus();
  }
}

class AssistantView {
  constructor(turn, deeds) {
    this.turn = turn;
    this.deeds = deeds;
    this.element = h("li", { class: "turn assistant" });
    this.build();
  }

  get answer() {
    return this.turn.versions[this.turn.shown];
  }

  /** Another version is shown: everything is built anew. */
  build() {
    const [thoughts, said] = [h("div", { class: "prose" }), h("div", { class: "prose answer" })];
    this.summary = h("summary");
    this.reasoning = h("details", { class: "reasoning" }, this.summary, thoughts);
    this.thoughts = new MarkdownView(thoughts);
    this.said = new MarkdownView(said);
    this.waiting = h("div", { class: "waiting" }, "Reading the prompt");
    this.calls = h("div");
    this.foot = h("div");
    const name = h("span", { class: "unseen" }, "Answer: ");
    this.element.replaceChildren(name, this.reasoning, said, this.calls, this.waiting, this.foot);
    this.reasoning.addEventListener("toggle", () => this.updateThoughts());
    this.update();
  }

  update() {
    const { text, reasoning, calls, ended } = this.answer;
    this.element.toggleAttribute("aria-busy", !ended);
    this.reasoning.hidden = !reasoning;
    this.updateThoughts();
    this.said.update(text);
    this.waiting.hidden = Boolean(ended || text || reasoning || calls.length);
    this.updateCalls();
    if (ended) this.finish();
  }

  updateThoughts() {
    const { text, ended, figures } = this.answer;
    const thinking = !ended && !text && !this.answer.calls.length;
    const took = figures?.reasoned_s ? ` for ${seconds(figures.reasoned_s)}` : "";
    setText(this.summary, thinking ? "Reasoning …" : `Reasoned${took}`);
    if (this.reasoning.open) this.thoughts.update(this.answer.reasoning);
  }

  updateCalls() {
    const { calls, ended } = this.answer;
    if (!calls.length) return;
    const answerable = ended === "tool_calls" && this.deeds.isLast(this.turn);
    const cards = calls.map((call) => callCard(call));
    this.calls.replaceChildren(...cards);
    if (answerable) cards.at(-1).append(resultField(calls, (results) => this.deeds.returnResults(results)));
  }

  finish() {
    const { error } = this.answer;
    const retry = () => this.deeds.regenerate(this.turn);
    const enterKey = () => this.deeds.enterKey(this.turn);
    this.foot.replaceChildren(
      ...(error ? [failureCard(error, { retry, enterKey })] : []),
      h("div", { class: "deeds" },
        copyButton(() => this.answer.text),
        h("button", { type: "button", class: "quiet small", onclick: retry }, "Regenerate"),
        this.versions(), this.figures()),
    );
  }

  versions() {
    const { versions, shown } = this.turn;
    if (versions.length < 2) return null;
    const step = (label, sign, to) =>
      h("button", { type: "button", class: "quiet small", "aria-label": label, disabled: !versions[to], onclick: () => this.deeds.show(this.turn, to) }, sign);
    return h("span", { class: "versions numbers" },
      step("Version before", "‹", shown - 1), `${shown + 1} / ${versions.length}`, step("Version after", "›", shown + 1));
  }

  figures() {
    const text = describeFigures(this.answer);
    return text ? h("span", { class: "figures numbers" }, text) : null;
  }
}

/** As "42.1 tokens/s · first token after 310 ms · ...". */
export function describeFigures({ figures, ended }) {
  const parts = [];
  if (ended === "stopped") parts.push("stopped");
  if (ended === "length") parts.push("cut at its greatest length");
  if (figures) {
    const about = figures.counted ? "" : "about ";
    if (figures.rate) parts.push(`${about}${rate(figures.rate)} tokens/s`);
    parts.push(`first token after ${seconds(figures.first_s)}`);
    parts.push(`${about}${plural(figures.tokens, "token")}`);
    if (figures.prompt !== null) parts.push(describePrompt(figures));
  }
  return parts.join(" · ");
}

function describePrompt({ prompt, cached }) {
  return cached ? `prompt ${count(prompt)}, ${count(cached)} of them cached` : `prompt ${count(prompt)}`;
}

function callCard({ name, arguments: text }) {
  return h("div", { class: "call" },
    h("header", {}, "Calls ", h("code", {}, name)),
    h("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` }, indented(text)));
}

function resultField(calls, send) {
  const fields = calls.map(({ name }) => h("textarea", { rows: "2", "aria-label": `Result of ${name}`, placeholder: `Result of ${name}` }));
  const give = () => send(calls.map(({ id, name }, place) => ({ id, name, text: fields[place].value })));
  const button = h("button", { type: "button", class: "small", onclick: give }, calls.length > 1 ? "Return these results" : "Return this result");
  return h("div", { class: "result" }, fields, h("div", { class: "row end" }, button));
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
