// Keeps the end of a growing conversation in view, unless the reader has gone up to read.

import { byId } from "../base/dom.js";

const NEAR = 60; // pixels from the end that count as being there
let following = true;

export function startScroll() {
  const box = byId("scroll");
  box.addEventListener("scroll", () => {
    following = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    byId("to-end").hidden = following;
  }, { passive: true });
  byId("to-end").addEventListener("click", toEnd);
}

export function toEnd() {
  following = true;
  follow();
}

export function follow() {
  const box = byId("scroll");
  if (following) box.scrollTop = box.scrollHeight;
}
