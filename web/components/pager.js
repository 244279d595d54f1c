// Lists that the API gives page by page: rows are added with "Show more", and refreshed in place.

import { html, useCallback, useEffect, useRef, useState } from "../lib/html.js";
import { ProblemNote } from "./ui.js";
import { isAway, whileVisible } from "./load.js";

/** The largest page of the API. */
const LIMIT_MAX = 1000;

/**
 * @template T
 * @typedef {object} Page
 * @property {T[]} rows
 * @property {string | null | undefined} next the cursor of the next page
 */

/**
 * @template T
 * @typedef {object} Pages
 * @property {T[]} rows
 * @property {boolean} hasMore
 * @property {boolean} loading
 * @property {boolean} isFirst no page has arrived yet
 * @property {any} problem
 * @property {() => void} more
 * @property {() => void} reload
 */

/**
 * @template T
 * @param {(limit: number, cursor?: string) => Promise<Page<T>>} load
 * @param {readonly unknown[]} deps the list begins anew when one of these changes
 * @param {{size?: number, every?: number}} [options] rows of a page, and milliseconds between two refreshes
 * @returns {Pages<T>}
 */
export function usePages(load, deps, { size = 100, every = 0 } = {}) {
  const empty = { rows: /** @type {T[]} */ ([]), next: /** @type {string | null} */ (null), loading: true, isFirst: true, problem: /** @type {any} */ (null) };
  const [state, setState] = useState(empty);
  const newest = useRef(0);
  const current = useRef({ load, state });
  current.current = { load, state };

  /** Reads as many rows as are shown, so that a refresh does not shorten the list. */
  const reload = useCallback(() => {
    const call = ++newest.current;
    const shown = current.current.state.rows.length;
    const limit = Math.min(LIMIT_MAX, Math.max(size, shown));
    setState((old) => ({ ...old, loading: true }));
    return current.current.load(limit).then(
      ({ rows, next }) => {
        if (call !== newest.current) return;
        setState((old) => (shown > rows.length && next
          ? { ...old, rows: mergeRows(rows, old.rows), loading: false, problem: null }
          : { rows, next: next ?? null, loading: false, isFirst: false, problem: null }));
      },
      (problem) => { if (call === newest.current) setState((old) => ({ ...old, problem: !old.isFirst && isAway(problem) ? null : problem, loading: false })); },
    );
  }, [size]);

  const more = useCallback(() => {
    const { next } = current.current.state;
    if (!next) return;
    const call = ++newest.current;
    setState((old) => ({ ...old, loading: true }));
    current.current.load(size, next).then(
      (page) => {
        if (call !== newest.current) return;
        setState((old) => ({ rows: [...old.rows, ...page.rows], next: page.next ?? null, loading: false, isFirst: false, problem: null }));
      },
      (problem) => { if (call === newest.current) setState((old) => ({ ...old, problem, loading: false })); },
    );
  }, [size]);

  useEffect(() => {
    current.current.state = empty;
    setState(empty);
    reload();
    return () => { newest.current++; };
  }, deps);

  useEffect(() => (every ? whileVisible(reload, every) : undefined), [every, ...deps]);

  const { rows, next, loading, isFirst, problem } = state;
  return { rows, hasMore: next !== null, loading, isFirst, problem, more, reload };
}

/**
 * The newest rows, then the older ones that are not among them. Rows have an `id` or a `name`.
 *
 * @template T
 * @param {T[]} fresh
 * @param {T[]} old
 */
function mergeRows(fresh, old) {
  const keyOf = (/** @type {any} */ row) => row.id ?? row.name;
  const known = new Set(fresh.map(keyOf));
  return [...fresh, ...old.filter((row) => !known.has(keyOf(row)))];
}

/**
 * What stands below a list: how many rows it shows, and a button for more.
 *
 * @param {{pages: Pages<any>, shown: string}} props
 */
export function Pager({ pages, shown }) {
  return html`
    <div class="pager">
      ${pages.problem && html`<${ProblemNote} problem=${pages.problem} onRetry=${pages.reload} />`}
      <p class="quiet">${shown}${pages.hasMore ? ", and there are more" : ""}.</p>
      ${pages.hasMore && html`
        <button type="button" onClick=${pages.more} disabled=${pages.loading}>${pages.loading ? "Loading…" : "Show more"}</button>`}
    </div>`;
}
