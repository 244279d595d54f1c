// What the server refuses becomes an error that says why.

import assert from "node:assert/strict";
import { client, passed, settings } from "./harness.js";

const { url, api_key: apiKey, link, other_link: otherLink } = settings;
const { ConflictError, DuplicateBotError, Greenroom, InvalidRequestError } = client;
const { LimitReachedError, NotFoundError, ServerUnreachableError, UnauthorizedError } = client;
const greenroom = new Greenroom({ url, apiKey });

/** The error with which a promise is rejected. */
async function thrown(kind, promise) {
  const error = await promise.then(() => assert.fail(`no ${kind.name}`), (error) => error);
  assert.ok(error instanceof kind, String(error));
  return error;
}

const request = { meeting_url: link, config: { demo_ms: 3_600_000 } };
const bot = await greenroom.bots.start(request, { idempotencyKey: "one" });
assert.equal((await greenroom.bots.start(request, { idempotencyKey: "one" })).id, bot.id);
const mismatch = await thrown(InvalidRequestError, greenroom.bots.start({ meeting_url: otherLink }, { idempotencyKey: "one" }));
assert.deepEqual([mismatch.status, mismatch.code], [422, "idempotency_mismatch"]);

const duplicate = await thrown(DuplicateBotError, greenroom.bots.start({ meeting_url: link }));
assert.deepEqual([duplicate.status, duplicate.code, duplicate.botId], [409, "duplicate_bot", bot.id]);
assert.equal(duplicate.name, "DuplicateBotError");
assert.ok(duplicate.requestId && duplicate.message.includes(duplicate.requestId) && duplicate.message.includes(duplicate.detail));

// The user may have one bot.
const limit = await thrown(LimitReachedError, greenroom.bots.start({ meeting_url: otherLink }, { maxRetries: 0 }));
assert.deepEqual([limit.status, limit.running, limit.maxConcurrentBots], [429, 1, 1]);
assert.ok(limit.retryAfter > 0);

const invalid = await thrown(InvalidRequestError, greenroom.bots.start({ meeting_url: "https://example.com/no-meeting" }));
assert.ok(invalid.code === "invalid" && invalid.detail.includes("meeting_url"));
const nobody = "00000000-0000-7000-8000-000000000000";
assert.equal((await thrown(NotFoundError, greenroom.bots.get(nobody))).code, "not_found");
await thrown(NotFoundError, greenroom.events({ botId: nobody }).next());

await greenroom.bots.stop(bot.id);
await greenroom.bots.wait(bot.id);
assert.equal((await thrown(ConflictError, greenroom.bots.configure(bot.id, {}))).code, "bot_ended");

const stranger = new Greenroom({ url, apiKey: "grk_wrong" });
assert.equal((await thrown(UnauthorizedError, stranger.bots.get(bot.id))).code, "unauthorized");
assert.equal((await thrown(UnauthorizedError, stranger.events().next())).status, 401);

const nowhere = new Greenroom({ url: "http://127.0.0.1:1", apiKey, maxRetries: 1 });
await thrown(ServerUnreachableError, nowhere.bots.get(bot.id));
await thrown(ServerUnreachableError, nowhere.events({ giveUpAfterMs: -1 }).next());
passed();
