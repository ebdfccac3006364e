// A conversation as a file.

import { byId } from "../base/dom.js";
import { openDialog } from "../base/dialogs.js";
import { download } from "../base/files.js";

export function exportConversation(conversation) {
  const done = openDialog("export-dialog", () => true);
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";
  const give = (kind, type, text) => () => {
    download(`${name}.${kind}`, new Blob([text], { type }));
    byId("export-dialog").close();
  };
  byId("export-json").onclick = give("json", "application/json", JSON.stringify(conversation, null, 2));
  byId("export-markdown").onclick = give("md", "text/markdown", asMarkdown(conversation));
  return done;
}

export function asMarkdown({ title, settings, turns }) {
  const system = settings.system ? [`**System**\n\n${settings.system}`] : [];
  return `${[`# ${title || "Conversation"}`, ...system, ...turns.map(turnText)].join("\n\n")}\n`;
}

function turnText(turn) {
  if (turn.role === "user") return `**You**\n\n${turn.text}`;
  if (turn.role === "tool") return `**Result of ${turn.name}**\n\n${fenced(turn.text)}`;
  const { text, reasoning, calls } = turn.versions[turn.shown];
  const parts = ["**Answer**"];
  if (reasoning) parts.push(reasoning.split("\n").map((line) => `> ${line}`).join("\n"));
  if (text) parts.push(text);
  for (const call of calls) parts.push(`Calls \`${call.name}\`:\n\n${fenced(call.arguments)}`);
  return parts.join("\n\n");
}

/** With a fence longer than any in the text. */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
