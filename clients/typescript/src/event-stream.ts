// Follows the events of bots, and continues after a lost connection where it was.

import { ApiError, ServerUnreachableError, UnexpectedAnswerError, apiError } from "./errors.js";
import { MessageParser, type Message } from "./messages.js";
import { backoffMs, isRetryable, sleep } from "./retries.js";
import { Watch, isOwn, type Transport } from "./transport.js";
import type { StreamedEvent } from "./types.js";

// A stream without a sign of life for so long is broken: the server sends one every 15 s.
const SILENCE_MS = 45_000;

export interface FollowOptions {
  /** Only the events of this bot. */
  botId?: string | undefined;
  /** Begin after this event; 0 is the beginning. Without it, the stream begins now. */
  lastEventId?: number | undefined;
  /** How long to try without a server before the stream throws. Default 5 minutes. */
  giveUpAfterMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * Events without an end. It begins with `open`, or else with the first event. `for await` also closes it.
 */
export class EventStream implements AsyncIterableIterator<StreamedEvent, undefined, undefined> {
  /** Where another stream would continue. */
  lastEventId: number | undefined;
  readonly #transport: Transport;
  readonly #options: FollowOptions;
  readonly #events: AsyncGenerator<StreamedEvent | undefined, undefined, undefined>;
  #first: StreamedEvent | undefined;
  #isOpen = false;
  readonly #closed = new AbortController();
  #failures = 0;
  #heardAt = Date.now();
  #firstPauseMs = 1000;

  constructor(transport: Transport, options: FollowOptions) {
    this.#transport = transport;
    this.#options = options;
    this.lastEventId = options.lastEventId;
    const whenClosed = { once: true, signal: this.#closed.signal };
    options.signal?.addEventListener("abort", () => this.#closed.abort(options.signal?.reason), whenClosed);
    if (options.signal?.aborted) this.#closed.abort(options.signal.reason);
    this.#events = this.#follow();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Connects, so that the stream has every event from now on. */
  async open(): Promise<this> {
    if (!this.#isOpen) {
      this.#isOpen = true;
      this.#first = (await this.#events.next()).value;
    }
    return this;
  }

  async next(): Promise<IteratorResult<StreamedEvent, undefined>> {
    this.#isOpen = true;
    let value = this.#first;
    this.#first = undefined;
    while (value === undefined) {
      const result = await this.#events.next();
      if (result.done) return { done: true, value: undefined };
      value = result.value;
    }
    return { done: false, value };
  }

  /** Ends the stream, also while a `next` waits. */
  async return(): Promise<IteratorResult<StreamedEvent, undefined>> {
    this.#closed.abort(CLOSED);
    await this.#events.return(undefined);
    return { done: true, value: undefined };
  }

  /** Ends the stream. */
  async close(): Promise<void> {
    await this.return();
  }

  async *#follow(): AsyncGenerator<StreamedEvent | undefined, undefined, undefined> {
    while (true) {
      let failed: unknown;
      try {
        yield* this.#connection();
      } catch (error) {
        failed = error;
      }
      if (this.#closed.signal.reason === CLOSED) return undefined;
      if (this.#closed.signal.aborted) throw this.#closed.signal.reason;
      await sleep(this.#pauseMs(failed), this.#closed.signal).catch((reason: unknown) => {
        if (reason !== CLOSED) throw reason;
      });
    }
  }

  /** What one connection brings: `undefined` for its position, and the events. */
  async *#connection(): AsyncGenerator<StreamedEvent | undefined, void, undefined> {
    const watch = new Watch(SILENCE_MS, this.#closed.signal);
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (this.lastEventId !== undefined) headers["Last-Event-ID"] = String(this.lastEventId);
      const query = { bot_id: this.#options.botId };
      const response = await this.#transport.send({ method: "GET", path: "/events", headers, query }, watch.signal);
      if (!response.ok) throw await apiError(response);
      reader = response.body?.getReader();
      const parser = new MessageParser();
      while (reader) {
        const { done, value } = await reader.read();
        if (done) return;
        watch.restart(SILENCE_MS);
        this.#heardAt = Date.now();
        for (const message of parser.feed(value)) yield this.#read(message);
      }
    } catch (error) {
      throw isOwn(error) ? error : watch.explain("GET /events", error);
    } finally {
      watch.end();
      // The connection may be broken already.
      await reader?.cancel().catch(() => undefined);
    }
  }

  /** The event of a message. The first message has only the position. */
  #read(message: Message): StreamedEvent | undefined {
    this.#failures = 0;
    this.#firstPauseMs = message.retryMs ?? this.#firstPauseMs;
    const id = message.id === undefined ? undefined : Number(message.id);
    let event: StreamedEvent | undefined;
    try {
      if (id !== undefined && !Number.isSafeInteger(id)) throw new TypeError(`not an id: ${message.id}`);
      event = message.data === undefined ? undefined : (JSON.parse(message.data) as StreamedEvent);
    } catch (cause) {
      throw new UnexpectedAnswerError("GET /events: the message is not one of Greenroom", { cause });
    }
    this.lastEventId = id ?? this.lastEventId;
    return event;
  }

  /** How long to wait before the next connection. Throws the error if none can help. */
  #pauseMs(error: unknown): number {
    const isServerFault = error instanceof ApiError && error.status >= 500;
    if (error !== undefined && !isRetryable(error) && !isServerFault) throw error;
    const silentMs = Date.now() - this.#heardAt;
    if (silentMs > (this.#options.giveUpAfterMs ?? 300_000)) {
      const seconds = Math.round(silentMs / 1000);
      throw error ?? new ServerUnreachableError(`the stream of events ended, and did not continue for ${seconds} s`);
    }
    const pause = backoffMs(this.#failures++, this.#firstPauseMs);
    return error instanceof ApiError ? Math.max(pause, (error.retryAfter ?? 0) * 1000) : pause;
  }
}

const CLOSED = Symbol("closed");
