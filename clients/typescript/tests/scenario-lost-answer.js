// The proxy loses the answer to the first attempt. The second one gets the same bot, and there is only one.

import assert from "node:assert/strict";
import { client, collect, passed, reach, settings } from "./harness.js";

const { Greenroom, ServerUnreachableError } = client;
const greenroom = new Greenroom({ url: settings.url, apiKey: settings.api_key });
const request = { meeting_url: settings.link, config: { demo_ms: 3_600_000 } };

await reach("the next answer is to be lost");
const bot = await greenroom.bots.start(request);
assert.deepEqual((await collect(greenroom.bots.list())).map(({ id }) => id), [bot.id]);
await reach("the next answer is to be lost");
await assert.rejects(greenroom.bots.start(request, { maxRetries: 0 }), ServerUnreachableError);
await greenroom.bots.stop(bot.id);
passed();
