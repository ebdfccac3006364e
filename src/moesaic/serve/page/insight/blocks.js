// The KV cache: which conversation has how many of its blocks.

import { h, setText } from "../base/dom.js";
import { count, plural } from "../base/format.js";

const LISTED = 12;

export class KvBlocks {
  constructor() {
    this.bar = h("div", { class: "stack", role: "img" });
    this.note = h("p", { class: "hint numbers" });
    this.body = h("tbody");
    this.more = h("p", { class: "hint" });
    const head = ["Conversation", "State", "Tokens", "Cached", "Blocks"];
    this.table = h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), this.body);
    this.element = h("section", { class: "card kv" }, h("h2", {}, "KV blocks by conversation"), this.bar, this.note, h("div", { class: "wide" }, this.table), this.more);
  }

  update({ kv }) {
    const conversations = kv?.conversations ?? [];
    this.table.hidden = conversations.length === 0;
    this.bar.hidden = !kv;
    setText(this.note, describe(kv));
    if (!kv) return;
    this.bar.setAttribute("aria-label", describe(kv));
    this.drawBar(kv, conversations);
    this.body.replaceChildren(...conversations.slice(0, LISTED).map(row));
    const more = conversations.length - LISTED + (kv.omitted ?? 0);
    this.more.textContent = more > 0 ? `and ${plural(more, "conversation")} more` : "";
  }

  /** A part for each conversation, then what ended ones have left, then what is free. */
  drawBar({ blocks, used, kept }, conversations) {
    const running = conversations.filter(({ state }) => state !== "kept");
    const parts = running.map(({ blocks: own }) => ["own", own]);
    const known = running.reduce((sum, { blocks: own }) => sum + own, 0);
    if (known < used) parts.push(["own", used - known]);
    parts.push(["kept", kept]);
    const total = Math.max(blocks, 1);
    this.bar.replaceChildren(...parts.filter(([, size]) => size > 0).map(([type, size]) => {
      const part = h("i", { class: type });
      part.style.width = `${Math.min(100, (100 * size) / total)}%`;
      return part;
    }));
  }
}

function row({ id, request_id: request, client, state, blocks, tokens, cached_tokens: cached }) {
  const name = client ? `${id} (${client})` : String(id);
  return h("tr", {}, h("td", { title: request ? `${name}, request ${request}` : name }, name), h("td", {}, state), ...[tokens, cached, blocks].map((each) => h("td", { class: "align-end" }, each == null ? "–" : count(each))));
}

function describe(kv) {
  if (!kv) return "The engine has said nothing of its cache yet.";
  const { blocks, used, kept, shared, block_tokens: size } = kv;
  const parts = [`${count(used)} of ${plural(blocks, "block")} in use`, `${count(kept)} kept for conversations that may go on`];
  if (shared) parts.push(`${count(shared)} shared`);
  return `${parts.join(", ")}; ${size} tokens each.`;
}
