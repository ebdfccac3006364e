// Conversations in the browser's storage, one entry each.
//
// A conversation: {id, title, changed, settings, turns}. A turn is {role: "user", text}, {role:
// "tool", id, name, text}, or {role: "assistant", versions: [answer, ...], shown: index}; what an
// answer is stands in answer.js.

import { forget, keep, kept, keptKeys } from "../base/storage.js";

const BEFORE = "moesaic.conversation.";
const SETTINGS = "moesaic.settings";
const LONGEST_TITLE = 60;

export function newConversation() {
  const id = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
  const settings = { ...read(SETTINGS, {}), system: "", tools: "" };
  return { id, title: "", changed: Date.now(), settings, turns: [] };
}

/** Newest first. */
export function allConversations() {
  const keys = keptKeys().filter((key) => key.startsWith(BEFORE));
  const found = keys.map((key) => read(key, null)).filter((each) => each?.id && Array.isArray(each.turns));
  return found.sort((one, other) => other.changed - one.changed);
}

export function loadConversation(id) {
  return read(BEFORE + id, null);
}

/** Returns false where the browser's storage is full or closed. */
export function save(conversation) {
  conversation.changed = Date.now();
  conversation.title ||= titleOf(conversation);
  return write(BEFORE + conversation.id, conversation);
}

export function remove(id) {
  forget(BEFORE + id);
}

/** New conversations begin with these. */
export function keepSettings(settings) {
  write(SETTINGS, settings);
}

export function isConversationKey(key) {
  return key === null || key.startsWith(BEFORE);
}

function titleOf({ turns }) {
  const first = turns.find((turn) => turn.role === "user")?.text.trim().split("\n")[0] ?? "";
  return first.length > LONGEST_TITLE ? `${first.slice(0, LONGEST_TITLE - 1)}…` : first;
}

function read(key, otherwise) {
  try {
    return JSON.parse(kept(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(key, value) {
  return keep(key, JSON.stringify(value));
}
