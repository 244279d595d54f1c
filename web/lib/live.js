// Keeps the live state current: follows `GET /admin/live` for operators, and the events of their own bots for users.

import { applyChange, applySnapshot, clearFleet, encodeSnapshot, setConnection } from "./fleet.js";
import { followStream } from "./shared-stream.js";
import { followUserEvents } from "./user-events.js";
import { onSession, session } from "./session.js";

/** @type {{retry: () => void, stop: () => void} | null} */
let stream = null;

/** @param {import("./event-stream.js").StreamEvent} event */
async function take(event) {
  if (event.type === "snapshot") await applySnapshot(JSON.parse(event.data));
  else if (event.type === "change") applyChange(JSON.parse(event.data));
}

/** Follows the stream of the one who is signed in, from now on. */
export function startLive() {
  onSession(restart);
  restart();
}

function restart() {
  stream?.stop();
  stream = null;
  clearFleet();
  const who = session();
  if (!who) return;
  stream =
    who.kind === "operator"
      ? followStream({ name: "greenroom-live", path: "/admin/live", onEvent: take, onConnection: setConnection, snapshot: encodeSnapshot })
      : followUserEvents(who.user_id ?? "", setConnection);
}

/** Tries to connect at once. */
export function retryNow() {
  stream?.retry();
}
