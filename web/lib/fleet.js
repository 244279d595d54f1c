// The live state of the fleet, from the messages of `GET /admin/live`. Views read it with `useFleet`, and render again
// only when what they read has changed. The cells of slots listen with `subscribe`.

import { useEffect, useReducer, useRef } from "./html.js";
import {
  decodeBotId, decodeGate, decodeKeeper, emptyState, encodeState, inQueueOrder, noChanges, putBot, putSlot, putWaiting,
  removeBot, removeSlot, slotName,
} from "./fleet-state.js";
import { now } from "./format.js";

/** @typedef {import("./types.js").LiveQueueEntry} LiveQueueEntry */
/** @typedef {import("./types.js").Changes} Changes */
/** @typedef {import("./fleet-state.js").Counts} Counts */
/** @typedef {import("./fleet-state.js").LivePool} LivePool */

let state = emptyState();
/** @type {LiveQueueEntry[] | null} */
let sortedQueue = null;
/** Increases when everything is forgotten. A snapshot that was being taken in is then dropped. */
let generation = 0;

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

// ---- messages ----

/** Work on a snapshot rests after this time, so that the page stays responsive. */
const SLICE_MS = 8;

/**
 * Takes a snapshot in. The old state is shown until the new one is complete.
 * @param {any} data
 */
export async function applySnapshot(data) {
  const begunIn = generation;
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
  if (generation !== begunIn) return;
  state = next;
  sortedQueue = null;
  fleet.loaded = true;
  publish({ ...noChanges(), snapshot: true, structure: true, queue: true, gates: true, keepers: true });
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

/** The state as a snapshot, for a tab that was just opened. `null` before the first snapshot. */
export function encodeSnapshot() {
  return fleet.loaded ? encodeState(state) : null;
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
  generation += 1;
  state = emptyState();
  sortedQueue = null;
  Object.assign(fleet, { loaded: false, connected: false, retryAt: null, problem: null });
  publish({ ...noChanges(), snapshot: true, structure: true, queue: true, gates: true, keepers: true, connection: true });
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
  if (!changes.connection) fleet.at = now();
  if (changes.structure) fleet.structure += 1;
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
