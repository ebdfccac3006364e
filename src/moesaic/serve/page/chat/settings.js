// The dialog of a conversation's settings. An empty field leaves the choice to the server.

import { byId } from "../base/dom.js";
import { openDialog } from "../base/dialogs.js";
import { serverProperties } from "../base/status.js";

const NUMBERS = {
  temperature: { least: 0, most: 10 },
  top_p: { least: 0, most: 1, above: true },
  max_tokens: { least: 1, whole: true },
  seed: { least: 0, whole: true },
};
const FIELDS = ["system", ...Object.keys(NUMBERS), "thinking", "tools"];

/** Resolves to the settings that were applied, or to null. */
export async function editSettings(settings) {
  for (const name of FIELDS) field(name).value = settings[name] ?? "";
  showDefaults();
  mistake("");
  const made = {};
  const applied = await openDialog("settings", () => {
    for (const name of FIELDS) made[name] = field(name).value.trim();
    return mistake(wrongNumber(made) ?? wrongTools(made.tools) ?? "");
  });
  return applied ? made : null;
}

/** What differs from the server's own choice, in a few words. */
export function describeSettings(settings) {
  const numbers = Object.keys(NUMBERS).filter((name) => settings[name]).map((name) => `${name} ${settings[name]}`);
  if (settings.thinking) numbers.push(`thinking ${settings.thinking}`);
  if (settings.system) numbers.unshift("system prompt");
  if (settings.tools) numbers.push("tools");
  return numbers.join(" · ");
}

function showDefaults() {
  const properties = serverProperties();
  const defaults = properties?.default_generation_settings ?? {};
  for (const name of ["temperature", "top_p"]) field(name).placeholder = defaults[name] ?? "";
  field("max_tokens").placeholder = properties ? `up to ${properties.n_ctx}` : "";
  field("seed").placeholder = "another each time";
}

/** Shows the sentence; false when there is one. */
function mistake(sentence) {
  byId("settings-error").textContent = sentence;
  return sentence === "";
}

function wrongNumber(made) {
  for (const [name, { least, most = Infinity, whole, above }] of Object.entries(NUMBERS)) {
    if (made[name] === "") continue;
    made[name] = made[name].replace(",", ".");
    const value = Number(made[name]);
    const good = value >= least && value <= most && !(above && value === least) && (!whole || Number.isSafeInteger(value));
    if (!good) return `${name} is ${made[name]}: give ${range(least, most, whole, above)}, or leave it empty.`;
  }
  return null;
}

function range(least, most, whole, above) {
  const kind = whole ? "a whole number" : "a number";
  const from = above ? `above ${least}` : `from ${least}`;
  return most === Infinity ? `${kind} ${from}` : `${kind} ${from} to ${most}`;
}

function wrongTools(text) {
  if (!text) return null;
  try {
    const tools = JSON.parse(text);
    const good = Array.isArray(tools) && tools.every((tool) => typeof tool?.function?.name === "string");
    return good ? null : 'The tools are no list of functions: write [{"type": "function", "function": {"name": ..., "parameters": ...}}].';
  } catch (error) {
    return `The tools are not JSON: ${error.message}`;
  }
}

function field(name) {
  return byId(`set-${name}`);
}
