// Whether the server takes requests, asked now and then while the page is looked at.

import { byId, setText } from "./dom.js";
import { requestJson, ServerError } from "./api.js";

const CALM_MS = 20_000;
const WORRIED_MS = 3_000;
const SHORT = { ready: "ready", unavailable: "not ready", unreachable: "unreachable", locked: "key wanted" };

let timer = null;
let asking = null;
let kind = "";
const listeners = new Set();

/** Called with "ready", "unavailable", "unreachable" or "locked" whenever that changes, and
 * with "locked" for each key that is wrong. */
export function onStatus(listener) {
  listeners.add(listener);
  if (kind) listener(kind);
}

export function startStatus() {
  document.addEventListener("visibilitychange", () => document.hidden || kind === "locked" || checkStatus());
  return checkStatus();
}

export function checkStatus() {
  clearTimeout(timer);
  asking ??= ask().finally(() => {
    asking = null;
    if (kind === "locked") return; // a key is waited for
    const wait = kind === "ready" ? CALM_MS : WORRIED_MS;
    timer = setTimeout(() => document.hidden || checkStatus(), wait);
  });
  return asking;
}

async function ask() {
  let engine;
  try {
    ({ engine } = await requestJson("health"));
  } catch (error) {
    const known = error instanceof ServerError && error.status > 0;
    return show(known ? "unavailable" : "unreachable", known ? error.message : "the server does not respond");
  }
  try {
    showModel(await requestJson("props"));
  } catch (error) {
    if (error.status === 401) return show("locked", error.message);
  }
  if (engine === "unloaded") return show("ready", "the next message loads the model again", "unloaded");
  return show("ready", "the server takes requests");
}

let properties = null;

/** What /props says of the model, once it has been asked. */
export function serverProperties() {
  return properties;
}

function showModel(found) {
  properties = found;
  setText(byId("model-name"), found.model);
  byId("model-name").title = `${found.model}, ${found.n_ctx} tokens of context`;
}

function show(found, why, word = SHORT[found]) {
  const element = byId("status");
  element.dataset.kind = found;
  element.title = why;
  setText(element.lastElementChild, word);
  if (found === kind && found !== "locked") return;
  kind = found;
  listeners.forEach((each) => each(found));
}
