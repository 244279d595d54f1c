// The types of the API, by short names. They come from the OpenAPI document.

/** @typedef {import("#api").components["schemas"]} Schemas */
/** @typedef {Schemas["Bot"]} Bot */
/** @typedef {Schemas["Slot"]} Slot */
/** @typedef {Schemas["Pool"]} Pool */
/** @typedef {Schemas["QueueEntry"]} QueueEntry */
/** @typedef {Schemas["AttentionItem"]} AttentionItem */
/** @typedef {Schemas["Deployments"]} Deployments */
/** @typedef {Schemas["Pull"]} Pull */
/** @typedef {Schemas["Keeper"]} Keeper */
/** @typedef {Schemas["User"]} User */
/** @typedef {Schemas["Usage"]} Usage */
/** @typedef {Schemas["Event"]} BotEvent */
/** @typedef {Schemas["StreamedEvent"]} StreamedEvent */
/** @typedef {Schemas["Explanation"]} Explanation */
/** @typedef {Schemas["AuditEntry"]} AuditEntry */
/** @typedef {Schemas["Step"]} Step */
/** @typedef {Schemas["Segment"]} Segment */
/** @typedef {Schemas["LogLine"]} LogLine */
/** @typedef {Schemas["Failure"]} Failure */
/** @typedef {Schemas["BrowserSession"]} BrowserSession */

/**
 * A slot in the live state. `since` is in seconds since 1970. A record is never changed: a change makes a new one.
 * @typedef {object} LiveSlot
 * @property {string} name
 * @property {string} pool
 * @property {number} number
 * @property {string} status
 * @property {number} since
 * @property {boolean} hot
 * @property {string} [bot_id]
 */

/** @typedef {{id: string, status: string, since: number, slot?: string}} LiveBot */

/**
 * A bot in the queue.
 * @typedef {object} LiveQueueEntry
 * @property {string} bot_id
 * @property {string} platform
 * @property {number} priority
 * @property {number} turn
 * @property {number} arrival
 * @property {string} pool
 * @property {number} queued_at
 * @property {number} timeout_at
 */

/** @typedef {{host: string, active: number, queued: number, max_concurrent: number}} LiveGate */

/**
 * @typedef {object} LiveKeeper
 * @property {string} name
 * @property {number | null} last_run
 * @property {number | null} took_ms
 * @property {string | null} error
 * @property {number | null} next_run
 * @property {string | null} leader
 */

/**
 * What one message changed. `snapshot`: everything may be new. `structure`: slots came or went. Slots are given as they
 * are now.
 * @typedef {object} Changes
 * @property {boolean} snapshot
 * @property {boolean} structure
 * @property {LiveSlot[]} slots
 * @property {string[]} slotsGone
 * @property {LiveBot[]} bots
 * @property {string[]} botsGone
 * @property {boolean} queue
 * @property {boolean} gates
 * @property {boolean} keepers
 * @property {boolean} connection
 */

export {};
