// Tables: a head, a line of dashes that may say how columns are aligned, and rows.

const MOST_COLUMNS = 64;
const DASHES = /^:?-+:?$/;

/** The table that begins at this line and where it ends, or null. */
export function tableAt(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|")) return null;
  if (!lines[at + 1].includes("-")) return null;
  const dashes = cells(lines[at + 1]);
  const head = cells(lines[at]);
  if (head.length !== dashes.length || head.length > MOST_COLUMNS) return null;
  if (!dashes.every((each) => DASHES.test(each))) return null;
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return [{ type: "table", head, aligned: dashes.map(alignment), rows }, end];
}

/** What stands between the bars; a bar after a backslash or within code is text. */
function cells(line) {
  const found = [""];
  let code = false;
  for (let at = 0; at < line.length; at += 1) {
    const sign = line[at];
    if (sign === "\\" && line[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (sign === "|" && !code) {
      found.push("");
    } else {
      if (sign === "`") code = !code && line.indexOf("`", at + 1) > 0;
      found[found.length - 1] += sign;
    }
  }
  const trimmed = found.map((each) => each.trim());
  if (trimmed.length > 1 && trimmed[0] === "") trimmed.shift();
  if (trimmed.length > 1 && trimmed.at(-1) === "") trimmed.pop();
  return trimmed;
}

function alignment(dashes) {
  if (dashes.endsWith(":")) return dashes.startsWith(":") ? "center" : "end";
  return "start";
}
