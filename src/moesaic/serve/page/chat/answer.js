// One answer of the model, written from the stream of /v1/chat/completions.
//
// An answer: {text, reasoning, calls: [{id, name, arguments}], ended, error, figures}. `ended` is the
// API's finish_reason, "stopped" by the reader, "failed", or null while it is written.

import { errorInStream, request, ServerError } from "../base/api.js";
import { serverEvents } from "../base/events.js";

export function newAnswer() {
  return { text: "", reasoning: "", calls: [], ended: null, error: null, figures: null };
}

/** Fill the answer as it comes and call `changed` each time. Resolves when it has ended. */
export async function writeAnswer(answer, body, signal, changed) {
  const clock = new Clock();
  try {
    const { body: stream } = await request("v1/chat/completions", { body, signal });
    for await (const data of serverEvents(stream)) {
      if (data === "[DONE]") break;
      add(answer, JSON.parse(data), clock);
      changed();
    }
    if (!answer.ended) throw new ServerError(0, "the answer was cut off");
  } catch (error) {
    if (error.name === "AbortError") answer.ended = "stopped";
    else fail(answer, error);
  }
  answer.figures = clock.figures(answer);
  changed();
}

function fail(answer, error) {
  const lost = !(error instanceof ServerError);
  if (lost) console.warn("The stream ended:", error.message);
  const { status, message, code, retryS } = lost ? new ServerError(0, "the connection was lost") : error;
  answer.ended = "failed";
  answer.error = { status, message, code, retryS };
}

function add(answer, chunk, clock) {
  if (chunk.error) throw errorInStream(chunk.error);
  if (chunk.usage) clock.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || reasoning || calls) clock.tick(Boolean(content || calls));
  answer.text += content ?? "";
  answer.reasoning += reasoning ?? "";
  for (const call of calls ?? []) addCall(answer.calls, call);
  if (choice.finish_reason) answer.ended = choice.finish_reason;
}

function addCall(calls, { index, id, function: called }) {
  calls[index] ??= { id: id ?? "", name: "", arguments: "" };
  calls[index].name += called?.name ?? "";
  calls[index].arguments += called?.arguments ?? "";
}

class Clock {
  constructor() {
    this.begun = performance.now();
    this.first = this.last = this.said = null;
    this.pieces = 0;
    this.usage = null;
  }

  tick(said) {
    this.last = performance.now();
    this.first ??= this.last;
    if (said) this.said ??= this.last;
    this.pieces += 1;
  }

  /** Without the server's count (an answer that was stopped), pieces of the stream are counted. */
  figures({ reasoning }) {
    if (this.first === null) return null;
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const wrote = (this.last - this.first) / 1000;
    return {
      tokens,
      counted: Boolean(this.usage),
      prompt: this.usage?.prompt_tokens ?? null,
      cached: this.usage?.prompt_tokens_details?.cached_tokens ?? null,
      first_s: (this.first - this.begun) / 1000,
      reasoned_s: reasoning && this.said ? (this.said - this.first) / 1000 : null,
      rate: tokens > 1 && wrote > 0 ? (tokens - 1) / wrote : null,
    };
  }
}
