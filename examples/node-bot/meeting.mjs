// What a bot needs from a meeting, and a pretend one that runs everywhere.
//
// A meeting has these methods. `signal` is aborted when the bot has to leave.
//
//   open()                    prepares everything that needs no meeting: opens the browser, signs in
//   join(url, name, signal)   joins; yields "lobby" while the host has to admit the bot; returns inside the meeting
//   captions(signal)          yields {start_time, end_time, text, speaker} until the meeting ends
//   configure(config)         takes over the bot's configuration, also during the meeting
//   leave()                   leaves the meeting, if the bot is in it
//   close()                   gives everything back: closes the browser

import { setTimeout as sleep } from "node:timers/promises";

/** The host refused the bot, or removed it. */
export class NotAdmitted extends Error {}

/** A meeting without a network. `config` has `lobby_ms` (0), `lines` (3; 0: until leave) and `interval_ms` (500). */
export class PretendMeeting {
  config = {};

  async open() {}

  configure(config) {
    this.config = config;
  }

  setting(name, fallback) {
    const value = this.config[name];
    return typeof value === "number" && value >= 0 ? value : fallback;
  }

  async *join(url, name, signal) {
    this.name = name;
    this.begun = performance.now();
    if (this.config.refuse === true) throw new NotAdmitted("the host refused the bot");
    const lobby = this.setting("lobby_ms", 0);
    if (lobby) {
      yield "lobby";
      await sleep(lobby, undefined, { signal });
    }
  }

  async *captions(signal) {
    for (let said = 1; this.setting("lines", 3) === 0 || said <= this.setting("lines", 3); said += 1) {
      const at = Math.round(performance.now() - this.begun) / 1000;
      yield { start_time: at, end_time: at, text: `Line ${said} of a pretend meeting.`, speaker: this.name };
      await sleep(this.setting("interval_ms", 500), undefined, { signal });
    }
  }

  async leave() {}

  async close() {}
}
