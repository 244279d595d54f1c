// The bots of the user.

import { BotEndedError, WaitTimeoutError } from "./errors.js";
import { EventStream, type FollowOptions } from "./event-stream.js";
import { sleep } from "./retries.js";
import type { Transport } from "./transport.js";
import type { Bot, BotEvent, BotLog, BotPage, Explanation, NewBot, Platform, Segment, Status, StreamedEvent } from "./types.js";

// The longest wait of one request; a longer one is several requests.
const WAIT_MS = 30_000;
const PAGE = 1000;

export interface CallOptions {
  signal?: AbortSignal | undefined;
}

export interface StartOptions extends CallOptions {
  /** Made for each call if it is missing. Pass your own to repeat a call safely from another process. */
  idempotencyKey?: string | undefined;
  /** With 0, the call throws `LimitReachedError` at once, instead of waiting for a free place. */
  maxRetries?: number | undefined;
}

export interface ListOptions extends CallOptions {
  status?: Status | undefined;
  platform?: Platform | undefined;
  /** A meeting link, or the id that the platform gave the meeting. */
  meeting?: string | undefined;
  /** Values of the metadata, by key. */
  metadata?: Record<string, string> | undefined;
}

/** The parameters of a list. */
function queryOf<T extends object>({ metadata, ...query }: T & { metadata?: Record<string, string> | undefined }) {
  const pairs = Object.entries(metadata ?? {}).map(([key, value]) => [`metadata.${key}`, value]);
  return { ...query, ...(Object.fromEntries(pairs) as Record<string, string>) };
}

const isEnded = (status: Status | null | undefined) => status === "completed" || status === "failed";

export class Bots {
  constructor(private readonly transport: Transport) {}

  /**
   * Requests a bot for a meeting: by `meeting_url`, or by `platform` and `native_meeting_id`. The bot gets a slot at
   * once or waits in the queue. All attempts of one call send the same idempotency key, so a lost answer makes no
   * second bot.
   */
  async start(bot: NewBot, { idempotencyKey, maxRetries, signal }: StartOptions = {}): Promise<Bot> {
    const headers = { "Idempotency-Key": idempotencyKey ?? randomId() };
    return this.#one({ method: "POST", path: "/bots", body: bot, headers, maxRetries, signal });
  }

  /** The bot, with its sessions. */
  get(botId: string, options: CallOptions = {}): Promise<Bot> {
    return this.#one({ method: "GET", path: pathOf(botId), ...options });
  }

  /**
   * Waits until the bot is active, or has ended. Throws `BotEndedError` if it ended before it was active, and
   * `WaitTimeoutError` after `timeoutMs`.
   */
  async wait(
    botId: string,
    until: "active" | "ended" = "ended",
    { timeoutMs = Infinity, signal }: CallOptions & { timeoutMs?: number } = {},
  ): Promise<Bot> {
    const deadline = Date.now() + timeoutMs;
    while (true) {
      const askedAt = Date.now();
      const bot = await this.#waited(botId, until, deadline - askedAt, signal);
      if (isEnded(bot.status) && until === "active") throw new BotEndedError(bot);
      if (isEnded(bot.status) || (until === "active" && bot.status === "active")) return bot;
      if (Date.now() >= deadline) throw new WaitTimeoutError(bot, until);
      // A server that stops answers at once, with the bot as it is.
      if (Date.now() - askedAt < 1000) await sleep(250, signal);
    }
  }

  /** Asks the bot to leave. Works in every state; a bot that has ended stays as it is. */
  stop(botId: string, options: CallOptions = {}): Promise<Bot> {
    return this.#one({ method: "DELETE", path: pathOf(botId), ...options });
  }

  /** Replaces the configuration of a bot, also while it runs. */
  configure(botId: string, config: Record<string, unknown>, options: CallOptions = {}): Promise<Bot> {
    return this.#one({ method: "PUT", path: pathOf(botId, "/config"), body: { config }, ...options });
  }

  /** One page of bots, newest first. `next_cursor` is the `cursor` of the next page. */
  page({ signal, ...query }: ListOptions & { limit?: number; cursor?: string | null } = {}): Promise<BotPage> {
    return this.transport.call({ method: "GET", path: "/bots", query: queryOf(query), signal });
  }

  /** All bots of the user that the filters find, newest first. Reads one page after the other. */
  list({ signal, ...query }: ListOptions = {}): AsyncGenerator<Bot, void, undefined> {
    return this.#pages("/bots", "bots", queryOf(query), signal);
  }

  /** The bots that have not ended, newest first. */
  active({ signal }: CallOptions = {}): AsyncGenerator<Bot, void, undefined> {
    return this.#pages("/bots/active", "bots", {}, signal);
  }

  /** The events of the bot so far, oldest first. */
  events(botId: string, { signal }: CallOptions = {}): AsyncGenerator<BotEvent, void, undefined> {
    return this.#pages(pathOf(botId, "/events"), "events", {}, signal);
  }

  /** The events of the bot, from its first to its end, as they happen. */
  async *follow(
    botId: string,
    options: Pick<FollowOptions, "giveUpAfterMs" | "signal"> = {},
  ): AsyncGenerator<StreamedEvent, void, undefined> {
    for await (const event of new EventStream(this.transport, { ...options, botId, lastEventId: 0 })) {
      yield event;
      if (isEnded(event.to)) return;
    }
  }

  /** The segments of the transcript so far, in their order in the meeting. */
  transcript(botId: string, { signal }: CallOptions = {}): AsyncGenerator<Segment, void, undefined> {
    return this.#pages(pathOf(botId, "/transcript"), "segments", {}, signal);
  }

  /**
   * The segments as they arrive, until the bot has ended. Asks the server every `pollIntervalMs`.
   *
   * A segment may arrive that sorts before others, so reading on from the last page is not enough. Most come at the
   * end: the last page is read each time, and everything every tenth time and after the end of the bot.
   */
  async *followTranscript(
    botId: string,
    { pollIntervalMs = 2000, signal }: CallOptions & { pollIntervalMs?: number } = {},
  ): AsyncGenerator<Segment, void, undefined> {
    const path = pathOf(botId, "/transcript");
    const seen = new Set<string>();
    let lastPage: string | null = null;
    for (let polls = 1; ; polls++) {
      // Before the segments: all that the bot sent before its end are then there.
      const hasEnded = isEnded((await this.get(botId, { signal })).status);
      let cursor: string | null = hasEnded || polls % 10 === 0 ? null : lastPage;
      do {
        lastPage = cursor;
        const page: Page<"segments", Segment> = await this.#page(path, { cursor }, signal);
        for (const segment of page.segments) {
          // A segment is identified by its content.
          const { start_time, end_time, text, speaker, language, session_uid } = segment;
          const key = JSON.stringify([start_time, end_time, text, speaker, language, session_uid]);
          if (!seen.has(key)) yield segment;
          seen.add(key);
        }
        cursor = page.next_cursor;
      } while (cursor !== null);
      if (hasEnded) return;
      // Answers early if the bot ends meanwhile.
      await this.#waited(botId, "ended", pollIntervalMs, signal);
    }
  }

  /** The last lines that the bot printed. */
  logs(botId: string, { lines = 200, signal }: CallOptions & { lines?: number } = {}): Promise<BotLog> {
    return this.transport.call({ method: "GET", path: pathOf(botId, "/logs"), query: { lines }, signal });
  }

  /** Why the bot is where it is, and what can be done. */
  explain(botId: string, { signal }: CallOptions = {}): Promise<Explanation> {
    return this.transport.call({ method: "GET", path: pathOf(botId, "/explain"), signal });
  }

  async #one(call: Parameters<Transport["call"]>[0]): Promise<Bot> {
    return (await this.transport.call<{ bot: Bot }>(call)).bot;
  }

  #waited(botId: string, until: string, ms: number, signal?: AbortSignal): Promise<Bot> {
    const waitMs = Math.round(Math.max(0, Math.min(ms, WAIT_MS)));
    return this.#one({ method: "GET", path: pathOf(botId), query: { wait_for: until, wait_ms: waitMs }, waitMs, signal });
  }

  #page<K extends string, T>(path: string, query: Record<string, string | null>, signal?: AbortSignal): Promise<Page<K, T>> {
    return this.transport.call({ method: "GET", path, query: { ...query, limit: PAGE }, signal });
  }

  async *#pages<K extends string, T>(
    path: string,
    field: K,
    query: Record<string, string | undefined>,
    signal?: AbortSignal,
  ): AsyncGenerator<T, void, undefined> {
    let cursor: string | null = null;
    do {
      const all = { ...query, limit: PAGE, cursor };
      const page: Page<K, T> = await this.transport.call({ method: "GET", path, query: all, signal });
      yield* page[field];
      cursor = page.next_cursor;
    } while (cursor !== null);
  }
}

type Page<K extends string, T> = { [name in K]: T[] } & { next_cursor: string | null };

function pathOf(botId: string, rest = ""): string {
  return `/bots/${encodeURIComponent(botId)}${rest}`;
}

/** `crypto.randomUUID` exists only on pages that came over https. */
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
