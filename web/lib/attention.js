// What needs a person, from `GET /admin/attention`. The tab in view asks every 5 s and when the live state gives a reason;
// it tells the other tabs, whose titles show the count too.

import { useEffect, useState } from "./html.js";
import { asProblem, call } from "./api.js";
import { subscribe } from "./fleet.js";
import { session } from "./session.js";

/** @typedef {import("./types.js").AttentionItem} AttentionItem */
/** @typedef {{items: AttentionItem[], loaded: boolean, problem: import("./api.js").Problem | null}} Attention */

const IN_VIEW_MS = 5000;
/** A hidden tab asks by itself when it has heard of no answer for this long. */
const HIDDEN_MS = 30_000;
/** The shortest time between two calls. */
const SHORTEST_MS = 2000;
/** Statuses that can be a reason for attention. */
const REASONS = ["error", "needs_help", "awaiting_admission"];

/** @type {Attention} */
let current = { items: [], loaded: false, problem: null };
let heardAt = 0;
let calling = false;
let planned = 0;
/** @type {Set<() => void>} */
const listeners = new Set();
const tabs = new BroadcastChannel("greenroom-attention");

/** @param {Attention} next */
function set(next) {
  current = next;
  for (const listener of [...listeners]) listener();
}

/** Asks the server now, or as soon as the shortest time has passed. */
export function refreshAttention() {
  if (calling || planned || session()?.kind !== "operator") return;
  const wait = Math.max(0, heardAt + SHORTEST_MS - Date.now());
  planned = setTimeout(async () => {
    planned = 0;
    calling = true;
    try {
      const { items } = await call("GET", "/admin/attention");
      tabs.postMessage(items);
      set({ items, loaded: true, problem: null });
    } catch (error) {
      set({ ...current, problem: asProblem(error) });
    } finally {
      heardAt = Date.now();
      calling = false;
    }
  }, wait);
}

/** Keeps the list current from now on, while an operator is signed in. */
export function startAttention() {
  tabs.addEventListener("message", ({ data }) => {
    heardAt = Date.now();
    set({ items: data, loaded: true, problem: null });
  });
  subscribe((changes) => {
    const subjects = new Set(current.items.map(({ subject }) => subject));
    const isReason = (/** @type {{status: string}} */ { status }) => REASONS.includes(status);
    const changed =
      changes.snapshot ||
      changes.slots.some((slot) => isReason(slot) || subjects.has(slot.name)) ||
      changes.bots.some((bot) => isReason(bot) || subjects.has(bot.id)) ||
      [...changes.botsGone, ...changes.slotsGone].some((name) => subjects.has(name));
    if (changed && !document.hidden) refreshAttention();
  });
  setInterval(() => {
    if (Date.now() - heardAt >= (document.hidden ? HIDDEN_MS : IN_VIEW_MS)) refreshAttention();
  }, 1000);
  document.addEventListener("visibilitychange", refreshAttention);
  refreshAttention();
}

/** Forgets the list, when someone else signs in. */
export function clearAttention() {
  set({ items: [], loaded: false, problem: null });
  refreshAttention();
}

export function useAttention() {
  const [shown, setShown] = useState(current);
  useEffect(() => {
    const update = () => setShown(current);
    listeners.add(update);
    update();
    return () => void listeners.delete(update);
  }, []);
  return shown;
}
