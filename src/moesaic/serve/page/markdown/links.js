// Which addresses a model's text may lead to: web pages and mail, and no script or file.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const LONGEST = 2048;

/** The address as a browser reads it, or null. Relative ones would lead to this server. */
export function safeAddress(text) {
  if (text.length > LONGEST) return null;
  let address;
  try {
    address = new URL(text);
  } catch {
    return null;
  }
  return SCHEMES.has(address.protocol) ? address.href : null;
}
