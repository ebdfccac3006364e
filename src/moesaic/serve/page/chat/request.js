// From a conversation to the body of a request.

/** `turns` up to the answer that is wanted. */
export function requestBody(turns, settings) {
  const body = {
    messages: messages(turns, settings.system),
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools?.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

export function messages(turns, system) {
  const first = system?.trim() ? [{ role: "system", content: system }] : [];
  return [...first, ...turns.map(message)];
}

function message(turn) {
  if (turn.role === "user") return { role: "user", content: turn.text };
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, name: turn.name, content: turn.text };
  const { text, reasoning, calls } = turn.versions[turn.shown];
  const made = { role: "assistant", content: text };
  if (reasoning) made.reasoning_content = reasoning;
  if (calls.length) made.tool_calls = calls.map(toolCall);
  return made;
}

function toolCall({ id, name, arguments: text }) {
  return { id, type: "function", function: { name, arguments: isJson(text) ? text : "{}" } };
}

function isJson(text) {
  try {
    return typeof JSON.parse(text || "{}") === "object";
  } catch {
    return false;
  }
}
