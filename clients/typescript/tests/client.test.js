// What the client does with answers that a real server gives only rarely.

import assert from "node:assert/strict";
import { test } from "node:test";
import { client, collect, load } from "./harness.js";

const { GoneError, Greenroom, GreenroomError, LimitReachedError, ServerError, UnavailableError, UnexpectedAnswerError } = client;
const { MessageParser } = await load("messages.js");
const { backoffMs, pauseMs } = await load("retries.js");

const bot = { id: "0197", status: "a_new_status" };
const json = (status, body, headers = {}) => () => new Response(JSON.stringify(body), { status, headers });
const problem = (status, code, headers) => json(status, { status, code, detail: "because", request_id: "r-1" }, headers);
const fails = (message) => () => Promise.reject(new TypeError("fetch failed", { cause: new Error(message) }));

/** A client whose server gives these answers, and the requests that it got. */
function served(answers, options = {}) {
  const requests = [];
  const left = [...answers];
  const fetch = async (url, init) => {
    requests.push({ url: new URL(url), ...init });
    return left.shift()();
  };
  return { greenroom: new Greenroom({ url: "http://greenroom.test/", apiKey: "grk_1", fetch, ...options }), requests };
}

/** An answer whose body comes in these parts, and then ends or fails. */
function stream(parts, failure) {
  const queue = parts.map((part) => new TextEncoder().encode(part));
  const pull = (controller) => {
    if (queue.length > 0) controller.enqueue(queue.shift());
    else if (failure) controller.error(failure);
    else controller.close();
  };
  return () => new Response(new ReadableStream({ pull }), { status: 200 });
}

test("all attempts send the same idempotency key", async () => {
  const answers = [fails("connection reset"), problem(503, "overloaded", { "retry-after": "0" }), json(200, { bot })];
  const { greenroom, requests } = served(answers);
  assert.equal((await greenroom.bots.start({ meeting_url: "x" })).id, "0197");
  const keys = new Set(requests.map((request) => request.headers["Idempotency-Key"]));
  assert.deepEqual([requests.length, keys.size], [3, 1]);
  assert.equal(requests[0].headers.Authorization, "Bearer grk_1");
  assert.equal(requests[0].body, '{"meeting_url":"x"}');
  const other = served([json(201, { bot })]);
  await other.greenroom.bots.start({ meeting_url: "x" });
  assert.ok(!keys.has(other.requests[0].headers["Idempotency-Key"]));
});

test("pauses obey Retry-After, grow to a limit, and end", async () => {
  const refused = (seconds) => new LimitReachedError(429, new Headers(seconds ? { "retry-after": seconds } : {}), "");
  assert.equal(pauseMs(refused("10"), 0, 5), 10_000);
  assert.equal(pauseMs(refused("3600"), 0, 5), undefined);
  assert.equal(pauseMs(refused("10"), 5, 5), undefined);
  assert.ok(pauseMs(refused(), 4, 5) > pauseMs(refused(), 0, 5));
  assert.ok([0, 5, 1000].every((failures) => backoffMs(failures) <= 8000));
  const { greenroom, requests } = served(Array(9).fill(problem(429, "limit_reached", { "retry-after": "0" })), { maxRetries: 2 });
  await assert.rejects(greenroom.bots.start({ meeting_url: "x" }), LimitReachedError);
  assert.equal(requests.length, 3);
});

test("a refusal is not repeated", async () => {
  for (const status of [400, 401, 404, 409, 410, 422, 500]) {
    const { greenroom, requests } = served([problem(status, "no")]);
    const error = await greenroom.bots.get("0197").catch((error) => error);
    assert.deepEqual([error.status, error.code, error.detail, error.requestId], [status, "no", "because", "r-1"]);
    assert.equal(requests.length, 1);
  }
  const { greenroom } = served([problem(503, "unavailable", { "retry-after": "3600" })]);
  await assert.rejects(greenroom.bots.get("0197"), UnavailableError);
});

test("an answer of a proxy is an error too", async () => {
  const page = () => new Response("<html>it broke</html>", { status: 500, headers: { "x-request-id": "r-2" } });
  const error = await served([page]).greenroom.bots.get("0197").catch((error) => error);
  assert.ok(error instanceof ServerError && error.detail.includes("it broke"));
  assert.deepEqual([error.code, error.requestId], ["http_500", "r-2"]);
  await assert.rejects(served([() => new Response("<html>")]).greenroom.bots.get("0197"), UnexpectedAnswerError);
});

test("an id stays in its place of the path", async () => {
  const { greenroom, requests } = served([json(200, { bot })]);
  await greenroom.bots.get("../admin/users?x#y");
  assert.equal(requests[0].url.href, "http://greenroom.test/bots/..%2Fadmin%2Fusers%3Fx%23y");
});

test("pages are read one after the other", async () => {
  const { greenroom, requests } = served([json(200, { bots: [bot], next_cursor: "c" }), json(200, { bots: [bot], next_cursor: null })]);
  assert.equal((await collect(greenroom.bots.list({ status: "active" }))).length, 2);
  assert.equal(requests[1].url.search, "?status=active&limit=1000&cursor=c");
});

test("server and key are needed", () => {
  delete process.env.GREENROOM_TOKEN;
  assert.throws(() => new Greenroom({ url: "http://greenroom.test" }), GreenroomError);
});

test("a broken stream continues after its last event", async () => {
  const event = `id: 7\ndata: ${JSON.stringify({ id: 7 })}\n\n`;
  const { greenroom, requests } = served([
    problem(503, "overloaded", { "retry-after": "0" }),
    stream(["id: 5\nretry: 1\n\n", event.slice(0, 9), `${event.slice(9)}id: 9\nda`], new TypeError("terminated")),
    fails("refused"),
    stream(["id: 7\n\n"]),
    stream([`id: 7\n\n: still here\n\nid: 9\ndata: ${JSON.stringify({ id: 9 })}\n\n`]),
  ]);
  const events = await greenroom.events({ botId: "0197" }).open();
  assert.equal(events.lastEventId, 5);
  assert.deepEqual([(await events.next()).value.id, (await events.next()).value.id], [7, 9]);
  assert.equal(events.lastEventId, 9);
  await events.close();
  assert.deepEqual(requests.map((request) => request.headers["Last-Event-ID"]), [undefined, undefined, "7", "7", "7"]);
  assert.equal(requests[0].url.search, "?bot_id=0197");
});

test("events that are gone are an error", async () => {
  const { greenroom, requests } = served([problem(410, "gone")]);
  await assert.rejects(greenroom.events({ lastEventId: 3 }).next(), (error) => error instanceof GoneError && error.code === "gone");
  assert.deepEqual([requests.length, requests[0].headers["Last-Event-ID"]], [1, "3"]);
});

test("a stream of something else is an error", async () => {
  for (const text of ["id: x\n\n", "data: [\n\n"]) {
    await assert.rejects(served([stream([text])]).greenroom.events().next(), UnexpectedAnswerError);
  }
});

test("messages are the same wherever the bytes are cut", () => {
  const text =
    "\ufeff: comment\n\nid: 1\nretry: 1500\n\nid:2\rdata: é one\r\ndata: two\r\n\r\nevent: end\ndata\n\nid: 3\ndata: cut";
  const expected = [
    { id: "1", event: "message", data: undefined, retryMs: 1500 },
    { id: "2", event: "message", data: "é one\ntwo", retryMs: undefined },
    { id: undefined, event: "end", data: "", retryMs: undefined },
  ];
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= bytes.length; size++) {
    const parser = new MessageParser();
    const messages = [];
    for (let at = 0; at < bytes.length; at += size) messages.push(...parser.feed(bytes.subarray(at, at + size)));
    assert.deepEqual(messages, expected, `${size} bytes at once`);
  }
  assert.deepEqual(new MessageParser().feed(new TextEncoder().encode("retry: soon\nid: a\0b\nunknown: 1\n\n")), []);
});
