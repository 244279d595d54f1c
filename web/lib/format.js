// Numbers, times and statuses as texts, and the clock of the page, which follows the server's.

import { useEffect, useState } from "./html.js";

/** How far the server's clock is ahead of this browser's, in milliseconds. */
let serverAhead = 0;

/**
 * Learns the server's time from the header `Date` of an answer. It has whole seconds, so a small difference means nothing.
 * @param {string | null} header
 */
export function learnServerTime(header) {
  const sent = header === null ? NaN : Date.parse(header);
  if (Number.isNaN(sent)) return;
  const ahead = sent + 500 - Date.now();
  serverAhead = Math.abs(ahead) > 2000 ? ahead : 0;
}

/** The server's time now, in milliseconds since 1970. */
export function now() {
  return Date.now() + serverAhead;
}

/**
 * A time as milliseconds since 1970: from RFC 3339, or from the seconds of the live state.
 * @param {string | number | null | undefined} at
 */
export function millis(at) {
  if (at === null || at === undefined) return NaN;
  return typeof at === "number" ? at * 1000 : Date.parse(at);
}

/**
 * A length of time in at most two units: `850 ms`, `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
 * @param {number | null | undefined} ms
 * @returns {string}
 */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 0) return "-" + duration(-ms);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000 && ms % 1000 >= 50) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return two(minutes, "min", seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return two(hours, "h", minutes % 60, "min");
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

/**
 * @param {number} large
 * @param {string} largeUnit
 * @param {number} small
 * @param {string} smallUnit
 */
function two(large, largeUnit, small, smallUnit) {
  return small === 0 ? `${large} ${largeUnit}` : `${large} ${largeUnit} ${small} ${smallUnit}`;
}

/**
 * How long something has lasted, in whole seconds: `12 s`, `3 min 20 s`.
 * @param {string | number | null | undefined} at
 */
export function lasted(at) {
  const since = millis(at);
  return Number.isNaN(since) ? "–" : duration(Math.max(0, Math.floor((now() - since) / 1000) * 1000)).replace(/^0 ms$/, "0 s");
}

/**
 * How long ago something was, or how far ahead it is.
 * @param {string | number | null | undefined} at
 */
export function ago(at) {
  const since = millis(at);
  if (Number.isNaN(since)) return "–";
  const passed = now() - since;
  if (passed < -999) return "in " + duration(Math.floor(-passed / 1000) * 1000);
  return passed < 1000 ? "just now" : lasted(at) + " ago";
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayAndClock = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/**
 * The local time; with the day unless it is today.
 * @param {string | number | null | undefined} at
 */
export function time(at) {
  const ms = millis(at);
  if (Number.isNaN(ms)) return "–";
  const date = new Date(ms);
  return (date.toDateString() === new Date().toDateString() ? clock : dayAndClock).format(date);
}

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = n;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const grouped = new Intl.NumberFormat("en-US");

/** @param {number} n */
export function number(n) {
  return grouped.format(n);
}

/**
 * A number with its noun: `1 bot`, `12 bots`.
 * @param {number} n
 * @param {string} noun
 */
export function count(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * The end of an id, which differs between bots that were started at about the same time.
 * @param {string | null | undefined} id
 */
export function shortId(id) {
  return id ? id.slice(-8) : "–";
}

/** @type {Record<string, string>} */
const labels = {
  awaiting_admission: "In the lobby",
  needs_help: "Needs help",
  google_meet: "Google Meet",
  teams: "Teams",
  zoom: "Zoom",
};

/**
 * A status or a platform as a word for people.
 * @param {string} status
 */
export function statusLabel(status) {
  const plain = status.replaceAll("_", " ");
  return labels[status] ?? plain.charAt(0).toUpperCase() + plain.slice(1);
}

/** Statuses of bots that have ended. */
export const ENDED = ["completed", "failed"];

/** @type {Map<number, {timer: number, listeners: Set<() => void>}>} */
const clocks = new Map();

/**
 * Calls the listener at each full interval, by one timer for all listeners of that interval. Hidden pages rest.
 * @param {number} interval
 * @param {() => void} listener
 */
export function everyInterval(interval, listener) {
  let shared = clocks.get(interval);
  if (!shared) {
    /** @type {Set<() => void>} */
    const listeners = new Set();
    const tick = () => {
      if (!document.hidden) for (const one of [...listeners]) one();
    };
    shared = { listeners, timer: setInterval(tick, interval) };
    clocks.set(interval, shared);
  }
  shared.listeners.add(listener);
  return () => {
    shared.listeners.delete(listener);
    if (shared.listeners.size === 0) {
      clearInterval(shared.timer);
      clocks.delete(interval);
    }
  };
}

/**
 * The server's time, again at each interval.
 * @param {number} [interval]
 */
export function useNow(interval = 1000) {
  const [at, setAt] = useState(now);
  useEffect(() => everyInterval(interval, () => setAt(now())), [interval]);
  return at;
}
