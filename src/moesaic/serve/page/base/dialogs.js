// Dialogs close with their Cancel buttons, with Escape, and with a click beside them.

import { byId } from "./dom.js";
import { apiKey, setApiKey } from "./api.js";

export function openDialog(id, onSubmit) {
  const dialog = byId(id);
  const form = dialog.querySelector("form");
  form.onsubmit = (event) => {
    event.preventDefault();
    if (onSubmit() !== false) dialog.close("done");
  };
  for (const button of dialog.querySelectorAll("[data-close]")) button.onclick = () => dialog.close("");
  dialog.onclick = (event) => {
    if (event.target === dialog) dialog.close("");
  };
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue === "done")));
}

/** Ask for the server's key. Resolves to whether one was given. */
export function askForKey(reason) {
  byId("key-reason").textContent = apiKey()
    ? "The key that this page has is none of this server's. Enter another one."
    : reason || "Its operator gave it keys (--api-key, --api-key-file). Enter one of them.";
  byId("key").value = "";
  return openDialog("key-dialog", () => {
    const key = byId("key").value.trim();
    if (!key) return false;
    setApiKey(key, byId("keep-key").checked);
    return true;
  });
}
