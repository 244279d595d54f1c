// Who is signed in. The cookie itself cannot be read by the page; `GET /session` says whose it is. All tabs follow.

import { useEffect, useState } from "./html.js";
import { Problem, call, onUnauthorized } from "./api.js";

/** @typedef {import("./types.js").BrowserSession} BrowserSession */

/**
 * Set while this browser is signed in. The page cannot see the cookie; without this mark it need not ask the server.
 */
const MARK = "greenroom.signed-in";

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
  if (session) localStorage.setItem(MARK, session.kind);
  else localStorage.removeItem(MARK);
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

/** Asks the server who is signed in, if someone is. */
export async function loadSession() {
  if (!localStorage.getItem(MARK)) {
    if (current) set(null, "You signed out in another tab.");
    return null;
  }
  try {
    const found = await call("GET", "/session");
    if (found.kind !== current?.kind || found.user_id !== current?.user_id) set(found);
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
    set(null, "The session has ended. Sign in again.");
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
