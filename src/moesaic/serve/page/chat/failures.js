// What went wrong, in words that say what to do.

import { h } from "../base/dom.js";

const CUT = "The server was not reached, or the connection was lost.";

/** A card with the reason and what can be done. `deeds`: {retry, enterKey}. */
export function failureCard(error, deeds) {
  const [title, advice] = explain(error);
  const button =
    error.status === 401
      ? h("button", { type: "button", class: "small", onclick: deeds.enterKey }, "Enter a key")
      : h("button", { type: "button", class: "small", onclick: deeds.retry }, "Try again");
  const said = error.status ? h("div", {}, sentence(error.message)) : null;
  return h("div", { class: "failure", role: "alert" }, h("strong", {}, title), said, h("div", {}, advice), button);
}

function explain({ status, code, retryS, message }) {
  if (status === 0) return [message === "the answer was cut off" ? "The answer was cut off" : "No connection", `${CUT} Is it still running?`];
  if (status === 401) return ["This server wants an API key", "Enter one that it was started with."];
  if (code === "context_length_exceeded") return ["The conversation is too long", "Edit an earlier message, or begin a new conversation."];
  if (status === 413) return ["The message is too large", "Send less."];
  if (status === 429) return ["The server is busy", retryS ? `Try again in ${retryS} seconds.` : "Try again later."];
  if (status === 503) return ["The engine takes no requests now", "It is started again once by itself; if it stays away, the server's log says why."];
  if (status >= 500) return ["The answer failed", "The server's log says why."];
  return ["The server refused the request", "Change what it names (Settings or the message), then try again."];
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
