// The client.

import { Bots, type CallOptions } from "./bots.js";
import { GreenroomError } from "./errors.js";
import { EventStream, type FollowOptions } from "./event-stream.js";
import { Transport } from "./transport.js";
import type { Usage } from "./types.js";

export interface GreenroomOptions {
  /** The address of the server. In Node.js, the variable GREENROOM_SERVER is the default. */
  url?: string | undefined;
  /** The API key of a user. In Node.js, the variable GREENROOM_TOKEN is the default. */
  apiKey?: string | undefined;
  /**
   * How often a request is repeated if the connection fails, or the server answers 429 or 503. The client waits as
   * long as the server says in `Retry-After`. Default 5.
   */
  maxRetries?: number | undefined;
  /** Another `fetch`, for example one with a proxy. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** A client of one server, with the API key of one user. */
export class Greenroom {
  readonly bots: Bots;
  readonly #transport: Transport;

  constructor({ url, apiKey, maxRetries = 5, fetch }: GreenroomOptions = {}) {
    const address = url ?? variable("GREENROOM_SERVER");
    const key = apiKey ?? variable("GREENROOM_TOKEN");
    if (!address) throw new GreenroomError("the address of the server is missing: pass `url` or set GREENROOM_SERVER");
    if (!key) throw new GreenroomError("the API key is missing: pass `apiKey` or set GREENROOM_TOKEN");
    // Browsers refuse a `fetch` that is called as a method of another object.
    const send = fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.#transport = new Transport(address.replace(/\/+$/, ""), key, maxRetries, send);
    this.bots = new Bots(this.#transport);
  }

  /**
   * Follows the events of all bots of the user, or of one, without an end. After a lost connection it continues where
   * it was, with nothing missing and nothing twice.
   */
  events(options: FollowOptions = {}): EventStream {
    return new EventStream(this.#transport, options);
  }

  /** How many bots the user runs, its limit, and the bots that have not ended. */
  usage({ signal }: CallOptions = {}): Promise<Usage> {
    return this.#transport.call({ method: "GET", path: "/bots/status", signal });
  }
}

function variable(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name];
}
