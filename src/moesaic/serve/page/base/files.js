// Text to the clipboard, and files to the reader's disk.

import { announce, h } from "./dom.js";

const SHOWN_MS = 1500;

/** Browsers offer `navigator.clipboard` to pages of this machine and to those over TLS alone. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}

/** A button that copies what `text()` returns. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet small copy" }, label);
  button.addEventListener("click", async () => {
    const copied = await copyText(text());
    button.textContent = copied ? "Copied" : "Not allowed";
    announce(copied ? "Copied" : "The browser does not allow copying");
    setTimeout(() => (button.textContent = label), SHOWN_MS);
  });
  return button;
}

export function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
