// The page: its two views, its bar, and the chat to begin with.

import { byId } from "./base/dom.js";
import { startStatus, onStatus } from "./base/status.js";
import { askForKey } from "./base/dialogs.js";
import { checkStatus } from "./base/status.js";
import { startTheme } from "./base/theme.js";
import { startChat } from "./chat/chat.js";
import { showInside } from "./insight/inside.js";

const VIEWS = ["chat", "inside"];

function show() {
  const wanted = location.hash.slice(1);
  if (wanted && !VIEWS.includes(wanted)) return; // a link to a place within the view
  const view = wanted || VIEWS[0];
  for (const each of VIEWS) {
    byId(`${each}-view`).hidden = each !== view;
    if (each === view) byId(`to-${each}`).setAttribute("aria-current", "page");
    else byId(`to-${each}`).removeAttribute("aria-current");
  }
  document.body.classList.toggle("inside", view === "inside");
  document.title = view === "inside" ? "Inside · Moesaic" : "Moesaic";
  showInside(view === "inside");
}

function startMenu() {
  const menu = byId("menu");
  const open = (opened) => {
    document.body.classList.toggle("menu-open", opened);
    menu.setAttribute("aria-expanded", String(opened));
  };
  menu.addEventListener("click", (event) => {
    event.stopPropagation();
    open(!document.body.classList.contains("menu-open"));
  });
  document.addEventListener("click", (event) => byId("sidebar").contains(event.target) || open(false));
  document.addEventListener("keydown", (event) => event.key === "Escape" && open(false));
}

startTheme();
startMenu();
startChat();
addEventListener("hashchange", show);
show();
onStatus((kind) => kind === "locked" && askForKey().then((given) => given && checkStatus()));
startStatus();
