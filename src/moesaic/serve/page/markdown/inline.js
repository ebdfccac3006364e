// Markdown within a line: emphasis, code, links. One pass: what is open stands on a stack of spans,
// and a sign that closes one takes all that is above it as text.

import { safeAddress } from "./links.js";

const DEEPEST = 24; // open spans; further signs are text
const ESCAPED = /[!-/:-@[-`{-~]/;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/y;
const BARE = /https?:\/\/[^\s<>"`|\\]+/y;
const TARGET = /\([ \n]{0,3}(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*))(?:[ \n]{1,3}"([^"\n]{0,300})")?[ \n]{0,3}\)/y;
const LETTER = /[\p{L}\p{N}]/u;
const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** A list of {type: text | code | break | strong | em | del | link, ...}. */
export function parseInline(text) {
  return new Reader(text).read();
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = 0; // where text that is not yet a node begins
    this.spans = [{ sign: null, children: [] }];
    this.open = { "*": 0, _: 0, "~": 0, "[": 0 };
    this.runs = null; // where runs of backticks begin, by their length
  }

  read() {
    while (this.at < this.text.length) {
      const before = this.at;
      const node = this.special(this.text[this.at]);
      if (node === undefined) this.at = Math.max(this.at, before + 1);
    }
    this.flush(this.at);
    this.flatten(1);
    return this.spans[0].children;
  }

  /** Read a construct that begins here; undefined: it is text. */
  special(sign) {
    switch (sign) {
      case "\\": return this.escape();
      case "\n": return this.lineEnd();
      case "`": return this.code();
      case "<": return this.link(AUTOLINK, 1);
      case "h": return this.bareLink();
      case "[": return this.begin("[", 1);
      case "]": return this.closeBracket();
      case "*": case "_": case "~": return this.delimiters(sign);
      default: return undefined;
    }
  }

  get children() {
    return this.spans.at(-1).children;
  }

  /** What was read since the last node becomes text; reading goes on at `next`. */
  flush(end, next = end) {
    if (end > this.plain) this.children.push({ type: "text", text: this.text.slice(this.plain, end) });
    this.at = this.plain = next;
  }

  add(node, end) {
    this.flush(this.at, end);
    this.children.push(node);
    return node;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.add({ type: "break" }, this.at + 2);
    if (next === undefined || !ESCAPED.test(next)) return undefined;
    return this.add({ type: "text", text: next }, this.at + 2);
  }

  lineEnd() {
    let end = this.at;
    while (end > this.plain && this.text[end - 1] === " ") end -= 1;
    const next = this.at + 1;
    this.flush(end, next);
    return this.add({ type: "break" }, next);
  }

  code() {
    const start = this.at;
    const length = this.runLength("`");
    const end = this.closingRun(start, length);
    if (end === undefined) {
      this.at = start + length;
      return undefined;
    }
    let text = this.text.slice(start + length, end).replace(/\n/g, " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    return this.add({ type: "code", text }, end + length);
  }

  closingRun(start, length) {
    this.runs ??= runsOf("`", this.text);
    const places = this.runs.get(length) ?? [];
    while (places.length && places.at(-1) <= start) places.pop();
    return places.at(-1);
  }

  link(pattern, group) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    const href = found && safeAddress(found[group]);
    if (!href) return undefined;
    const children = [{ type: "text", text: found[group] }];
    return this.add({ type: "link", href, children }, this.at + found[0].length);
  }

  bareLink() {
    if (this.open["["] || LETTER.test(this.text[this.at - 1] ?? " ")) return undefined;
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text);
    if (!found) return undefined;
    const shown = withoutTail(found[0]);
    const href = safeAddress(shown);
    if (!href) {
      this.at += found[0].length;
      return undefined;
    }
    return this.add({ type: "link", href, children: [{ type: "text", text: shown }] }, this.at + shown.length);
  }

  begin(sign, length) {
    if (this.spans.length > DEEPEST) {
      this.at += length;
      return undefined;
    }
    this.flush(this.at, this.at + length);
    this.spans.push({ sign, length, children: [] });
    this.open[sign] += 1;
    return true;
  }

  closeBracket() {
    if (!this.open["["]) return undefined;
    TARGET.lastIndex = this.at + 1;
    const target = TARGET.exec(this.text);
    const place = this.spans.findLastIndex((span) => span.sign === "[");
    const href = target && safeAddress(target[1] ?? target[2]);
    if (!href) {
      this.spans[place].sign = null; // it is text after all, whatever it holds
      this.spans[place].literal = "[";
      this.open["["] -= 1;
      return undefined;
    }
    this.flush(this.at, this.at + 1 + target[0].length);
    this.flatten(place + 1);
    const { children } = this.spans.pop();
    this.open["["] -= 1;
    this.children.push({ type: "link", href, children });
    return true;
  }

  delimiters(sign) {
    const start = this.at;
    let length = this.runLength(sign);
    const { opens, closes } = flanking(this.text, start, start + length, sign);
    if ((sign === "~" && length !== 2) || !(opens || (closes && this.open[sign]))) {
      this.at = start + length;
      return undefined;
    }
    this.flush(start, start + length);
    while (closes && length && this.open[sign]) length -= this.closeSpan(sign, length);
    if (!length) return true;
    if (opens && this.spans.length <= DEEPEST) {
      this.spans.push({ sign, length, children: [] });
      this.open[sign] += 1;
    } else {
      this.children.push({ type: "text", text: sign.repeat(length) });
    }
    return true;
  }

  /** Close the innermost span of this sign, and return how many signs that took. */
  closeSpan(sign, length) {
    const place = this.spans.findLastIndex((span) => span.sign === sign);
    const span = this.spans[place];
    this.flatten(place + 1);
    const used = Math.min(2, length, span.length);
    const type = sign === "~" ? "del" : used === 2 ? "strong" : "em";
    const node = { type, children: span.children };
    span.length -= used;
    if (span.length) {
      span.children = [node];
    } else {
      this.spans.pop();
      this.open[sign] -= 1;
      this.children.push(node);
    }
    return used;
  }

  /** Spans from here on were never closed: their signs are text. */
  flatten(from) {
    const unclosed = this.spans.splice(from);
    for (const { sign, literal, length, children } of unclosed) {
      if (sign) this.open[sign] -= 1;
      this.children.push({ type: "text", text: literal ?? sign.repeat(length) });
      for (const child of children) this.children.push(child);
    }
  }

  runLength(sign, from = this.at) {
    let end = from;
    while (this.text[end] === sign) end += 1;
    return end - from;
  }
}

/** Where runs of this sign begin, by their length; the last comes first. */
function runsOf(sign, text) {
  const runs = new Map();
  for (let end = text.length; end > 0; end -= 1) {
    if (text[end - 1] !== sign) continue;
    let start = end;
    while (start > 0 && text[start - 1] === sign) start -= 1;
    if (!runs.has(end - start)) runs.set(end - start, []);
    runs.get(end - start).push(start);
    end = start;
  }
  return runs;
}

/** Whether a run of signs may begin or end emphasis, which its neighbours decide. */
function flanking(text, start, end, sign) {
  const [before, after] = [text[start - 1] ?? " ", text[end] ?? " "];
  const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || !LETTER.test(before));
  const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || !LETTER.test(after));
  if (sign !== "_") return { opens: left, closes: right };
  return { opens: left && !LETTER.test(before), closes: right && !LETTER.test(after) };
}

/** A bare address without the punctuation of the sentence around it. */
function withoutTail(address) {
  let end = address.length;
  let depth = 0;
  for (const sign of address) depth += sign === "(" ? 1 : sign === ")" ? -1 : 0;
  for (; end > 0; end -= 1) {
    const sign = address[end - 1];
    if (sign === ")" && depth < 0) depth += 1;
    else if (!".,;:!?'*_~]}".includes(sign)) break;
  }
  return address.slice(0, end);
}
