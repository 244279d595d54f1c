// A bot from its start to its end, with a server that is restarted while the events are followed.

import assert from "node:assert/strict";
import { client, collect, passed, reach, settings } from "./harness.js";

const { Greenroom, WaitTimeoutError } = client;
const { link } = settings;
const greenroom = new Greenroom({ url: settings.url, apiKey: settings.api_key });
const ids = (items) => items.map((item) => item.id);

const events = await greenroom.events().open();
assert.equal(typeof events.lastEventId, "number");
const config = { demo_ms: 2000 };
let bot = await greenroom.bots.start({ meeting_url: link, bot_display_name: "Ada", config, metadata: { call: "7" }, priority: 50 });
assert.deepEqual([bot.platform, bot.bot_display_name, bot.metadata], ["google_meet", "Ada", { call: "7" }]);
bot = await greenroom.bots.wait(bot.id, "active", { timeoutMs: 60_000 });
assert.ok(bot.status === "active" && bot.sessions.length === 1 && bot.start_time !== null);
await assert.rejects(greenroom.bots.wait(bot.id, "ended", { timeoutMs: 0 }), WaitTimeoutError);
await greenroom.bots.stop(bot.id);
assert.equal((await greenroom.bots.wait(bot.id)).reason, "stopped");

// The other bot is followed while the server goes away and comes back.
bot = await greenroom.bots.start({ meeting_url: link, config: { demo_ms: 3_600_000 } });
const stream = greenroom.events({ botId: bot.id, lastEventId: 0 });
const seen = [];
const readUntil = async (status) => {
  while (seen.at(-1)?.to !== status) seen.push((await stream.next()).value);
};
await readUntil("active");
assert.equal(stream.lastEventId, seen.at(-1).id);
await reach("the server is to be restarted");
await greenroom.bots.configure(bot.id, { demo_ms: 3_600_000, language: "fr" });
await greenroom.bots.stop(bot.id);
await readUntil("completed");
await stream.close();
assert.deepEqual(await stream.next(), { done: true, value: undefined });
assert.deepEqual(ids(seen), ids(await collect(greenroom.bots.events(bot.id))));
assert.ok(seen.some((event) => event.kind === "command_sent" && event.reason === "reconfigure"));
assert.equal(seen.at(-1).error, null);
assert.deepEqual(ids(await collect(greenroom.bots.follow(bot.id))), ids(seen));
// Each bot made events in the stream that began before both.
assert.equal((await events.next()).value.kind, "created");
// A stream that waits ends when it is closed.
const waiting = collect(events);
await events.close();
await waiting;

const all = ids(await collect(greenroom.bots.list({ platform: "google_meet" })));
assert.ok(all.length === 2 && all[0] === bot.id);
const page = await greenroom.bots.page({ limit: 1 });
assert.deepEqual(ids(page.bots), all.slice(0, 1));
assert.deepEqual(ids((await greenroom.bots.page({ limit: 1, cursor: page.next_cursor })).bots), all.slice(1));
assert.deepEqual(await collect(greenroom.bots.active()), []);
const usage = await greenroom.usage();
assert.deepEqual([usage.running, usage.by_status.completed], [0, 2]);
assert.equal((await greenroom.bots.explain(bot.id)).status, "completed");
const { lines } = await greenroom.bots.logs(bot.id, { lines: 10 });
assert.ok(lines.some((line) => line.text.includes("demo bot joins")));
passed();
