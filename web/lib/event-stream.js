// Reads server-sent events with `fetch`, which tells more than `EventSource`: the status of a refusal, and each sign of life.

import { Problem, readProblem } from "./api.js";
import { learnServerTime } from "./format.js";

/** The server sends a comment every 15 s. A connection that is silent for longer than this is given up. */
const SILENCE_MS = 40_000;

/** @typedef {{type: string, data: string, id: string}} StreamEvent */

/**
 * Reads events until the stream ends, breaks or is aborted. Throws a `Problem` if the server refuses it.
 * @param {string} path
 * @param {{signal: AbortSignal, onOpen: () => void, onEvent: (event: StreamEvent) => void, lastId?: string}} options
 */
export async function readEvents(path, { signal, onOpen, onEvent, lastId }) {
  const silent = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(), SILENCE_MS);
  };
  alive();
  try {
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream" };
    if (lastId) headers["last-event-id"] = lastId;
    const response = await fetch(path, { headers, credentials: "same-origin", cache: "no-store", signal: AbortSignal.any([signal, silent.signal]) });
    learnServerTime(response.headers.get("date"));
    if (!response.ok || !response.body) throw await readProblem(response);
    onOpen();
    const parser = new EventParser(onEvent);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      parser.push(value);
    }
  } catch (error) {
    if (error instanceof Problem || signal.aborted) throw error;
    throw new Problem({ status: 0, code: "unreachable", detail: "The server does not answer." });
  } finally {
    clearTimeout(timer);
  }
}

/** Takes text in pieces of any size, and reports each complete event. */
export class EventParser {
  /** @param {(event: StreamEvent) => void} onEvent */
  constructor(onEvent) {
    this.onEvent = onEvent;
    /** @type {string[]} */
    this.pieces = [];
    this.type = "";
    /** @type {string[]} */
    this.data = [];
    this.id = "";
    this.hasId = false;
  }

  /** @param {string} text */
  push(text) {
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      this.pieces.push(text.slice(start, end));
      const line = this.pieces.join("");
      this.pieces = [];
      this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
      start = end + 1;
    }
    if (start < text.length) this.pieces.push(text.slice(start));
  }

  /** @param {string} line */
  line(line) {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.type = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id") {
      this.id = value;
      this.hasId = true;
    }
  }

  dispatch() {
    if (this.data.length > 0 || this.hasId) this.onEvent({ type: this.type || "message", data: this.data.join("\n"), id: this.id });
    this.type = "";
    this.data = [];
    this.hasId = false;
  }
}
