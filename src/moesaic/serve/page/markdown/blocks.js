// Markdown's blocks: text to a tree of plain objects, in time that grows with the text's length.
// What is no markup is a paragraph, HTML included; nothing is ever refused.

import { tableAt } from "./tables.js";

const DEEPEST = 12; // lists and quotes in each other; what is deeper stays text
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?: {1,4}(?=\S)| |$)/;
const TASK = /^\[([ xX])\] /;

/** Blocks of a document, each with its `source`: equal sources make equal blocks. */
export function parseBlocks(text) {
  return parse(text.replace(/\r\n?/g, "\n").replace(/\0/g, "\uFFFD").split("\n").map(spaced), 0);
}

function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at, depth);
    block.source = lines.slice(at, end).join("\n");
    blocks.push(block);
    at = end;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: unhashed(heading[2] ?? "") }, at + 1];
  if (isRule(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return listAt(lines, at, depth);
  return tableAt(lines, at) ?? paragraphAt(lines, at, depth);
}

/** Up to the closing fence, or to the end while it is still being written. */
function codeAt(lines, at, [opening, fence, info]) {
  const indent = opening.search(/\S/);
  const closes = (line) => {
    const text = line.trim();
    return text.length >= fence.length && isAll(text, fence[0]);
  };
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).map((line) => withoutIndent(line, indent)).join("\n");
  return [{ type: "code", language: info.trim().split(/\s/)[0], text }, Math.min(end + 1, lines.length)];
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: parse(inner, depth + 1) }, end];
}

function listAt(lines, at, depth) {
  const [, , marker] = ITEM.exec(lines[at]);
  const ordered = marker.length > 1;
  const list = { type: "list", ordered, start: ordered ? parseInt(marker, 10) : null, items: [] };
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || isRule(lines[end]) || found[2].at(-1) !== marker.at(-1)) break;
    end = addItem(list, lines, end, found, depth);
  }
  return [list, end];
}

/** Append the item that begins here and return where the next may begin. */
function addItem(list, lines, at, [whole, indent], depth) {
  const inner = [lines[at].slice(whole.length)];
  let end = at + 1;
  let blank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) blank = true;
    // Two spaces are enough, since models count no further than that.
    else if (depthOf(line) < indent.length + 2 && (blank || ITEM.test(line) || beginsBlock(line))) break;
    else blank = false;
    inner.push(withoutIndent(line, whole.length));
  }
  const task = TASK.exec(inner[0]);
  if (task) inner[0] = inner[0].slice(task[0].length);
  list.items.push({ done: task ? task[1] !== " " : null, blocks: parse(inner, depth + 1) });
  return end;
}

function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim()) {
    if (beginsBlock(lines[end]) && depth < DEEPEST) break;
    if (tableAt(lines, end)) break;
    end += 1;
  }
  return [{ type: "paragraph", text: lines.slice(at, end).map((line) => line.trimStart()).join("\n") }, end];
}

function beginsBlock(line) {
  const item = ITEM.exec(line);
  return Boolean(
    FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line) ||
      (item && line.length > item[0].length && (item[2].length === 1 || parseInt(item[2], 10) === 1)),
  );
}

/** Three or more of the same sign, and nothing else. */
function isRule(line) {
  const signs = line.replace(/ /g, "");
  return signs.length >= 3 && "-*_".includes(signs[0]) && isAll(signs, signs[0]) && depthOf(line) < 4;
}

function isAll(text, sign) {
  for (const each of text) if (each !== sign) return false;
  return true;
}

/** A heading's text without the signs that may close it. */
function unhashed(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (end > 0 && trimmed[end - 1] === "#") end -= 1;
  return end === 0 || trimmed[end - 1] === " " ? trimmed.slice(0, end).trim() : trimmed;
}

function spaced(line) {
  return line.replace(/^[ \t]+/, (indent) => indent.replace(/\t/g, "    "));
}

function depthOf(line) {
  const depth = line.search(/\S/);
  return depth < 0 ? line.length : depth;
}

function withoutIndent(line, width) {
  return line.slice(Math.min(width, depthOf(line)));
}
