// The chat: which conversation is shown, and what happens to it.

import { announce, byId, setText } from "../base/dom.js";
import { askForKey } from "../base/dialogs.js";
import { checkStatus, onStatus } from "../base/status.js";
import { newAnswer, writeAnswer } from "./answer.js";
import { exportConversation } from "./export.js";
import { drawList } from "./list.js";
import { Pace } from "./pace.js";
import { requestBody } from "./request.js";
import { follow, startScroll, toEnd } from "./scroll.js";
import { describeSettings, editSettings } from "./settings.js";
import { allConversations, isConversationKey, keepSettings, loadConversation, newConversation, save } from "./store.js";
import { turnView } from "./turns.js";
import { drawWelcome } from "./welcome.js";

const LONGEST_SPOKEN = 600; // letters of an answer that are read out

let conversation = newConversation();
let views = new Map(); // of turns
let writing = null; // the AbortController of the answer that is being written

export function startChat() {
  startScroll();
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("message").addEventListener("keydown", keyPressed);
  byId("stop").addEventListener("click", () => writing?.abort());
  byId("new-chat").addEventListener("click", () => open(newConversation()));
  byId("open-settings").addEventListener("click", changeSettings);
  byId("export").addEventListener("click", () => exportConversation(conversation));
  addEventListener("storage", (event) => isConversationKey(event.key) && list());
  document.addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && writing?.abort());
  addEventListener("pagehide", () => writing && keep());
  onStatus(() => drawWelcome(sendText));
  open(allConversations()[0] ?? newConversation());
}

function open(opened) {
  writing?.abort();
  writing = null;
  conversation = opened;
  conversation.turns.forEach(closeAnswers);
  document.body.classList.remove("menu-open");
  views = new Map();
  byId("turns").replaceChildren();
  conversation.turns.forEach(addView);
  refresh();
  toEnd();
  if (matchMedia("(hover: hover)").matches) byId("message").focus();
}

/** An answer that was being written when the page was left goes no further. */
function closeAnswers({ versions = [] }) {
  for (const version of versions) version.ended ??= "stopped";
}

const deeds = {
  isLast: (turn) => conversation.turns.at(-1) === turn,
  enterKey: async (turn) => {
    if (!(await askForKey())) return;
    checkStatus();
    deeds.regenerate(turn);
  },
  regenerate: (turn) => {
    if (writing) return;
    truncate(conversation.turns.indexOf(turn) + 1);
    const { versions, shown } = turn;
    if (versions[shown].error) versions.splice(shown, 1); // a failure is no version to go back to
    answerInto(turn);
  },
  resend: (turn, text) => {
    if (writing) return;
    truncate(conversation.turns.indexOf(turn));
    sendText(text);
  },
  show: (turn, version) => {
    if (writing) return;
    turn.shown = version;
    views.get(turn).build();
    keep();
  },
  returnResults: (results) => {
    if (writing) return;
    results.forEach((result) => addTurn({ role: "tool", ...result }));
    answer();
  },
};

function keyPressed(event) {
  const plain = event.key === "Enter" && !event.shiftKey && !event.isComposing;
  // On a touch screen, Enter begins a new line, as its keyboard shows.
  if (!plain || matchMedia("(pointer: coarse)").matches) return;
  event.preventDefault();
  send();
}

function send() {
  const text = byId("message").value.trim();
  if (!text || writing) return;
  byId("message").value = "";
  sendText(text);
}

function sendText(text) {
  if (writing) return;
  addTurn({ role: "user", text });
  answer();
}

function answer() {
  const turn = { role: "assistant", versions: [], shown: 0 };
  conversation.turns.push(turn);
  answerInto(turn);
}

/** Write a further version of this answer, which is the last turn. */
async function answerInto(turn) {
  const answered = conversation;
  const made = newAnswer();
  turn.versions.push(made);
  turn.shown = turn.versions.length - 1;
  views.has(turn) ? views.get(turn).build() : addView(turn);
  const view = views.get(turn);
  for (const each of views.values()) each.updateCalls?.(); // they may have their results now
  const control = new AbortController();
  writing = control;
  refresh();
  toEnd();
  announce("The answer is being written");
  const pace = new Pace(() => {
    view.update();
    if (conversation === answered) follow();
  });
  const body = requestBody(answered.turns.slice(0, -1), answered.settings);
  keep();
  await writeAnswer(made, body, control.signal, () => pace.ask());
  pace.now();
  if (writing === control) writing = null;
  if (conversation === answered || loadConversation(answered.id)) keep(answered); // not if deleted
  if (conversation === answered) finish(turn, made);
}

function finish(turn, made) {
  refresh();
  if (made.error) checkStatus();
  if (made.error?.status === 401) deeds.enterKey(turn);
  else announce(made.error ? "" : `The answer is complete: ${made.text.slice(0, LONGEST_SPOKEN)}`);
}

function addTurn(turn) {
  conversation.turns.push(turn);
  addView(turn);
}

function addView(turn) {
  const view = turnView(turn, deeds);
  views.set(turn, view);
  byId("turns").append(view.element);
}

/** Drop the turns from here on. */
function truncate(from) {
  for (const turn of conversation.turns.splice(from)) {
    views.get(turn)?.element.remove();
    views.delete(turn);
  }
}

async function changeSettings() {
  const made = await editSettings(conversation.settings);
  if (!made) return;
  conversation.settings = made;
  keepSettings(made);
  if (conversation.turns.length) keep();
  refresh();
}

function keep(kept = conversation) {
  if (!save(kept)) announce("The browser's storage is full: this conversation is not kept");
  list();
}

function list() {
  const opened = (id) => open(loadConversation(id) ?? newConversation());
  const gone = (id) => (id === conversation.id ? open(newConversation()) : list());
  drawList(conversation.id, opened, gone);
}

function refresh() {
  byId("welcome").hidden = conversation.turns.length > 0;
  byId("export").hidden = conversation.turns.length === 0;
  byId("stop").hidden = !writing;
  byId("send").hidden = Boolean(writing);
  setText(byId("settings-note"), describeSettings(conversation.settings));
  drawWelcome(sendText);
  list();
}
