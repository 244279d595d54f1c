"""The requests behind the methods of both clients: where they go, and what their answers mean."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx

from ._errors import BotEndedError, GreenroomError, UnexpectedAnswerError, WaitTimeoutError, api_error
from .models import (
    Bot,
    BotLog,
    BotPage,
    EventPage,
    Explanation,
    Platform,
    Requirements,
    Segment,
    Status,
    Transcript,
    Usage,
)

T = TypeVar("T")
WaitFor = Literal["active", "ended"]
Json = Mapping[str, Any]

TIMEOUT = 30.0
# The longest wait of one request; a longer one is several requests.
WAIT_SECONDS = 30.0
# A stream without a sign of life for so long is broken: the server sends one every 15 s.
SILENCE = 45.0
PAGE = 1000
ENDED: frozenset[Status] = frozenset({"completed", "failed"})


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, complete, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    query: dict[str, str] = field(default_factory=dict)
    body: Json | None = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        return client.build_request(
            self.method,
            self.path,
            params=self.query,
            json=self.body,
            headers=self.headers,
            timeout=self.timeout,
        )

    def answer(self, response: httpx.Response) -> T:
        """What the answer means; raises the error that it stands for."""
        if response.status_code >= 300:
            raise api_error(response.status_code, response.headers, response.content)
        try:
            return self.read(json.loads(response.content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnexpectedAnswerError(f"{self.method} {self.path}: the answer is not one of Greenroom") from error


@dataclass(frozen=True)
class Settings:
    """Where the server is, and who asks."""

    url: str
    api_key: str

    @classmethod
    def of(cls, url: str | None, api_key: str | None) -> Settings:
        url = url or os.environ.get("GREENROOM_SERVER")
        api_key = api_key or os.environ.get("GREENROOM_TOKEN")
        if not url:
            raise GreenroomError("the address of the server is missing: pass `url` or set GREENROOM_SERVER")
        if not api_key:
            raise GreenroomError("the API key is missing: pass `api_key` or set GREENROOM_TOKEN")
        return cls(url.rstrip("/"), api_key)

    def headers(self, version: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}", "User-Agent": f"greenroom-python/{version}"}


def _bot(answer: Any) -> Bot:
    return Bot.from_json(answer["bot"])


def _path(bot_id: str, rest: str = "") -> str:
    return f"/bots/{quote(bot_id, safe='')}{rest}"


def _query(**values: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def start(body: Json, idempotency_key: str | None) -> Call[Bot]:
    """The key is made here, once: each attempt sends the same one, so that none makes a second bot."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return Call("POST", "/bots", _bot, body=body, headers=headers)


def new_bot(
    meeting_url: str | None,
    platform: Platform | None,
    native_meeting_id: str | None,
    bot_display_name: str | None,
    priority: int | None,
    queue_timeout: float | None,
    requirements: Requirements | None,
    config: Json | None,
    metadata: Json | None,
) -> Json:
    """The body of a request for a bot, with the fields that were given."""
    fields = {
        "meeting_url": meeting_url,
        "platform": platform,
        "native_meeting_id": native_meeting_id,
        "bot_display_name": bot_display_name,
        "priority": priority,
        "queue_timeout_ms": None if queue_timeout is None else round(queue_timeout * 1000),
        "requirements": requirements,
        "config": config,
        "metadata": metadata,
    }
    return {name: value for name, value in fields.items() if value is not None}


def get(bot_id: str) -> Call[Bot]:
    return Call("GET", _path(bot_id), _bot)


def wait(bot_id: str, until: WaitFor, seconds: float) -> Call[Bot]:
    wait_ms = round(max(0.0, min(seconds, WAIT_SECONDS)) * 1000)
    query = _query(wait_for=until, wait_ms=wait_ms)
    return Call("GET", _path(bot_id), _bot, query=query, timeout=TIMEOUT + WAIT_SECONDS)


def waited(bot: Bot, until: WaitFor, left: float) -> Bot | None:
    """The bot if it is there; `None` if it is to be waited for again."""
    if bot.status in ENDED:
        if until == "active":
            raise BotEndedError(bot)
        return bot
    if until == "active" and bot.status == "active":
        return bot
    if left <= 0:
        raise WaitTimeoutError(bot, until)
    return None


def stop(bot_id: str) -> Call[Bot]:
    return Call("DELETE", _path(bot_id), _bot)


def configure(bot_id: str, config: Json) -> Call[Bot]:
    return Call("PUT", _path(bot_id, "/config"), _bot, body={"config": config})


def page(
    path: str,
    limit: int,
    cursor: str | None,
    status: Status | None = None,
    platform: Platform | None = None,
    meeting: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Call[BotPage]:
    query = _query(status=status, platform=platform, meeting=meeting, limit=limit, cursor=cursor)
    query.update({f"metadata.{key}": value for key, value in (metadata or {}).items()})
    return Call("GET", path, BotPage.from_json, query=query)


def events_page(bot_id: str, limit: int, cursor: str | None) -> Call[EventPage]:
    return Call("GET", _path(bot_id, "/events"), EventPage.from_json, query=_query(limit=limit, cursor=cursor))


def transcript_page(bot_id: str, limit: int, cursor: str | None) -> Call[Transcript]:
    return Call("GET", _path(bot_id, "/transcript"), Transcript.from_json, query=_query(limit=limit, cursor=cursor))


def logs(bot_id: str, lines: int) -> Call[BotLog]:
    return Call("GET", _path(bot_id, "/logs"), BotLog.from_json, query=_query(lines=lines))


def explain(bot_id: str) -> Call[Explanation]:
    return Call("GET", _path(bot_id, "/explain"), Explanation.from_json)


def usage() -> Call[Usage]:
    return Call("GET", "/bots/status", Usage.from_json)


class FollowedTranscript:
    """Which segments of a transcript are new.

    A segment may arrive that sorts before others, so reading on from the last page is not enough. Most come at the
    end: the last page is read each time, and everything every tenth time and after the end of the bot.
    """

    def __init__(self) -> None:
        self._seen: set[Segment] = set()
        self._polls = 0
        self._last_page: str | None = None

    def cursor(self, has_ended: bool) -> str | None:
        """Where the next reading begins."""
        self._polls += 1
        return None if has_ended or self._polls % 10 == 0 else self._last_page

    def new(self, page: Transcript, cursor: str | None) -> list[Segment]:
        self._last_page = cursor
        # A segment is identified by its content: two that are equal are one.
        new = [segment for segment in dict.fromkeys(page.segments) if segment not in self._seen]
        self._seen.update(new)
        return new
