// The transcript of a bot, while the bot talks and after its end.

import assert from "node:assert/strict";
import { client, collect, passed, settings } from "./harness.js";

const { BotEndedError, Greenroom } = client;
const greenroom = new Greenroom({ url: settings.url, apiKey: settings.api_key });

const bot = await greenroom.bots.start({ meeting_url: settings.link, config: { demo_ms: 1500 } });
const [live, events] = await Promise.all([
  collect(greenroom.bots.followTranscript(bot.id, { pollIntervalMs: 200 })),
  collect(greenroom.bots.follow(bot.id)),
]);
assert.equal((await greenroom.bots.get(bot.id)).status, "completed");
const whole = await collect(greenroom.bots.transcript(bot.id));
assert.ok(live.length > 1);
assert.deepEqual([...live].sort((one, other) => one.start_time - other.start_time), whole);
assert.ok(whole[0].speaker === "Demo bot" && whole[0].end_time > whole[0].start_time);
assert.ok(events.some((event) => event.to === "active") && events.at(-1).to === "completed");
await assert.rejects(greenroom.bots.wait(bot.id, "active"), (error) => error instanceof BotEndedError && error.bot.id === bot.id);

// An aborted signal ends what waits, with its own reason.
const controller = new AbortController();
const { signal } = controller;
const waits = [greenroom.events({ signal }).next(), greenroom.events({ signal }).open()];
controller.abort(new Error("enough"));
for (const wait of waits) await assert.rejects(wait, /enough/);
await assert.rejects(greenroom.bots.get(bot.id, { signal }), /enough/);
passed();
