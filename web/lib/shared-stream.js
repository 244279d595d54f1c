// One stream per browser, however many tabs: the tab that holds a Web Lock reads the stream and sends each message to the
// others. When that tab closes, another one gets the lock and reads.

import { readEvents } from "./event-stream.js";
import { Problem } from "./api.js";

/** @typedef {import("./event-stream.js").StreamEvent} StreamEvent */
/** @typedef {{connected: boolean, retryAt: number | null, problem: string | null}} Connection */

/**
 * @typedef {object} StreamOptions
 * @property {string} name of the lock and of the channel between tabs
 * @property {string} path
 * @property {(event: StreamEvent) => void | Promise<void>} onEvent
 * @property {(connection: Connection) => void} onConnection
 * @property {() => string | null} [snapshot] the data of a `snapshot` event for a tab that was just opened
 * @property {boolean} [resume] whether to continue after the last event, by its id
 */

const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 10_000;

/**
 * Follows the stream until `stop` is called.
 * @param {StreamOptions} options
 */
export function followStream(options) {
  const stopped = new AbortController();
  const channel = new BroadcastChannel(options.name);
  const tab = String(crypto.getRandomValues(new Uint32Array(1))[0]);
  let leading = false;
  let lastId = "";
  /** Ends the pause before the next attempt. */
  let retryNow = () => {};
  /** @type {Connection} */
  let connection = { connected: false, retryAt: null, problem: null };
  let nudge = 0;
  /** Ends the connection that the tab reads from. */
  let reading = new AbortController();

  // Messages are taken in one after the other, and passed on when they are taken in. So the snapshot for a new tab has
  // exactly what was passed on before it.
  let work = Promise.resolve();
  /** @param {() => void | Promise<void>} task */
  const inOrder = (task) => {
    work = work.then(() => (stopped.signal.aborted ? undefined : task())).catch(startAgain);
  };
  /** What cannot be taken in would leave a wrong picture, so the tab begins with a new snapshot. @param {unknown} error */
  const startAgain = (error) => {
    console.error(error);
    if (leading) reading.abort();
    else sayHello();
  };
  /** @param {StreamEvent} event */
  const receive = (event) => {
    if (event.id) lastId = event.id;
    return options.onEvent(event);
  };
  /** @param {Connection} next */
  const showConnection = (next) => {
    connection = next;
    options.onConnection(next);
    clearTimeout(nudge);
    // Timers of a hidden tab are slow: a tab in view reminds the reading tab when the pause is over.
    if (next.retryAt !== null) nudge = setTimeout(retry, Math.max(0, next.retryAt - Date.now()) + 300);
  };
  const retry = () => {
    if (leading) retryNow();
    else channel.postMessage({ kind: "retry" });
  };

  channel.addEventListener("message", ({ data }) => {
    if (data.kind === "hello" && leading) inOrder(() => welcome(data.from));
    else if (data.kind === "retry" && leading) retryNow();
    else if (data.to !== undefined && data.to !== tab) return;
    else if (data.kind === "event" && !leading) inOrder(() => receive(data.event));
    else if (data.kind === "connection" && !leading) showConnection(data.connection);
  });
  const sayHello = () => channel.postMessage({ kind: "hello", from: tab });
  /** @param {string} to */
  const welcome = (to) => {
    const data = options.snapshot?.();
    if (data) channel.postMessage({ kind: "event", to, event: { type: "snapshot", data, id: lastId } });
    channel.postMessage({ kind: "connection", to, connection });
  };

  const lead = async () => {
    leading = true;
    let pause = FIRST_PAUSE_MS;
    while (!stopped.signal.aborted) {
      let problem = "The server closed the connection.";
      reading = new AbortController();
      try {
        await readEvents(options.path, {
          signal: AbortSignal.any([stopped.signal, reading.signal]),
          lastId: options.resume ? lastId : undefined,
          onOpen: () => {
            pause = FIRST_PAUSE_MS;
            tell({ connected: true, retryAt: null, problem: null });
          },
          onEvent: (event) =>
            inOrder(async () => {
              await receive(event);
              channel.postMessage({ kind: "event", event });
            }),
        });
      } catch (error) {
        if (stopped.signal.aborted) return;
        // The events after the last one were deleted: the stream begins anew.
        if (error instanceof Problem && error.status === 410) lastId = "";
        problem = error instanceof Error ? error.message : String(error);
      }
      tell({ connected: false, retryAt: Date.now() + pause, problem });
      await Promise.race([sleep(pause), new Promise((/** @type {(value?: unknown) => void} */ done) => (retryNow = done))]);
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  };
  /** @param {Connection} next */
  const tell = (next) => {
    channel.postMessage({ kind: "connection", connection: next });
    showConnection(next);
  };

  // Browsers offer locks only over https and on this machine. Without them each tab reads for itself.
  if (navigator.locks) {
    sayHello();
    navigator.locks.request(options.name, { signal: stopped.signal }, lead).catch(() => {});
  } else {
    void lead();
  }
  addEventListener("online", retry);

  return {
    retry,
    stop() {
      stopped.abort();
      retryNow();
      clearTimeout(nudge);
      removeEventListener("online", retry);
      channel.close();
    },
  };
}

/** @param {number} ms */
function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
