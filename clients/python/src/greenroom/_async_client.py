"""The client for asyncio: the same methods as `AsyncGreenroom`, to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TypeVar

import httpx

from . import _calls
from ._calls import ENDED, PAGE, SILENCE, TIMEOUT, Call, FollowedTranscript, Json, Settings, WaitFor
from ._errors import ApiError, GreenroomError, ServerUnreachableError, api_error
from ._event_stream import MessageParser, StreamPosition
from ._retries import RetryPolicy
from .models import (
    Bot,
    BotLog,
    BotPage,
    Event,
    Explanation,
    Platform,
    Requirements,
    Segment,
    Status,
    StreamedEvent,
    Usage,
)

T = TypeVar("T")


class AsyncGreenroom:
    """A client of one server, with the API key of one user.

    Without `url` and `api_key`, the variables GREENROOM_SERVER and GREENROOM_TOKEN are used. The client repeats a
    request up to `max_retries` times if the connection fails, or the server answers 429 or 503. It waits as long as
    the server says in `Retry-After`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        max_retries: int = 5,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        from . import __version__

        settings = Settings.of(url, api_key)
        self._http = http_client or httpx.AsyncClient(limits=httpx.Limits(max_connections=None))
        self._http.base_url = httpx.URL(settings.url)
        self._http.headers.update(settings.headers(__version__))
        self._retries = RetryPolicy(max_retries)
        self.bots = AsyncBots(self)

    async def __aenter__(self) -> AsyncGreenroom:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def events(
        self,
        *,
        bot_id: str | None = None,
        last_event_id: int | None = None,
        give_up_after: float | None = 300.0,
    ) -> AsyncEventStream:
        """Follows the events of all bots of the user, or of one, without an end.

        The stream begins when it is opened, or after `last_event_id`; 0 is the beginning. After a lost connection it
        continues where it was, with nothing missing and nothing twice. It raises after `give_up_after` seconds
        without a server.
        """
        return AsyncEventStream(self, StreamPosition(bot_id, last_event_id, give_up_after))

    async def usage(self) -> Usage:
        """How many bots the user runs, its limit, and the bots that have not ended."""
        return await self._call(_calls.usage())

    async def _call(self, call: Call[T], max_retries: int | None = None) -> T:
        policy = self._retries if max_retries is None else RetryPolicy(max_retries)
        retries = 0
        while True:
            error: ApiError | ServerUnreachableError
            try:
                return call.answer(await self._http.send(call.request(self._http)))
            except ApiError as refused:
                error = refused
            except httpx.TransportError as cause:
                error = ServerUnreachableError(f"{call.method} {call.path}: {cause or type(cause).__name__}")
                error.__cause__ = cause
            pause = policy.pause(error, retries)
            if pause is None:
                raise error
            await asyncio.sleep(pause)
            retries += 1


class AsyncBots:
    """The bots of the user."""

    def __init__(self, greenroom: AsyncGreenroom) -> None:
        self._greenroom = greenroom
        self._call = greenroom._call

    async def start(
        self,
        meeting_url: str | None = None,
        *,
        platform: Platform | None = None,
        native_meeting_id: str | None = None,
        bot_display_name: str | None = None,
        priority: int | None = None,
        queue_timeout: float | None = None,
        requirements: Requirements | None = None,
        config: Json | None = None,
        metadata: Json | None = None,
        idempotency_key: str | None = None,
        max_retries: int | None = None,
    ) -> Bot:
        """Requests a bot for a meeting: by its link, or by `platform` and `native_meeting_id`.

        The bot gets a slot at once or waits in the queue, for at most `queue_timeout` seconds. All attempts of one call
        send the same idempotency key, so a lost answer makes no second bot. Pass a key of your own to repeat the call
        safely from another process. With `max_retries=0` the call raises `LimitReachedError` at once, instead of
        waiting for a free place.
        """
        body = _calls.new_bot(
            meeting_url,
            platform,
            native_meeting_id,
            bot_display_name,
            priority,
            queue_timeout,
            requirements,
            config,
            metadata,
        )
        return await self._call(_calls.start(body, idempotency_key), max_retries)

    async def get(self, bot_id: str) -> Bot:
        """The bot, with its sessions."""
        return await self._call(_calls.get(bot_id))

    async def wait(self, bot_id: str, until: WaitFor = "ended", *, timeout: float | None = None) -> Bot:
        """Waits until the bot is active, or has ended.

        Raises `BotEndedError` if the bot ended before it was active, and `WaitTimeoutError` after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            asked_at = time.monotonic()
            left = _calls.WAIT_SECONDS if deadline is None else deadline - asked_at
            bot = await self._call(_calls.wait(bot_id, until, left))
            left -= time.monotonic() - asked_at
            if found := _calls.waited(bot, until, left if deadline is not None else _calls.WAIT_SECONDS):
                return found
            if time.monotonic() - asked_at < 1.0:
                # A server that stops answers at once, with the bot as it is.
                await asyncio.sleep(0.25)

    async def stop(self, bot_id: str) -> Bot:
        """Asks the bot to leave. Works in every state; a bot that has ended stays as it is."""
        return await self._call(_calls.stop(bot_id))

    async def configure(self, bot_id: str, config: Json) -> Bot:
        """Replaces the configuration of a bot, also while it runs."""
        return await self._call(_calls.configure(bot_id, config))

    async def list(
        self,
        *,
        status: Status | None = None,
        platform: Platform | None = None,
        meeting: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Bot]:
        """All bots of the user that the filters find, newest first. Reads one page after the other."""
        cursor = None
        while True:
            page = await self.page(
                limit=PAGE, cursor=cursor, status=status, platform=platform, meeting=meeting, metadata=metadata
            )
            for bot in page.bots:
                yield bot
            if (cursor := page.next_cursor) is None:
                return

    async def active(self) -> AsyncIterator[Bot]:
        """The bots that have not ended, newest first."""
        cursor = None
        while True:
            page = await self._call(_calls.page("/bots/active", PAGE, cursor))
            for bot in page.bots:
                yield bot
            if (cursor := page.next_cursor) is None:
                return

    async def page(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        status: Status | None = None,
        platform: Platform | None = None,
        meeting: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> BotPage:
        """One page of bots, newest first. `next_cursor` is the `cursor` of the next page."""
        return await self._call(_calls.page("/bots", limit, cursor, status, platform, meeting, metadata))

    async def events(self, bot_id: str) -> AsyncIterator[Event]:
        """The events of the bot so far, oldest first."""
        cursor = None
        while True:
            page = await self._call(_calls.events_page(bot_id, PAGE, cursor))
            for event in page.events:
                yield event
            if (cursor := page.next_cursor) is None:
                return

    async def follow(self, bot_id: str, *, give_up_after: float | None = 300.0) -> AsyncIterator[StreamedEvent]:
        """The events of the bot, from its first to its end, as they happen."""
        async with self._greenroom.events(bot_id=bot_id, last_event_id=0, give_up_after=give_up_after) as events:
            async for event in events:
                yield event
                if event.to in ENDED:
                    return

    async def transcript(self, bot_id: str) -> AsyncIterator[Segment]:
        """The segments of the transcript so far, in their order in the meeting."""
        cursor = None
        while True:
            page = await self._call(_calls.transcript_page(bot_id, PAGE, cursor))
            for segment in page.segments:
                yield segment
            if (cursor := page.next_cursor) is None:
                return

    async def follow_transcript(self, bot_id: str, *, poll_interval: float = 2.0) -> AsyncIterator[Segment]:
        """The segments as they arrive, until the bot has ended. Asks the server every `poll_interval` seconds."""
        followed = FollowedTranscript()
        while True:
            # Before the segments: all that the bot sent before its end are then there.
            has_ended = (await self.get(bot_id)).status in ENDED
            cursor = followed.cursor(has_ended)
            while True:
                page = await self._call(_calls.transcript_page(bot_id, PAGE, cursor))
                for segment in followed.new(page, cursor):
                    yield segment
                if page.next_cursor is None:
                    break
                cursor = page.next_cursor
            if has_ended:
                return
            # Answers early if the bot ends meanwhile.
            await self._call(_calls.wait(bot_id, "ended", poll_interval))

    async def logs(self, bot_id: str, *, lines: int = 200) -> BotLog:
        """The last lines that the bot printed."""
        return await self._call(_calls.logs(bot_id, lines))

    async def explain(self, bot_id: str) -> Explanation:
        """Why the bot is where it is, and what can be done."""
        return await self._call(_calls.explain(bot_id))


class AsyncEventStream:
    """An iterator over events. It begins where `async with` is entered, or with `open`, or else with the first event.

    `last_event_id` is where another stream would continue.
    """

    def __init__(self, greenroom: AsyncGreenroom, position: StreamPosition) -> None:
        self._http = greenroom._http
        self._position = position
        self._events = self._follow()
        self._is_open = False
        self._first: StreamedEvent | None = None

    @property
    def last_event_id(self) -> int | None:
        return self._position.last_event_id

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> StreamedEvent:
        self._is_open = True
        event, self._first = self._first, None
        while event is None:
            event = await anext(self._events)
        return event

    async def __aenter__(self) -> AsyncEventStream:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> AsyncEventStream:
        """Connects, so that the stream has every event from now on."""
        if not self._is_open:
            self._is_open = True
            self._first = await anext(self._events)
        return self

    async def close(self) -> None:
        """Ends the stream."""
        await self._events.aclose()

    async def _follow(self) -> AsyncGenerator[StreamedEvent | None, None]:
        while True:
            failed: GreenroomError | None = None
            try:
                async with aclosing(self._connection()) as events:
                    async for event in events:
                        yield event
            except httpx.TransportError as cause:
                failed = ServerUnreachableError(f"GET /events: {cause or type(cause).__name__}")
                failed.__cause__ = cause
            except ApiError as refused:
                failed = refused
            await asyncio.sleep(self._position.pause(failed))

    async def _connection(self) -> AsyncGenerator[StreamedEvent | None, None]:
        """What one connection brings: `None` for its position, and the events."""
        position, parser = self._position, MessageParser()
        timeout = httpx.Timeout(TIMEOUT, read=SILENCE)
        async with self._http.stream(
            "GET", "/events", params=position.query(), headers=position.headers(), timeout=timeout
        ) as response:
            if response.status_code != 200:
                raise api_error(response.status_code, response.headers, await response.aread())
            async for chunk in response.aiter_bytes():
                position.heard()
                for message in parser.feed(chunk):
                    yield position.read(message)
