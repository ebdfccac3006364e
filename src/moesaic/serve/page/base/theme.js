// Light or dark: as the system says, until the reader has chosen.

import { byId } from "./dom.js";
import { keep, kept } from "./storage.js";

const KEPT = "moesaic.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const listeners = new Set();

export function startTheme() {
  apply(kept(KEPT) ?? "auto");
  byId("theme").addEventListener("click", () => apply(NEXT[document.documentElement.dataset.theme]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => listeners.forEach((each) => each()));
}

/** For drawings, which take their colours from the style. */
export function onThemeChange(listener) {
  listeners.add(listener);
}

export function colour(name) {
  const probe = byId("colour-probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function apply(wanted) {
  const theme = wanted in NEXT ? wanted : "auto";
  document.documentElement.dataset.theme = theme;
  keep(KEPT, theme);
  const label = `Colours: ${NAMES[theme]}`;
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
  listeners.forEach((each) => each());
}
