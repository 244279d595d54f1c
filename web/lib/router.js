// The address of a view is the part behind `#`: `#/bots/ID`, `#/slots?pool=zoom`. Every view can be linked and reloaded.

import { useEffect, useState } from "./html.js";

/**
 * Names of views by their path. A part that begins with `:` is a parameter.
 * @type {[string, string][]}
 */
const ROUTES = [
  ["/", "overview"],
  ["/bots", "bots"],
  ["/bots/:id", "bot"],
  ["/slots", "slots"],
  ["/slots/:name", "slot"],
  ["/pools", "pools"],
  ["/pools/:name", "pool"],
  ["/queue", "queue"],
  ["/lobby", "lobby"],
  ["/charts", "charts"],
  ["/audit", "audit"],
  ["/keepers", "keepers"],
  ["/start", "start"],
  ["/search", "search"],
];

/** @typedef {{name: string, path: string, params: Record<string, string>, query: Record<string, string>}} Route */
/** @typedef {Record<string, string | number | null | undefined>} Query */

/** @returns {Route} */
export function currentRoute() {
  const [path, search = ""] = splitOnce(location.hash.slice(1) || "/");
  const query = Object.fromEntries(new URLSearchParams(search));
  const parts = path.split("/").filter(Boolean);
  for (const [pattern, name] of ROUTES) {
    const params = matchParts(pattern.split("/").filter(Boolean), parts);
    if (params) return { name, path, params, query };
  }
  return { name: "not_found", path, params: {}, query };
}

/** @param {string} hash */
function splitOnce(hash) {
  const at = hash.indexOf("?");
  return at < 0 ? [hash] : [hash.slice(0, at), hash.slice(at + 1)];
}

/**
 * @param {string[]} pattern
 * @param {string[]} parts
 * @returns {Record<string, string> | null}
 */
function matchParts(pattern, parts) {
  if (pattern.length !== parts.length) return null;
  /** @type {Record<string, string>} */
  const params = {};
  for (const [index, expected] of pattern.entries()) {
    if (expected.startsWith(":")) params[expected.slice(1)] = decode(parts[index]);
    else if (expected !== parts[index]) return null;
  }
  return params;
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * The address of a view, for `href`. Values that are empty are left out.
 * @param {string} path
 * @param {Query} [query]
 */
export function link(path, query = {}) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(key, String(value));
  }
  const text = search.toString();
  return `#${path}${text === "" ? "" : "?" + text}`;
}

/**
 * Goes to a view.
 * @param {string} path
 * @param {Query} [query]
 */
export function go(path, query) {
  location.hash = link(path, query);
}

/**
 * Changes values of the query and keeps the view and the other values. The browser's history gets no new entry.
 * @param {Query} query
 */
export function setQuery(query) {
  const route = currentRoute();
  history.replaceState(null, "", link(route.path, { ...route.query, ...query }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(currentRoute);
  useEffect(() => {
    const update = () => setRoute(currentRoute());
    addEventListener("hashchange", update);
    update();
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}
