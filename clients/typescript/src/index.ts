// Client for Greenroom, the control plane that keeps meeting bots warm. In reading order: `client` and `bots` have the
// methods, `event-stream` follows events, `messages` reads server-sent events, `transport` sends requests and repeats
// them, `retries` says which and when, `errors` has what is thrown. `schema` is generated from the OpenAPI document.

export { Greenroom, type GreenroomOptions } from "./client.js";
export { Bots, type CallOptions, type ListOptions, type StartOptions } from "./bots.js";
export { EventStream, type FollowOptions } from "./event-stream.js";
export * from "./errors.js";
export type * from "./types.js";
