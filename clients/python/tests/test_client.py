"""What the client does with answers that a real server gives only rarely."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from unittest.mock import patch

import httpx

from greenroom import (
    ApiError,
    AsyncGreenroom,
    GoneError,
    Greenroom,
    GreenroomError,
    LimitReachedError,
    ServerError,
    UnavailableError,
    UnexpectedAnswerError,
)
from greenroom._retries import LONGEST_PAUSE, backoff
from greenroom._time import parse_time

BOT = {
    "id": "0197",
    "user_id": "0196",
    "platform": "google_meet",
    "native_meeting_id": "abc-defg-hij",
    "meeting_url": "https://meet.google.com/abc-defg-hij",
    "status": "a_new_status",
    "status_since": "2026-11-16T12:00:01.5Z",
    "priority": 100,
    "config": {},
    "metadata": {},
    "created_at": "2026-11-16T12:00:00Z",
    "updated_at": "2026-11-16T12:00:00.123456789Z",
    "a_new_field": 1,
}
EVENT = {
    "id": 7,
    "bot_id": "0197",
    "at": "2026-11-16T12:00:00Z",
    "kind": "created",
    "actor": "user",
    "to": "queued",
    "metadata": {},
}
Handler = Callable[[httpx.Request], httpx.Response]


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"status": status, "code": code, "detail": "because", "request_id": "r-1"}
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def one_after_the_other(*answers: httpx.Response | Exception) -> tuple[Handler, list[httpx.Request]]:
    """A server that gives these answers, and the requests that it got."""
    left, requests = iter(answers), list[httpx.Request]()

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, requests


def client(handler: Handler, max_retries: int = 5) -> Greenroom:
    http = httpx.Client(transport=httpx.MockTransport(handler))
    return Greenroom("http://greenroom.test/", "grk_1", max_retries=max_retries, http_client=http)


def stream(*chunks: bytes) -> httpx.Response:
    return httpx.Response(200, content=iter(chunks), headers={"content-type": "text/event-stream"})


class Requests(unittest.TestCase):
    def setUp(self) -> None:
        sleeping = patch("time.sleep")
        self.sleep = sleeping.start()
        self.addCleanup(sleeping.stop)

    def pauses(self) -> list[float]:
        return [call.args[0] for call in self.sleep.call_args_list]

    def test_all_attempts_send_the_same_idempotency_key(self) -> None:
        handler, requests = one_after_the_other(
            httpx.ReadError("connection reset"), problem(503, "overloaded"), httpx.Response(200, json={"bot": BOT})
        )
        self.assertEqual(client(handler).bots.start("meet.google.com/abc-defg-hij").id, "0197")
        keys = {request.headers["idempotency-key"] for request in requests}
        self.assertEqual((len(requests), len(keys)), (3, 1))
        self.assertEqual(requests[0].headers["authorization"], "Bearer grk_1")
        self.assertEqual(json.loads(requests[0].content), {"meeting_url": "meet.google.com/abc-defg-hij"})
        handler, others = one_after_the_other(httpx.Response(201, json={"bot": BOT}))
        client(handler).bots.start("meet.google.com/abc-defg-hij")
        self.assertNotIn(others[0].headers["idempotency-key"], keys)

    def test_retry_after_is_obeyed(self) -> None:
        handler, _ = one_after_the_other(
            problem(429, "limit_reached", retry_after="10"), httpx.Response(201, json={"bot": BOT})
        )
        client(handler).bots.start("x")
        self.assertEqual(self.pauses(), [10.0])

    def test_a_server_that_asks_for_too_much_patience_is_an_error(self) -> None:
        handler, requests = one_after_the_other(problem(503, "unavailable", retry_after="3600"))
        with self.assertRaises(UnavailableError) as raised:
            client(handler).bots.get("0197")
        self.assertEqual((len(requests), raised.exception.retry_after), (1, 3600.0))

    def test_attempts_end(self) -> None:
        handler, requests = one_after_the_other(*(problem(429, "limit_reached") for _ in range(9)))
        with self.assertRaises(LimitReachedError):
            client(handler, max_retries=2).bots.start("x")
        self.assertEqual(len(requests), 3)

    def test_a_refusal_is_not_repeated(self) -> None:
        for status in (400, 401, 404, 409, 410, 422, 500):
            handler, requests = one_after_the_other(problem(status, "no"))
            with self.assertRaises(ApiError) as raised:
                client(handler).bots.get("0197")
            error = raised.exception
            said = (error.status, error.code, error.detail, error.request_id)
            self.assertEqual(said, (status, "no", "because", "r-1"))
            self.assertEqual(len(requests), 1)

    def test_an_answer_of_a_proxy_is_an_error_too(self) -> None:
        page = httpx.Response(500, text="<html>it broke</html>", headers={"x-request-id": "r-2"})
        with self.assertRaises(ServerError) as raised:
            client(one_after_the_other(page)[0]).bots.get("0197")
        self.assertEqual((raised.exception.code, raised.exception.request_id), ("http_500", "r-2"))
        self.assertIn("it broke", raised.exception.detail)
        for answer in (httpx.Response(200, text="<html>"), httpx.Response(200, json=[]), httpx.Response(200, json={})):
            with self.assertRaises(UnexpectedAnswerError):
                client(one_after_the_other(answer)[0]).bots.get("0197")

    def test_a_newer_server_may_send_more(self) -> None:
        bot = client(one_after_the_other(httpx.Response(200, json={"bot": BOT}))[0]).bots.get("0197")
        self.assertEqual(str(bot.status), "a_new_status")
        self.assertEqual(bot.updated_at, datetime(2026, 11, 16, 12, 0, 0, 123456, timezone.utc))

    def test_an_id_stays_in_its_place_of_the_path(self) -> None:
        handler, requests = one_after_the_other(httpx.Response(200, json={"bot": BOT}))
        client(handler).bots.get("../admin/users?x#y")
        self.assertEqual(requests[0].url.raw_path, b"/bots/..%2Fadmin%2Fusers%3Fx%23y")

    def test_pages_are_read_one_after_the_other(self) -> None:
        handler, requests = one_after_the_other(
            httpx.Response(200, json={"bots": [BOT], "next_cursor": "c"}),
            httpx.Response(200, json={"bots": [BOT], "next_cursor": None}),
        )
        self.assertEqual(len(list(client(handler).bots.list(status="active"))), 2)
        self.assertEqual(requests[1].url.params["cursor"], "c")
        self.assertEqual(requests[1].url.params["status"], "active")

    def test_server_and_key_come_from_the_environment(self) -> None:
        with patch.dict("os.environ", {"GREENROOM_SERVER": "http://one.test", "GREENROOM_TOKEN": "grk_2"}):
            self.assertEqual(Greenroom()._http.headers["authorization"], "Bearer grk_2")
        with patch.dict("os.environ", clear=True), self.assertRaises(GreenroomError):
            Greenroom("http://one.test")

    def test_pauses_grow_to_a_limit(self) -> None:
        self.assertTrue(all(backoff(failures) <= LONGEST_PAUSE for failures in (0, 5, 1000)))
        self.assertLess(backoff(0), backoff(4))


class Streams(unittest.TestCase):
    def setUp(self) -> None:
        sleeping = patch("time.sleep")
        sleeping.start()
        self.addCleanup(sleeping.stop)

    def test_a_broken_stream_continues_after_its_last_event(self) -> None:
        event = f"id: 7\ndata: {json.dumps(EVENT)}\n\n".encode()

        def breaks() -> Iterator[bytes]:
            yield b"id: 5\nretry: 10\n\n"
            yield event[:20]
            yield event[20:] + b"id: 9\nda"
            raise httpx.ReadError("connection reset")

        later = f"id: 7\n\n: still here\n\nid: 9\ndata: {json.dumps(EVENT | {'id': 9})}\n\n".encode()
        handler, requests = one_after_the_other(
            problem(503, "overloaded"),
            httpx.Response(200, content=breaks()),
            httpx.ConnectError("refused"),
            stream(b"id: 7\n\n"),
            stream(later),
        )
        with client(handler).events(bot_id="0197") as events:
            self.assertEqual(events.last_event_id, 5)
            self.assertEqual([next(events).id, next(events).id], [7, 9])
            self.assertEqual(events.last_event_id, 9)
        self.assertEqual([request.headers.get("last-event-id") for request in requests], [None, None, "7", "7", "7"])
        self.assertEqual(requests[0].url.params["bot_id"], "0197")

    def test_events_that_are_gone_are_an_error(self) -> None:
        handler, requests = one_after_the_other(problem(410, "gone"))
        with self.assertRaises(GoneError) as raised:
            next(client(handler).events(last_event_id=3))
        self.assertEqual((raised.exception.code, len(requests)), ("gone", 1))
        self.assertEqual(requests[0].headers["last-event-id"], "3")

    def test_a_stream_of_something_else_is_an_error(self) -> None:
        for text in (b"id: x\n\n", b"data: {}\n\n", b"data: [\n\n"):
            with self.assertRaises(UnexpectedAnswerError):
                next(client(one_after_the_other(stream(text))[0]).events())

    def test_the_asynchronous_client_does_the_same(self) -> None:
        async def run() -> None:
            handler, requests = one_after_the_other(
                problem(503, "overloaded"),
                httpx.Response(201, json={"bot": BOT}),
                httpx.Response(410, json={"code": "gone", "detail": "pruned"}),
            )
            http = httpx.AsyncClient(transport=httpx.MockTransport(handler))
            with patch("asyncio.sleep"):
                async with AsyncGreenroom("http://greenroom.test", "grk_1", http_client=http) as greenroom:
                    self.assertEqual((await greenroom.bots.start("x")).id, "0197")
                    self.assertEqual(len({request.headers["idempotency-key"] for request in requests}), 1)
                    with self.assertRaises(GoneError):
                        await greenroom.events(last_event_id=1).open()

        asyncio.run(run())


class Times(unittest.TestCase):
    def test_times_of_the_api_are_read(self) -> None:
        for text, microsecond in (("", 0), (".5", 500_000), (".000001", 1), (".123456789", 123_456)):
            expected = datetime(2026, 11, 16, 12, 0, 1, microsecond, timezone.utc)
            self.assertEqual(parse_time(f"2026-11-16T12:00:01{text}Z"), expected)
        with self.assertRaises(ValueError):
            parse_time("yesterday")


if __name__ == "__main__":
    unittest.main()
