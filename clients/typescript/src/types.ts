// The types of the API, by short names. They come from the OpenAPI document.

import type { components } from "./schema.js";

type Schemas = components["schemas"];

export type Bot = Schemas["Bot"];
export type BotLog = Schemas["BotLog"];
export type BotPage = Schemas["BotPage"];
/** What `POST /bots` takes. */
export type NewBot = Schemas["NewBot"];
export type BotEvent = Schemas["Event"];
export type EventKind = Schemas["EventKind"];
export type Explanation = Schemas["Explanation"];
export type Fault = Schemas["Fault"];
export type LogLine = Schemas["LogLine"];
export type Platform = Schemas["Platform"];
export type Problem = Schemas["Problem"];
export type Requirements = Schemas["Requirements"];
export type Segment = Schemas["Segment"];
export type Session = Schemas["Session"];
export type Status = Schemas["Status"];
export type StreamedEvent = Schemas["StreamedEvent"];
export type Usage = Schemas["Usage"];
