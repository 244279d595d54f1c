// Calls of the API, with the cookie of the session. Errors are thrown as `Problem`, as the server describes them.

import { learnServerTime } from "./format.js";

/** An error of the API, or of the way to it. */
export class Problem extends Error {
  /** @param {{status: number, code: string, detail: string, title?: string, request_id?: string | null, bot_id?: string}} fields */
  constructor({ status, code, detail, title = "", request_id = null, bot_id }) {
    super(detail);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.title = title;
    this.request_id = request_id;
    this.bot_id = bot_id;
  }
}

/** @type {Set<() => void>} */
const unauthorizedListeners = new Set();

/**
 * Calls the listener when the server says that the session is over.
 * @param {() => void} listener
 */
export function onUnauthorized(listener) {
  unauthorizedListeners.add(listener);
}

/**
 * Makes a call. Returns the JSON of the answer, or `null` if it has none.
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @param {{signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<any>}
 */
export async function call(method, path, body, options = {}) {
  const response = await send(method, path, body, options);
  if (response.status === 204) return null;
  const text = await response.text();
  return text === "" ? null : JSON.parse(text);
}

/**
 * Reads a text.
 * @param {string} path
 */
export async function getText(path) {
  return (await send("GET", path)).text();
}

/**
 * Reads an image and returns a URL for it. The caller gives it back with `URL.revokeObjectURL`.
 * @param {string} path
 */
export async function getBlobUrl(path) {
  return URL.createObjectURL(await (await send("GET", path)).blob());
}

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @param {{signal?: AbortSignal, headers?: Record<string, string>}} [options]
 */
async function send(method, path, body, { signal, headers = {} } = {}) {
  /** @type {RequestInit} */
  const request = {
    method,
    signal,
    headers: { accept: "application/json, */*;q=0.5", ...headers },
    credentials: "same-origin",
    cache: "no-store",
  };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers = { ...request.headers, "content-type": "application/json" };
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem({ status: 0, code: "unreachable", title: "No answer", detail: "The server does not answer." });
  }
  learnServerTime(response.headers.get("date"));
  if (!response.ok) throw await readProblem(response);
  return response;
}

/**
 * Turns a refusal into a `Problem`, and reports a session that is over.
 * @param {Response} response
 */
export async function readProblem(response) {
  const fallback = {
    status: response.status,
    code: "http_" + response.status,
    title: response.statusText,
    // A proxy says so when the server behind it is away.
    detail: [502, 504].includes(response.status)
      ? "The server does not answer."
      : `The server answered ${response.status} ${response.statusText}.`,
    request_id: response.headers.get("x-request-id"),
  };
  let sent = {};
  try {
    sent = await response.json();
  } catch {
    // A proxy answered, or the connection broke: the status has to do.
  }
  if (response.status === 401) for (const listener of unauthorizedListeners) listener();
  return new Problem({ ...fallback, ...sent });
}

/**
 * Any error as a `Problem`, so that views have one kind to show.
 * @param {unknown} error
 */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem({ status: 0, code: "page_error", title: "The page failed", detail });
}

/**
 * The same call as a command for a shell. The token is read from the environment.
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 */
export function asCurl(method, path, body) {
  const parts = ["curl", "-sS"];
  if (method !== "GET") parts.push("-X", method);
  parts.push(quoted(location.origin + path), "-H", '"Authorization: Bearer $GREENROOM_TOKEN"');
  if (body !== undefined) parts.push("-H", "'Content-Type: application/json'", "-d", quoted(JSON.stringify(body)));
  return parts.join(" ");
}

/** @param {string} text */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
