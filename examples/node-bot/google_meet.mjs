// SKELETON: Google Meet with Playwright. No test runs this file, because no test may reach Google.
//
// It shows where each step of a real bot belongs. Before you use it:
//
// - `npm install playwright && npx playwright install chromium`
// - Check every selector below against the page of today. Google changes them without notice.
// - Sign in once by hand into the profile of PROFILE, or join as a guest, where the host allows guests.
// - Tell the participants that a bot listens. In many countries the law asks for it.

import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright";
import { NotAdmitted } from "./meeting.mjs";

// Everything that is special to the page of Google Meet is here. Labels are those of the English page.
const NAME = 'input[aria-label="Your name"]';
const JOIN = 'button:has-text("Ask to join"), button:has-text("Join now")';
const LOBBY = "text=/asking to be let in|asking to join/i";
const REFUSED = "text=/denied your request|can't join this/i";
const INSIDE = 'button[aria-label*="Leave call"]';
const REMOVED = "text=/removed from the meeting|call ended/i";
const CAPTIONS_ON = 'button[aria-label*="Turn on captions"]';
const CAPTION = '[aria-label="Captions"] > div'; // one speaker with the text so far
const ADMISSION_MS = 9 * 60 * 1000; // below `sweeper.no_join`, so that the bot says why it failed

export class GoogleMeet {
  async open() {
    // A relative folder is new for each bot.
    this.context = await chromium.launchPersistentContext(process.env.PROFILE ?? "profile", {
      headless: false, // Meet refuses some headless browsers: run it under Xvfb
      args: ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", "--lang=en-US"],
    });
    this.page = this.context.pages()[0];
  }

  configure() {}

  shows(selector) {
    return this.page.locator(selector).count();
  }

  async *join(url, name, signal) {
    this.begun = performance.now();
    await this.page.goto(url, { waitUntil: "domcontentloaded" });
    if (await this.shows(NAME)) await this.page.fill(NAME, name); // a guest
    await this.page.locator(JOIN).first().click();
    const deadline = performance.now() + ADMISSION_MS;
    for (let inLobby = false; !(await this.shows(INSIDE)); ) {
      if (await this.shows(REFUSED) || performance.now() > deadline) {
        throw new NotAdmitted("the host did not admit the bot");
      }
      if (!inLobby && await this.shows(LOBBY)) {
        inLobby = true;
        yield "lobby";
      }
      await sleep(500, undefined, { signal });
    }
  }

  async *captions(signal) {
    await this.page.locator(CAPTIONS_ON).click({ timeout: 5000 }).catch(() => {}); // They may be on already.
    const last = new Map();
    while (!(await this.shows(REMOVED))) {
      for (const block of await this.page.locator(CAPTION).all()) {
        const [speaker, ...lines] = (await block.innerText()).split("\n");
        const text = lines.join(" ");
        if (text && last.get(speaker) !== text) { // A real bot waits until the sentence is complete.
          last.set(speaker, text);
          const at = Math.round(performance.now() - this.begun) / 1000;
          yield { start_time: at, end_time: at, text, speaker };
        }
      }
      await sleep(1000, undefined, { signal });
    }
  }

  async leave() {
    if (this.page && await this.shows(INSIDE)) await this.page.locator(INSIDE).click();
  }

  async close() {
    await this.context?.close();
  }
}
