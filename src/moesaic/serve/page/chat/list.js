// The list of conversations beside the chat.

import { announce, byId, h } from "../base/dom.js";
import { allConversations, remove } from "./store.js";

/** Draw the list; `open(id)` and `gone(id)` are called when one is chosen or deleted. */
export function drawList(shownId, open, gone) {
  byId("conversations").replaceChildren(...allConversations().map((each) => entry(each, shownId, open, gone)));
}

function entry({ id, title }, shownId, open, gone) {
  const name = title || "Untitled";
  const current = id === shownId;
  return h("li", { "data-shown": current },
    h("button", { type: "button", class: "title", title: name, "aria-current": current ? "true" : null, onclick: () => open(id) }, name),
    h("button", { type: "button", class: "quiet small remove", "aria-label": `Delete: ${name}`, onclick: () => confirmed(name) && drop(id, gone) }, "×"));
}

function confirmed(name) {
  return window.confirm(`Delete the conversation "${name}" from this browser?`);
}

function drop(id, gone) {
  remove(id);
  announce("The conversation was deleted");
  gone(id);
}
