// Sends requests, and repeats those that failed. Every request of this client can be repeated safely.

import { GreenroomError, ServerUnreachableError, UnexpectedAnswerError, apiError } from "./errors.js";
import { pauseMs, sleep } from "./retries.js";

const TIMEOUT_MS = 30_000;

export interface Call {
  method: "GET" | "POST" | "PUT" | "DELETE";
  path: string;
  query?: Record<string, string | number | null | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  /** How long the server may take beyond the usual time, because the call waits. */
  waitMs?: number;
  maxRetries?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** Ends a request when the caller's signal is aborted, or when `restart` was not called for some time. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #forward = () => this.#controller.abort(this.#outer?.reason);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isLate = false;

  constructor(ms: number, outer?: AbortSignal) {
    this.#outer = outer;
    if (outer?.aborted) this.#forward();
    outer?.addEventListener("abort", this.#forward, { once: true });
    this.restart(ms);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  restart(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#isLate = true;
      this.#controller.abort();
    }, ms);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#forward);
  }

  /** What a failure of the request means to the caller. */
  explain(what: string, cause: unknown): unknown {
    if (this.#outer?.aborted) return this.#outer.reason;
    const why = this.#isLate ? "no answer in time" : causeOf(cause);
    return new ServerUnreachableError(`${what}: ${why}`, { cause });
  }
}

/** `fetch` of Node.js hides why it failed in the cause of its error. */
function causeOf(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}

export class Transport {
  constructor(
    readonly url: string,
    private readonly apiKey: string,
    private readonly maxRetries: number,
    private readonly fetch: typeof globalThis.fetch,
  ) {}

  /** The answer of one request, after as many attempts as it may have. */
  async call<T>(call: Call): Promise<T> {
    for (let retries = 0; ; retries++) {
      try {
        return await this.#attempt<T>(call);
      } catch (error) {
        const pause = pauseMs(error, retries, call.maxRetries ?? this.maxRetries);
        if (pause === undefined) throw error;
        await sleep(pause, call.signal);
      }
    }
  }

  /** One request, whose answer the caller reads while it watches. */
  send(call: Call, signal: AbortSignal): Promise<Response> {
    const url = new URL(this.url + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value !== undefined && value !== null) url.searchParams.set(name, String(value));
    }
    const headers: Record<string, string> = { Authorization: `Bearer ${this.apiKey}`, ...call.headers };
    const init: RequestInit = { method: call.method, headers, signal, cache: "no-store", redirect: "error" };
    if (call.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(call.body);
    }
    return this.fetch(url, init);
  }

  async #attempt<T>(call: Call): Promise<T> {
    const what = `${call.method} ${call.path}`;
    const watch = new Watch(TIMEOUT_MS + (call.waitMs ?? 0), call.signal);
    let response: Response;
    let text: string;
    try {
      response = await this.send(call, watch.signal);
      if (!response.ok) throw await apiError(response);
      text = await response.text();
    } catch (error) {
      throw isOwn(error) ? error : watch.explain(what, error);
    } finally {
      watch.end();
    }
    try {
      return JSON.parse(text) as T;
    } catch (cause) {
      throw new UnexpectedAnswerError(`${what}: the answer is not one of Greenroom`, { cause });
    }
  }
}

/** Whether an error was made here, and is none of `fetch`. */
export function isOwn(error: unknown): error is GreenroomError {
  return error instanceof GreenroomError;
}
