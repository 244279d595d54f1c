// The events of a user's own bots, from `GET /events`, read once per browser. Views listen with `onUserEvent`.

import { followStream } from "./shared-stream.js";

/** @typedef {import("./types.js").StreamedEvent} StreamedEvent */

/** @type {Set<(event: StreamedEvent) => void>} */
const listeners = new Set();

/**
 * Calls the listener with each event of the user's bots, from now on.
 * @param {(event: StreamedEvent) => void} listener
 */
export function onUserEvent(listener) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/**
 * @param {string} userId
 * @param {(connection: import("./shared-stream.js").Connection) => void} onConnection
 */
export function followUserEvents(userId, onConnection) {
  return followStream({
    name: `greenroom-events-${userId}`,
    path: "/events",
    resume: true,
    onConnection,
    onEvent: ({ data }) => {
      // The first message has only an id: the position of the stream.
      if (data === "") return;
      const event = JSON.parse(data);
      for (const listener of [...listeners]) listener(event);
    },
  });
}
