// Loads data for a view, and loads it again: at an interval while the page is visible, and when the view asks for it.

import { useCallback, useEffect, useRef, useState } from "../lib/html.js";
import { useFleet } from "../lib/fleet.js";
import { onUserEvent } from "../lib/user-events.js";

/**
 * @template T
 * @typedef {object} Loaded
 * @property {T | undefined} data the last answer, also while a newer one is on its way or failed
 * @property {import("../lib/api.js").Problem | null} problem why the last call failed
 * @property {boolean} loading
 * @property {() => void} reload
 */

/**
 * Calls `load` at once, again when one of `deps` changes, and every `every` milliseconds (0: never).
 * An answer that is older than the newest call is dropped.
 *
 * @template T
 * @param {() => Promise<T>} load
 * @param {readonly unknown[]} deps
 * @param {number} [every]
 * @returns {Loaded<T>}
 */
export function useLoad(load, deps, every = 0) {
  const [state, setState] = useState(/** @type {{data: T | undefined, problem: any, loading: boolean}} */ ({ data: undefined, problem: null, loading: true }));
  const newest = useRef(0);
  const loader = useRef(load);
  loader.current = load;

  const reload = useCallback(() => {
    const call = ++newest.current;
    setState((old) => ({ ...old, loading: true }));
    return loader.current().then(
      (data) => { if (call === newest.current) setState({ data, problem: null, loading: false }); },
      (problem) => { if (call === newest.current) setState(({ data }) => ({ data, problem: data !== undefined && isAway(problem) ? null : problem, loading: false })); },
    );
  }, []);

  useEffect(() => {
    setState({ data: undefined, problem: null, loading: true });
    reload();
    return () => { newest.current++; };
  }, deps);

  useEffect(() => {
    if (!every) return undefined;
    return whileVisible(reload, every);
  }, [every, ...deps]);

  return { ...state, reload };
}

/**
 * Whether the server did not answer at all. The frame of the page says so, and what was loaded before is still shown.
 *
 * @param {any} problem
 */
export function isAway(problem) {
  return [0, 502, 503, 504].includes(problem?.status);
}

/**
 * Runs `work` every `every` milliseconds while the page is visible, and once when it becomes visible again. The next
 * run starts only after the last one has ended.
 *
 * @param {() => unknown} work
 * @param {number} every
 * @returns {() => void} ends it
 */
export function whileVisible(work, every) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let ended = false;
  const plan = () => {
    clearTimeout(timer);
    if (!ended && !document.hidden) timer = setTimeout(run, every);
  };
  const run = async () => {
    try {
      await work();
    } finally {
      plan();
    }
  };
  const onVisible = () => (document.hidden ? clearTimeout(timer) : run());
  document.addEventListener("visibilitychange", onVisible);
  plan();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/**
 * Calls `work` after `value` has changed, at most once in `pause` milliseconds, and never for the first value.
 *
 * @param {unknown} value
 * @param {() => void} work
 * @param {number} [pause]
 */
export function useOnChange(value, work, pause = 1000) {
  const first = useRef(true);
  const last = useRef(0);
  const worker = useRef(work);
  worker.current = work;
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return undefined;
    }
    const wait = Math.max(0, last.current + pause - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      worker.current();
    }, wait);
    return () => clearTimeout(timer);
  }, [value]);
}

/**
 * Calls `work` when the live state tells that this bot, or without an id any bot, has changed.
 *
 * @param {string | null} id
 * @param {() => void} work
 * @param {number} [pause] the shortest time between two calls, in milliseconds
 */
export function useOnBotChange(id, work, pause = 1000) {
  const [events, setEvents] = useState(0);
  const live = useFleet((fleet) => (id ? fleet.bots.get(id) : fleet.bots.size));
  useEffect(() => onUserEvent((event) => {
    if (!id || event.bot_id === id) setEvents((count) => count + 1);
  }), [id]);
  useOnChange(live, work, pause);
  useOnChange(events, work, pause);
}

/**
 * A path of the API with its query. Values that are absent or empty are left out.
 *
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} query
 */
export function withQuery(path, query) {
  const sent = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") sent.set(name, String(value));
  }
  const text = sent.toString();
  return text ? `${path}?${text}` : path;
}
