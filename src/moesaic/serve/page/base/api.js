// Requests to the server that this page came from, with the key where it wants one.

import { forget, keep, kept } from "./storage.js";

const KEY = "moesaic.key";
let current = null; // where the browser keeps nothing
const TIMEOUT_MS = 20_000;

/** What the server, or the way to it, said instead of an answer. `status` 0: no response. */
export class ServerError extends Error {
  constructor(status, message, code = null, retryS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryS = retryS;
  }
}

export function apiKey() {
  return current ?? kept(KEY, "sessionStorage") ?? kept(KEY) ?? "";
}

/** Unless it is to `stay`, the key is forgotten with the tab. */
export function setApiKey(key, stay) {
  forget(KEY, "sessionStorage");
  forget(KEY);
  current = key;
  keep(KEY, key, stay ? "localStorage" : "sessionStorage");
}

/** The response, if it is a good one; else a ServerError is thrown. Paths are relative to the page,
 * so that a proxy may put it anywhere. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${encodable(apiKey())}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "no response came");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function requestJson(path, options = {}) {
  const signal = options.signal ?? AbortSignal.timeout(TIMEOUT_MS);
  try {
    return await (await request(path, { ...options, signal })).json();
  } catch (error) {
    if (error instanceof ServerError) throw error;
    throw new ServerError(0, "no response came in time, or it was cut off");
  }
}

/** The error that a stream carries, as the ServerError it would have been before the stream. */
export function errorInStream(error) {
  return new ServerError(error.type === "service_unavailable" ? 503 : 500, error.message, error.code);
}

async function errorOf(response) {
  const retry = Number(response.headers.get("Retry-After")) || null;
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // A proxy before the server answers with a page of its own.
  }
  const message = error?.message ?? `the response has status ${response.status}`;
  return new ServerError(response.status, message, error?.code ?? null, retry);
}

/** A header may hold no line ends and no letters beyond Latin ones. */
function encodable(key) {
  return key.replace(/[^\x20-\x7e]/g, "?");
}
