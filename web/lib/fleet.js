// The live state of the fleet, decoded from the messages of `GET /admin/live`. A message costs what it changes, and not
// the number of slots. Views read it with `useFleet`, the canvas listens with `subscribe`.

import { useEffect, useReducer, useRef } from "./html.js";
import { now } from "./format.js";

/** @typedef {import("./types.js").LiveSlot} LiveSlot */
/** @typedef {import("./types.js").LiveBot} LiveBot */
/** @typedef {import("./types.js").LiveQueueEntry} LiveQueueEntry */
/** @typedef {import("./types.js").LiveGate} LiveGate */
/** @typedef {import("./types.js").LiveKeeper} LiveKeeper */
/** @typedef {import("./types.js").Changes} Changes */

/** @typedef {{name: string, platform: string}} LivePool */
/** @typedef {Record<string, number>} Counts */

/**
 * Slots, bots and their counts. A snapshot fills a new one in slices while the old one is shown.
 * @typedef {object} State
 * @property {LivePool[]} pools
 * @property {string[]} slotStatuses
 * @property {string[]} botStatuses
 * @property {Map<string, LiveSlot>} slots
 * @property {Map<string, string[]>} order names of the slots of each pool, by number
 * @property {Map<string, LiveBot>} bots
 * @property {Map<string, string>} botOf the bot of each slot; it may be known before the slot is
 * @property {Map<string, LiveQueueEntry>} waiting
 * @property {LiveGate[]} gates
 * @property {LiveKeeper[]} keepers
 * @property {Counts} slotCounts
 * @property {Map<string, Counts>} poolCounts
 * @property {Counts} botCounts
 * @property {number} hotIdle
 */

/** @returns {State} */
function emptyState() {
  return {
    pools: [], slotStatuses: [], botStatuses: [], slots: new Map(), order: new Map(), bots: new Map(), botOf: new Map(), waiting: new Map(),
    gates: [], keepers: [], slotCounts: {}, poolCounts: new Map(), botCounts: {}, hotIdle: 0,
  };
}

let state = emptyState();
/** @type {LiveQueueEntry[] | null} */
let sortedQueue = null;

/** What views read. `retryAt` and `problem` say more while it is not connected. */
export const fleet = {
  connected: false,
  /** Whether a snapshot has come. */
  loaded: false,
  /** When the last message came, in milliseconds since 1970. */
  at: 0,
  /** Increases when slots come or go. */
  structure: 0,
  /** @type {number | null} */
  retryAt: null,
  /** @type {string | null} */
  problem: null,
  get pools() { return state.pools; },
  get slots() { return state.slots; },
  get bots() { return state.bots; },
  get gates() { return state.gates; },
  get keepers() { return state.keepers; },
  get slotCounts() { return state.slotCounts; },
  get botCounts() { return state.botCounts; },
  get hotIdle() { return state.hotIdle; },
  /** The queue: platform by platform, each in the order in which bots are served. */
  get queue() { return (sortedQueue ??= [...state.waiting.values()].sort(inQueueOrder)); },
  /** @param {string} pool */
  slotNames(pool) { return state.order.get(pool) ?? []; },
  /** @param {string} pool @returns {Counts} */
  countsOf(pool) { return state.poolCounts.get(pool) ?? {}; },
};

/**
 * @param {LiveQueueEntry} a
 * @param {LiveQueueEntry} b
 */
function inQueueOrder(a, b) {
  if (a.platform !== b.platform) return a.platform < b.platform ? -1 : 1;
  return a.priority - b.priority || a.turn - b.turn || a.arrival - b.arrival;
}

/**
 * The name of a slot, as the server makes it.
 * @param {string} pool
 * @param {number} number
 */
export function slotName(pool, number) {
  return `pool-${pool}-${String(number).padStart(3, "0")}`;
}

/** @returns {Changes} */
function noChanges() {
  return { snapshot: false, slots: [], slotsGone: [], bots: [], botsGone: [], queue: false, gates: false, keepers: false, connection: false };
}

// ---- decoding ----

/** Work on a snapshot rests after this time, so that the page stays responsive. */
const SLICE_MS = 8;

/**
 * Takes a snapshot in. The old state is shown until the new one is complete.
 * @param {any} data
 */
export async function applySnapshot(data) {
  const next = emptyState();
  next.slotStatuses = data.slot_statuses;
  next.botStatuses = data.bot_statuses;
  next.pools = data.pools.map((/** @type {string[]} */ [name, platform]) => ({ name, platform }));
  for (const { name } of next.pools) {
    next.order.set(name, []);
    next.poolCounts.set(name, {});
  }
  let begun = performance.now();
  const rest = async () => {
    // A hidden page has nothing to keep responsive, and its timers are slow.
    if (document.hidden || performance.now() - begun < SLICE_MS) return;
    await new Promise((resume) => setTimeout(resume));
    begun = performance.now();
  };
  const changes = noChanges();
  for (const [pool, entries] of data.slots.entries()) {
    for (const [index, [number, status, since, hot]] of entries.entries()) {
      putSlot(next, [pool, number, status, since, hot], changes);
      if (index % 256 === 255) await rest();
    }
  }
  for (const [index, entry] of data.bots.entries()) {
    putBot(next, entry, changes);
    if (index % 256 === 255) await rest();
  }
  for (const entry of data.queue) putWaiting(next, entry);
  next.gates = data.gates.map(decodeGate);
  next.keepers = data.keepers.map(decodeKeeper);
  state = next;
  sortedQueue = null;
  fleet.loaded = true;
  fleet.structure += 1;
  publish({ ...noChanges(), snapshot: true, queue: true, gates: true, keepers: true });
}

/**
 * Takes a change in. Without a snapshot before it there is nothing to change.
 * @param {any} data
 */
export function applyChange(data) {
  if (!fleet.loaded) return;
  const changes = noChanges();
  // Counts that change are new objects, so that views notice.
  if (data.slots || data.slots_gone) state.slotCounts = { ...state.slotCounts };
  if (data.bots || data.bots_gone) state.botCounts = { ...state.botCounts };
  for (const entry of data.slots ?? []) putSlot(state, entry, changes);
  for (const [pool, number] of data.slots_gone ?? []) removeSlot(state, slotName(state.pools[pool].name, number), changes);
  for (const entry of data.bots ?? []) putBot(state, entry, changes);
  for (const id of data.bots_gone ?? []) removeBot(state, decodeBotId(id), changes);
  for (const entry of data.queue ?? []) putWaiting(state, entry);
  for (const id of data.queue_gone ?? []) state.waiting.delete(decodeBotId(id));
  if (data.queue || data.queue_gone) {
    sortedQueue = null;
    changes.queue = true;
  }
  if (data.gates) {
    state.gates = data.gates.map(decodeGate);
    changes.gates = true;
  }
  if (data.keepers) {
    state.keepers = data.keepers.map(decodeKeeper);
    changes.keepers = true;
  }
  publish(changes);
}

/**
 * The id of a bot from the encoding.
 * @param {string} sent
 */
function decodeBotId(sent) {
  return sent;
}

/**
 * @param {State} into
 * @param {[number, number, number, number, number | boolean]} entry
 * @param {Changes} changes
 */
function putSlot(into, [poolIndex, number, status, since, hot], changes) {
  const pool = into.pools[poolIndex].name;
  const name = slotName(pool, number);
  const earlier = into.slots.get(name);
  if (earlier) countSlot(into, earlier, -1);
  else insertInOrder(into, pool, name, number);
  const slot = { name, pool, number, status: into.slotStatuses[status], since, hot: Boolean(hot), bot_id: into.botOf.get(name) };
  into.slots.set(name, slot);
  countSlot(into, slot, 1);
  changes.slots.push(slot);
}

/**
 * @param {State} into
 * @param {string} pool
 * @param {string} name
 * @param {number} number
 */
function insertInOrder(into, pool, name, number) {
  const names = /** @type {string[]} */ (into.order.get(pool));
  let at = names.length;
  while (at > 0 && /** @type {LiveSlot} */ (into.slots.get(names[at - 1])).number > number) at -= 1;
  names.splice(at, 0, name);
  if (into === state) fleet.structure += 1;
}

/**
 * @param {State} into
 * @param {string} name
 * @param {Changes} changes
 */
function removeSlot(into, name, changes) {
  const slot = into.slots.get(name);
  if (!slot) return;
  countSlot(into, slot, -1);
  into.slots.delete(name);
  const names = /** @type {string[]} */ (into.order.get(slot.pool));
  names.splice(names.indexOf(name), 1);
  changes.slotsGone.push(name);
  fleet.structure += 1;
}

/**
 * @param {State} into
 * @param {LiveSlot} slot
 * @param {1 | -1} by
 */
function countSlot(into, slot, by) {
  add(into.slotCounts, slot.status, by);
  add(/** @type {Counts} */ (into.poolCounts.get(slot.pool)), slot.status, by);
  if (slot.hot && slot.status === "idle") into.hotIdle += by;
}

/**
 * @param {Counts} counts
 * @param {string} status
 * @param {number} by
 */
function add(counts, status, by) {
  counts[status] = (counts[status] ?? 0) + by;
}

/**
 * @param {State} into
 * @param {[string, number, number, number?, number?]} entry
 * @param {Changes} changes
 */
function putBot(into, [sentId, status, since, pool, number], changes) {
  const id = decodeBotId(sentId);
  const slot = pool === undefined || number === undefined ? undefined : slotName(into.pools[pool].name, number);
  const earlier = into.bots.get(id);
  if (earlier) add(into.botCounts, earlier.status, -1);
  if (earlier?.slot && earlier.slot !== slot) clearBotOf(into, earlier.slot, id, changes);
  const bot = { id, status: into.botStatuses[status], since, slot };
  into.bots.set(id, bot);
  add(into.botCounts, bot.status, 1);
  if (slot && into.botOf.get(slot) !== id) {
    into.botOf.set(slot, id);
    showBotOf(into, slot, changes);
  }
  changes.bots.push(bot);
}

/**
 * @param {State} into
 * @param {string} id
 * @param {Changes} changes
 */
function removeBot(into, id, changes) {
  const bot = into.bots.get(id);
  if (!bot) return;
  add(into.botCounts, bot.status, -1);
  into.bots.delete(id);
  if (bot.slot) clearBotOf(into, bot.slot, id, changes);
  changes.botsGone.push(id);
}

/**
 * The bot has left the slot. This changes nothing when the slot already has another bot.
 * @param {State} into
 * @param {string} slot
 * @param {string} id
 * @param {Changes} changes
 */
function clearBotOf(into, slot, id, changes) {
  if (into.botOf.get(slot) !== id) return;
  into.botOf.delete(slot);
  showBotOf(into, slot, changes);
}

/**
 * @param {State} into
 * @param {string} name
 * @param {Changes} changes
 */
function showBotOf(into, name, changes) {
  const slot = into.slots.get(name);
  if (!slot) return;
  const changed = { ...slot, bot_id: into.botOf.get(name) };
  into.slots.set(name, changed);
  changes.slots.push(changed);
}

/**
 * @param {State} into
 * @param {[string, string, number, number, number, string, number, number]} entry
 */
function putWaiting(into, [sentId, platform, priority, turn, arrival, pool, queued_at, timeout_at]) {
  const bot_id = decodeBotId(sentId);
  into.waiting.set(bot_id, { bot_id, platform, priority, turn, arrival, pool, queued_at, timeout_at });
}

/** @param {[string, number, number, number]} entry @returns {LiveGate} */
function decodeGate([host, active, queued, max_concurrent]) {
  return { host, active, queued, max_concurrent };
}

/** @param {[string, number | null, number | null, string | null, number | null, string | null]} entry @returns {LiveKeeper} */
function decodeKeeper([name, last_run, took_ms, error, next_run, leader]) {
  return { name, last_run, took_ms, error, next_run, leader };
}

/** The state as a snapshot in the same encoding, for a tab that was just opened. `null` before the first snapshot. */
export function encodeSnapshot() {
  if (!fleet.loaded) return null;
  const pools = new Map(state.pools.map(({ name }, index) => [name, index]));
  const slotStatuses = new Map(state.slotStatuses.map((status, index) => [status, index]));
  const botStatuses = new Map(state.botStatuses.map((status, index) => [status, index]));
  const slots = state.pools.map(({ name }) =>
    fleet.slotNames(name).map((slotKey) => {
      const slot = /** @type {LiveSlot} */ (state.slots.get(slotKey));
      return [slot.number, slotStatuses.get(slot.status), slot.since, slot.hot ? 1 : 0];
    }),
  );
  const bots = [...state.bots.values()].map((bot) => {
    const slot = bot.slot && state.slots.get(bot.slot);
    const start = [bot.id, botStatuses.get(bot.status), bot.since];
    return slot ? [...start, pools.get(slot.pool), slot.number] : start;
  });
  return JSON.stringify({
    slot_statuses: state.slotStatuses,
    bot_statuses: state.botStatuses,
    pools: state.pools.map(({ name, platform }) => [name, platform]),
    slots,
    bots,
    queue: [...state.waiting.values()].map((one) => [one.bot_id, one.platform, one.priority, one.turn, one.arrival, one.pool, one.queued_at, one.timeout_at]),
    gates: state.gates.map(({ host, active, queued, max_concurrent }) => [host, active, queued, max_concurrent]),
    keepers: state.keepers.map(({ name, last_run, took_ms, error, next_run, leader }) => [name, last_run, took_ms, error, next_run, leader]),
  });
}

// ---- connection ----

/**
 * Notes whether the stream is connected, and when it is tried again.
 * @param {{connected: boolean, retryAt?: number | null, problem?: string | null}} connection
 */
export function setConnection({ connected, retryAt = null, problem = null }) {
  Object.assign(fleet, { connected, retryAt, problem });
  publish({ ...noChanges(), connection: true });
}

/** Forgets everything, when someone else signs in. */
export function clearFleet() {
  state = emptyState();
  sortedQueue = null;
  Object.assign(fleet, { loaded: false, connected: false, retryAt: null, problem: null });
  fleet.structure += 1;
  publish({ ...noChanges(), snapshot: true, queue: true, gates: true, keepers: true, connection: true });
}

/** Marks the time when all slots are on the screen for the first time, for measurements. */
export function markDrawn() {
  if (performance.getEntriesByName("greenroom-slots-drawn").length === 0) performance.mark("greenroom-slots-drawn");
}

// ---- listeners ----

/** @type {Set<(changes: Changes) => void>} */
const subscribers = new Set();
/** @type {Set<() => void>} */
const viewListeners = new Set();
let frameRequested = false;

/**
 * Calls the listener with what each message changed.
 * @param {(changes: Changes) => void} listener
 */
export function subscribe(listener) {
  subscribers.add(listener);
  return () => void subscribers.delete(listener);
}

/** @param {Changes} changes */
function publish(changes) {
  fleet.at = now();
  for (const subscriber of subscribers) subscriber(changes);
  if (frameRequested) return;
  frameRequested = true;
  // Frames do not come while the page is hidden; then nothing needs to be drawn.
  requestAnimationFrame(() => {
    frameRequested = false;
    for (const listener of [...viewListeners]) listener();
  });
}

/**
 * A value of the live state. The component renders again at most once per frame, when the value differs. Arrays and
 * plain objects are compared by their elements.
 * @template T
 * @param {(live: typeof fleet) => T} selector
 * @returns {T}
 */
export function useFleet(selector) {
  const [, rerender] = useReducer((/** @type {number} */ n) => n + 1, 0);
  const value = selector(fleet);
  const shown = useRef(/** @type {{value: T, selector: typeof selector}} */ ({ value, selector }));
  const stable = same(shown.current.value, value) ? shown.current.value : value;
  shown.current = { value: stable, selector };
  useEffect(() => {
    const check = () => {
      if (!same(shown.current.value, shown.current.selector(fleet))) rerender(undefined);
    };
    viewListeners.add(check);
    check();
    return () => void viewListeners.delete(check);
  }, []);
  return stable;
}

/**
 * @param {any} a
 * @param {any} b
 */
function same(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (a instanceof Map || b instanceof Map) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.is(a[key], b[key]));
}
