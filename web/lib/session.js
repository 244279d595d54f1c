// Who is signed in. The cookie itself cannot be read by the page; `GET /session` says whose it is. All tabs follow.

import { useEffect, useState } from "./html.js";
import { Problem, call, onUnauthorized } from "./api.js";

/** @typedef {import("./types.js").BrowserSession} BrowserSession */

/** @type {BrowserSession | null} */
let current = null;
/** Why nobody is signed in any more, for the sign-in page. */
let ended = "";
/** @type {Set<() => void>} */
const listeners = new Set();
const tabs = new BroadcastChannel("greenroom-session");

tabs.addEventListener("message", () => void loadSession().catch(() => {}));
onUnauthorized(() => {
  if (current) set(null, "The session has ended. Sign in again.");
});

/**
 * @param {BrowserSession | null} session
 * @param {string} [reason]
 */
function set(session, reason = "") {
  current = session;
  ended = reason;
  for (const listener of [...listeners]) listener();
}

export function session() {
  return current;
}

export function sessionEnded() {
  return ended;
}

/** The start of the paths of calls: operators act for everyone, users for themselves. */
export function base() {
  return current?.kind === "operator" ? "/admin" : "";
}

/** Asks the server who is signed in. */
export async function loadSession() {
  try {
    const found = await call("GET", "/session");
    if (found.kind !== current?.kind || found.user_id !== current?.user_id) set(found);
  } catch (error) {
    // Without a session the answer is 401, which is reported to the listener above.
    if (!(error instanceof Problem) || error.status !== 401) throw error;
  }
  return current;
}

/** @param {string} token */
export async function signIn(token) {
  const opened = await call("POST", "/session", { token });
  set(opened);
  tabs.postMessage("changed");
}

export async function signOut() {
  await call("DELETE", "/session");
  set(null);
  tabs.postMessage("changed");
}

/** @returns {BrowserSession | null} */
export function useSession() {
  const [shown, setShown] = useState(current);
  useEffect(() => {
    const update = () => setShown(current);
    listeners.add(update);
    update();
    return () => void listeners.delete(update);
  }, []);
  return shown;
}

/**
 * Calls the listener when someone else, or nobody, is signed in.
 * @param {() => void} listener
 */
export function onSession(listener) {
  listeners.add(listener);
}
