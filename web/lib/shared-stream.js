// One stream per browser, however many tabs: the tab that holds a Web Lock is the leader. It reads the stream and sends
// each message to the others. When the leader closes or falls silent, another tab becomes the leader.

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
/** A tab in view asks so often whether the leader is there. */
const PING_MS = 5000;
/** A leader that says nothing for so long was put to sleep by the browser, and is replaced. */
const SILENT_LEADER_MS = 16_000;

class SharedStream {
  /** @param {StreamOptions} options */
  constructor(options) {
    this.options = options;
    this.channel = new BroadcastChannel(options.name);
    this.tab = String(crypto.getRandomValues(new Uint32Array(1))[0]);
    this.stopped = new AbortController();
    /** Ends with the leadership of this tab; `null` while another tab leads. @type {AbortController | null} */
    this.leadership = null;
    /** Ends the connection that this tab reads from. */
    this.reading = new AbortController();
    /** Ends the pause before the next attempt. */
    this.endPause = () => {};
    this.lastId = "";
    /** When the leader was last heard of. */
    this.heardAt = Date.now();
    /** @type {Connection} */
    this.connection = { connected: false, retryAt: null, problem: null };
    this.reminder = 0;
    // Messages are taken in one after the other, and passed on when they are taken in. So the snapshot for a new tab
    // has exactly what was passed on before it.
    this.work = Promise.resolve();

    this.channel.addEventListener("message", ({ data }) => this.onMessage(data));
    addEventListener("online", this.retry);
    document.addEventListener("visibilitychange", this.onVisible);
    this.watch = setInterval(() => this.watchLeader(), PING_MS);
    // Browsers offer locks only over https and on this machine. Without them each tab reads for itself.
    if (navigator.locks) {
      this.send({ kind: "hello", from: this.tab });
      this.applyForLead({});
    } else {
      void this.lead();
    }
  }

  stop() {
    this.stopped.abort();
    this.leadership?.abort();
    this.reading.abort();
    this.endPause();
    clearTimeout(this.reminder);
    clearInterval(this.watch);
    removeEventListener("online", this.retry);
    document.removeEventListener("visibilitychange", this.onVisible);
    this.channel.close();
  }

  /** Tries to connect at once. */
  retry = () => {
    if (this.leadership) this.endPause();
    else this.send({ kind: "retry" });
  };

  // ---- between tabs ----

  /** @param {object} message */
  send(message) {
    if (!this.stopped.signal.aborted) this.channel.postMessage(message);
  }

  /** @param {any} message */
  onMessage(message) {
    if (this.leadership) {
      if (message.kind === "hello") this.inOrder(() => this.welcome(message.from));
      if (message.kind === "ping") this.send({ kind: "connection", to: message.from, connection: this.connection });
      if (message.kind === "retry") this.endPause();
      return;
    }
    if (message.to !== undefined && message.to !== this.tab) return;
    if (message.kind === "event") this.inOrder(() => this.receive(message.event));
    else if (message.kind === "connection") this.setConnection(message.connection);
    else return;
    this.heardAt = Date.now();
  }

  /** Brings a new tab up to date. @param {string} to */
  welcome(to) {
    const data = this.options.snapshot?.();
    if (data) this.send({ kind: "event", to, event: { type: "snapshot", data, id: this.lastId } });
    this.send({ kind: "connection", to, connection: this.connection });
  }

  onVisible = () => {
    this.heardAt = Date.now();
    if (!document.hidden) this.watchLeader();
  };

  /** Asks for a sign of life of the leader, and takes its place if there is none. */
  watchLeader() {
    if (this.leadership || document.hidden || !navigator.locks) return;
    if (Date.now() - this.heardAt > SILENT_LEADER_MS) {
      this.heardAt = Date.now();
      this.applyForLead({ steal: true });
    } else {
      this.send({ kind: "ping", from: this.tab });
    }
  }

  /** @param {() => void | Promise<void>} task */
  inOrder(task) {
    this.work = this.work.then(() => (this.stopped.signal.aborted ? undefined : task())).catch((error) => this.startAgain(error));
  }

  /** What cannot be taken in would leave a wrong picture, so the tab begins with a new snapshot. @param {unknown} error */
  startAgain(error) {
    console.error(error);
    if (this.leadership) this.reading.abort();
    else this.send({ kind: "hello", from: this.tab });
  }

  /** @param {StreamEvent} event */
  receive(event) {
    if (event.id) this.lastId = event.id;
    return this.options.onEvent(event);
  }

  /** @param {Connection} connection */
  setConnection(connection) {
    this.connection = connection;
    this.options.onConnection(connection);
    clearTimeout(this.reminder);
    // Timers of a hidden tab are slow: a tab in view reminds the leader when the pause is over.
    if (connection.retryAt !== null) this.reminder = setTimeout(this.retry, Math.max(0, connection.retryAt - Date.now()) + 300);
  }

  // ---- as leader ----

  /** @param {LockOptions} how */
  applyForLead(how) {
    // A request that takes the lock away cannot have a signal.
    const options = how.steal ? how : { signal: this.stopped.signal };
    navigator.locks
      .request(this.options.name, options, () => this.lead())
      .catch(() => {
        // Another tab took the lock away, or this tab has stopped.
        this.leadership?.abort();
        this.leadership = null;
        this.reading.abort();
        this.endPause();
        if (!this.stopped.signal.aborted) this.applyForLead({});
      });
  }

  /** Reads the stream, and reads it again after each end, until this tab stops or is replaced. */
  async lead() {
    const leadership = (this.leadership = new AbortController());
    let pause = FIRST_PAUSE_MS;
    while (!leadership.signal.aborted && !this.stopped.signal.aborted) {
      const problem = await this.read(leadership, () => (pause = FIRST_PAUSE_MS));
      if (leadership.signal.aborted) return;
      this.tell({ connected: false, retryAt: Date.now() + pause, problem });
      await Promise.race([sleep(pause), new Promise((/** @type {(value?: unknown) => void} */ done) => (this.endPause = done))]);
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  /**
   * Reads until the stream ends. Returns why it ended.
   * @param {AbortController} leadership
   * @param {() => void} onOpen
   */
  async read(leadership, onOpen) {
    this.reading = new AbortController();
    try {
      await readEvents(this.options.path, {
        signal: AbortSignal.any([leadership.signal, this.reading.signal]),
        lastId: this.options.resume ? this.lastId : undefined,
        onOpen: () => {
          onOpen();
          this.tell({ connected: true, retryAt: null, problem: null });
        },
        onEvent: (event) =>
          this.inOrder(async () => {
            await this.receive(event);
            this.send({ kind: "event", event });
          }),
      });
      return "The server closed the connection.";
    } catch (error) {
      // The events after the last one were deleted: the stream begins anew.
      if (error instanceof Problem && error.status === 410) this.lastId = "";
      return error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {Connection} connection */
  tell(connection) {
    this.send({ kind: "connection", connection });
    this.setConnection(connection);
  }
}

/** @param {number} ms */
function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * Follows the stream until `stop` is called.
 * @param {StreamOptions} options
 * @returns {{retry: () => void, stop: () => void}}
 */
export function followStream(options) {
  return new SharedStream(options);
}
