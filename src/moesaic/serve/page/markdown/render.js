// From the tree to DOM nodes. A model's text becomes text nodes and nothing else.

import { h } from "../base/dom.js";
import { copyButton } from "../base/files.js";
import { parseBlocks } from "./blocks.js";
import { parseInline } from "./inline.js";

/** Shows a text that grows: blocks that have not changed keep their nodes. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  update(text) {
    const blocks = parseBlocks(text);
    const same = this.shown.findIndex((source, place) => source !== blocks[place]?.source);
    const kept = same < 0 ? this.shown.length : same;
    while (this.element.childNodes.length > kept) this.element.lastChild.remove();
    this.element.append(...blocks.slice(kept).map(block));
    this.shown = blocks.map((each) => each.source);
  }
}

const BLOCKS = {
  paragraph: ({ text }) => h("p", {}, inline(text)),
  heading: ({ level, text }) => h(`h${Math.min(6, level + 2)}`, {}, inline(text)),
  rule: () => h("hr"),
  quote: ({ blocks }) => h("blockquote", {}, blocks.map(block)),
  code: codeBlock,
  list: listBlock,
  table: tableBlock,
};

function block(each) {
  return BLOCKS[each.type](each);
}

function codeBlock({ language, text }) {
  const code = h("code", {}, text);
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copyButton(() => code.textContent)),
    h("pre", { tabindex: "0", "aria-label": `Code: ${language || "text"}` }, code),
  );
}

function listBlock({ ordered, start, items }) {
  const attributes = ordered && start !== 1 ? { start } : {};
  return h(ordered ? "ol" : "ul", attributes, items.map(listItem));
}

function listItem({ done, blocks }) {
  // An item of one paragraph is a line, not a paragraph with space around it.
  const content = blocks.map((each, place) =>
    each.type === "paragraph" && place === 0 ? h("span", {}, inline(each.text)) : block(each),
  );
  if (done === null) return h("li", {}, content);
  const box = h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "open" });
  return h("li", { class: "task" }, box, content);
}

function tableBlock({ head, aligned, rows }) {
  const row = (tag, cells) =>
    h("tr", {}, cells.map((cell, column) => h(tag, { class: `align-${aligned[column]}` }, inline(cell))));
  const body = rows.map((cells) => row("td", cells));
  const table = h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, body));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function inline(text) {
  return parseInline(text).map(node);
}

function node(each) {
  switch (each.type) {
    case "text": return each.text;
    case "break": return h("br");
    case "code": return h("code", {}, each.text);
    case "link": return link(each);
    default: return h(each.type, {}, each.children.map(node));
  }
}

function link({ href, children }) {
  const outside = { target: "_blank", rel: "noopener noreferrer nofollow" };
  return h("a", { href, title: href, ...outside }, children.map(node));
}
