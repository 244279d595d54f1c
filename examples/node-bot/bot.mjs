#!/usr/bin/env node
// A meeting bot for greenroom-agent: what it prints, which commands it obeys, how it ends.
//
// It needs Node.js 18 or newer, and no packages for the pretend meeting. MEETING=google_meet joins a real Google Meet,
// with Playwright: see google_meet.mjs, which is a skeleton.
//
// A bot is its meeting and three duties:
//
// 1. Report, as one JSON object per line on standard output: ready, status, joined, transcript, exited.
// 2. Obey, from one JSON object per line on standard input: assignment, reconfigure, leave.
// 3. End: at leave, at SIGTERM, or when the meeting ends; with exit code 0 unless it failed.

import { createInterface } from "node:readline";
import { NotAdmitted, PretendMeeting } from "./meeting.mjs";

/** One line for the agent. Everything else that is printed is the bot's log. */
const emit = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
const log = (message) => process.stderr.write(`${message}\n`);

async function makeMeeting() {
  if (process.env.MEETING === "google_meet") {
    const { GoogleMeet } = await import("./google_meet.mjs"); // needs Playwright
    return new GoogleMeet();
  }
  return new PretendMeeting();
}

class Bot {
  /** Aborted when the bot has to leave. */
  leaving = new AbortController();
  data = null; // until there is a meeting

  constructor(meeting) {
    this.meeting = meeting;
    this.assigned = new Promise((resolve) => { this.assign = resolve; });
    this.assigned.then((data) => { this.data = data; });
  }

  /** One command of the agent. */
  obey(line) {
    let action, payload;
    try {
      ({ action, payload } = JSON.parse(line));
    } catch {
      return log("command ignored: it is not a JSON object");
    }
    if (action === "assignment") this.assign(payload ?? {}); // Only the first one counts.
    else if (action === "reconfigure") this.meeting.configure(payload ?? {});
    else if (action === "leave") this.leaving.abort();
  }

  /** From the open browser to the end of the meeting. */
  async attend() {
    const { signal } = this.leaving;
    await this.meeting.open();
    if (!process.env.BOT_DATA) emit("ready"); // With prewarm, the browser is open before there is a meeting.
    const data = await Promise.race([this.assigned, aborted(signal)]);
    this.meeting.configure(data.config ?? {});
    for await (const state of this.meeting.join(data.meeting_url, data.bot_display_name || "Notes", signal)) {
      if (state === "lobby") emit("status", { status: "awaiting_admission", reason: "in the lobby" });
    }
    signal.throwIfAborted();
    emit("joined");
    for await (const segment of this.meeting.captions(signal)) emit("transcript", { segments: [segment] });
  }

  /** The reason of the end, and an error if the bot failed. */
  async run() {
    try {
      await this.attend();
      return { reason: "meeting_ended", error: null };
    } catch (error) {
      if (this.leaving.signal.aborted) {
        await this.meeting.leave();
        return { reason: "left", error: null };
      }
      if (error instanceof NotAdmitted) return { reason: "not_admitted", error: error.message };
      return { reason: "crashed", error: String(error) };
    } finally {
      await this.meeting.close();
    }
  }
}

const aborted = (signal) => new Promise((_, reject) => {
  if (signal.aborted) reject(signal.reason);
  signal.addEventListener("abort", () => reject(signal.reason), { once: true });
});

if (!process.env.BOT_DATA && process.env.GREENROOM_PREWARM !== "1") {
  log("node-bot: set BOT_DATA to a bot's data, or GREENROOM_PREWARM=1");
  process.exit(1);
}
const bot = new Bot(await makeMeeting());
if (process.env.BOT_DATA) bot.assign(JSON.parse(process.env.BOT_DATA));
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => bot.leaving.abort());
const commands = createInterface({ input: process.stdin });
commands.on("line", (line) => bot.obey(line));
commands.on("close", () => bot.leaving.abort()); // The agent is gone.

const { reason, error } = await bot.run();
if (bot.data) emit("exited", { reason, error }); // A bot without a meeting has no end to report.
process.exitCode = error ? 1 : 0;
process.stdin.destroy(); // Nothing keeps the process alive now, and the output is written.
