"""The types of the answers. Written by scripts/generate_models.py from the OpenAPI document: do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from ._time import parse_time

# The cause of a bot's end.
# - `host`: the people in the meeting never admitted the bot, or removed it
# - `bot`: the program of the bot
# - `provider`: the provider, the machine, or a person who stopped the container
# - `capacity`: there was no free slot in time
# - `none`: the bot ended as planned
Fault = Literal["host", "bot", "provider", "capacity", "none"]

# The service that hosts a meeting.
Platform = Literal["google_meet", "teams", "zoom"]

# The status of a bot.
# A bot with the status `completed` or `failed` has ended.
Status = Literal[
    "scheduled", "reserved", "queued", "deploying", "starting", "awaiting_admission", "needs_help",
    "active", "stopping", "completed", "failed",
]

# The cause of an event.
# `greenroom` stands for placement and deployment, `keeper` for a background job of the server.
Actor = Literal["user", "bot", "operator", "greenroom", "keeper"]

# The kind of an event.
# A `warning` says that the bot did something without effect, for example that it printed an unknown
# event.
EventKind = Literal[
    "created", "assigned", "requeued", "status_changed", "command_sent", "command_acknowledged",
    "warning",
]

# The state of a slot at its provider.
ProviderState = Literal[
    "running", "unhealthy", "stopped", "missing", "failed", "no_answer", "not_configured",
]

# How the provider charges for a machine.
UsageClass = Literal["on-demand", "spot"]


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session: one connection of a bot that has started."""

    connection_id: str
    container_id: str | None
    ended_at: datetime | None
    joined_at: datetime | None
    last_heartbeat_at: datetime | None
    started_at: datetime

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Session:
        return cls(
            connection_id=data["connection_id"],
            container_id=data.get("container_id"),
            ended_at=None if data.get("ended_at") is None else parse_time(data["ended_at"]),
            joined_at=None if data.get("joined_at") is None else parse_time(data["joined_at"]),
            last_heartbeat_at=None if data.get("last_heartbeat_at") is None else parse_time(data["last_heartbeat_at"]),
            started_at=parse_time(data["started_at"]),
        )


@dataclass(frozen=True, kw_only=True)
class Bot:
    """A bot: one attendance of one meeting."""

    bot_display_name: str | None
    """The name of the bot in the meeting."""
    config: dict[str, Any]
    """The configuration for the bot."""
    connection_id: str | None
    """The current connection; `null` before the first assignment."""
    container_id: str | None
    created_at: datetime
    deadline_at: datetime | None
    """When the server ends the bot unless it gets further: it gets a slot, makes its first callback, joins,
    sends a heartbeat or leaves. `null` after the end.
    """
    end_time: datetime | None
    error: str | None
    """What went wrong. Never `null` for a bot that failed. While the bot is `deploying`: why the last attempt
    to start it failed.
    """
    estimated_wait_ms: int | None
    """The estimated time until the bot gets a slot, if the server can estimate it; else `null`."""
    fault: Fault | None
    """The cause of the end; `null` before the end."""
    id: str
    join_at: datetime | None
    """Not supported yet: always `null`."""
    meeting_url: str
    metadata: dict[str, Any]
    """The data of the user."""
    native_meeting_id: str
    """The id that the platform gave the meeting."""
    platform: Platform
    pool: str | None
    """The name of its pool."""
    priority: int
    """Bots with a lower value go first."""
    queue_position: int | None
    """The position in the queue, from 1, while the bot is `queued`; else `null`."""
    reason: str | None
    """Why the bot has this status. After the end: `finished`, `stopped`, `crashed`, … or a word that the bot
    chose.
    """
    requirements: dict[str, Any] | None
    """The requirements for the slot, as the user sent them."""
    slot: str | None
    """The name of its slot."""
    start_time: datetime | None
    status: Status
    status_since: datetime
    """Since when the bot has this status."""
    updated_at: datetime
    user_id: str
    sessions: list[Session] | None = None
    """The sessions of the bot. Only calls that return one bot with its sessions have this field."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bot:
        return cls(
            bot_display_name=data.get("bot_display_name"),
            config=data["config"],
            connection_id=data.get("connection_id"),
            container_id=data.get("container_id"),
            created_at=parse_time(data["created_at"]),
            deadline_at=None if data.get("deadline_at") is None else parse_time(data["deadline_at"]),
            end_time=None if data.get("end_time") is None else parse_time(data["end_time"]),
            error=data.get("error"),
            estimated_wait_ms=data.get("estimated_wait_ms"),
            fault=data.get("fault"),
            id=data["id"],
            join_at=None if data.get("join_at") is None else parse_time(data["join_at"]),
            meeting_url=data["meeting_url"],
            metadata=data["metadata"],
            native_meeting_id=data["native_meeting_id"],
            platform=data["platform"],
            pool=data.get("pool"),
            priority=data["priority"],
            queue_position=data.get("queue_position"),
            reason=data.get("reason"),
            requirements=data.get("requirements"),
            slot=data.get("slot"),
            start_time=None if data.get("start_time") is None else parse_time(data["start_time"]),
            status=data["status"],
            status_since=parse_time(data["status_since"]),
            updated_at=parse_time(data["updated_at"]),
            user_id=data["user_id"],
            sessions=None if data.get("sessions") is None else [Session.from_json(item) for item in data["sessions"]],
        )


@dataclass(frozen=True, kw_only=True)
class BotPage:
    """A page of bots, newest first."""

    bots: list[Bot]
    next_cursor: str | None
    """Send it as `cursor` to get the next page; `null` on the last page."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BotPage:
        return cls(
            bots=[Bot.from_json(item) for item in data["bots"]],
            next_cursor=data.get("next_cursor"),
        )


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a bot."""

    actor: Actor
    at: datetime
    bot_id: str
    from_: Status | None
    id: int
    kind: EventKind
    reason: str | None
    """Why it happened. For events of commands: the action of the command."""
    to: Status | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        return cls(
            actor=data["actor"],
            at=parse_time(data["at"]),
            bot_id=data["bot_id"],
            from_=data.get("from"),
            id=data["id"],
            kind=data["kind"],
            reason=data.get("reason"),
            to=data.get("to"),
        )


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """A page of events, oldest first."""

    events: list[Event]
    next_cursor: str | None
    """Send it as `cursor` to get the next page; `null` on the last page."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EventPage:
        return cls(
            events=[Event.from_json(item) for item in data["events"]],
            next_cursor=data.get("next_cursor"),
        )


@dataclass(frozen=True, kw_only=True)
class StreamedEvent:
    """An event of a bot, as `GET /events` sends it."""

    actor: Actor
    at: datetime
    bot_id: str
    from_: Status | None
    id: int
    kind: EventKind
    reason: str | None
    """Why it happened. For events of commands: the action of the command."""
    to: Status | None
    error: str | None
    """What went wrong. Only for the event of the end of a bot; else `null`."""
    metadata: dict[str, Any]
    """The metadata of the bot."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamedEvent:
        return cls(
            actor=data["actor"],
            at=parse_time(data["at"]),
            bot_id=data["bot_id"],
            from_=data.get("from"),
            id=data["id"],
            kind=data["kind"],
            reason=data.get("reason"),
            to=data.get("to"),
            error=data.get("error"),
            metadata=data["metadata"],
        )


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A segment of a transcript."""

    end_time: float
    """The end of the segment in seconds."""
    language: str | None
    session_uid: str
    """The id of the connection under which the bot sent the segment."""
    speaker: str | None
    start_time: float
    """The start of the segment in seconds. The bot chooses the zero point."""
    text: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Segment:
        return cls(
            end_time=data["end_time"],
            language=data.get("language"),
            session_uid=data["session_uid"],
            speaker=data.get("speaker"),
            start_time=data["start_time"],
            text=data["text"],
        )


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A page of segments, by start, end and arrival."""

    next_cursor: str | None
    """Send it as `cursor` to get the next page; `null` on the last page."""
    segments: list[Segment]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Transcript:
        return cls(
            next_cursor=data.get("next_cursor"),
            segments=[Segment.from_json(item) for item in data["segments"]],
        )


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of the log of a bot."""

    at: datetime | None
    """When the bot printed the line; `null` if the time is unknown."""
    text: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogLine:
        return cls(
            at=None if data.get("at") is None else parse_time(data["at"]),
            text=data["text"],
        )


@dataclass(frozen=True, kw_only=True)
class BotLog:
    """The last lines of the log of a bot, oldest first."""

    lines: list[LogLine]
    truncated: bool
    """Whether the bot printed earlier lines that are missing here."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BotLog:
        return cls(
            lines=[LogLine.from_json(item) for item in data["lines"]],
            truncated=data["truncated"],
        )


@dataclass(frozen=True, kw_only=True)
class ProviderReport:
    """What the provider says about the slot."""

    last_lines: list[str]
    """The last lines of the output, oldest first, at most 20 of a bot."""
    message: str | None
    """The last error of the provider, or its description of the slot, which only operators see."""
    status: ProviderState | None
    """`null` if there is no slot, or if the bot has ended."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProviderReport:
        return cls(
            last_lines=list(data["last_lines"]),
            message=data.get("message"),
            status=data.get("status"),
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the life of a bot or a slot."""

    at: datetime
    """When the step began."""
    median_ms: int | None
    """The median of the same step of the last bots of the pool that have ended; `null` if there is none."""
    took_ms: int | None
    """How long the step took; `null` if it is not over, or took no time."""
    what: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        return cls(
            at=parse_time(data["at"]),
            median_ms=data.get("median_ms"),
            took_ms=data.get("took_ms"),
            what=data["what"],
        )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a bot or a slot is where it is."""

    advice: str | None
    """What a person can do; `null` if nothing needs to be done."""
    provider: ProviderReport
    since: datetime
    status: str
    """The status of the bot or the slot; `gone` for a slot that no longer exists."""
    steps: list[Step]
    """What happened so far, oldest first; of a bot the last 200 steps."""
    summary: str
    """The whole story in one or two sentences."""
    until: datetime | None
    """When the wait ends at the latest, and the server acts; `null` if the wait has no limit."""
    waiting_for: str | None
    """What it waits for; `null` after the end."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Explanation:
        return cls(
            advice=data.get("advice"),
            provider=ProviderReport.from_json(data["provider"]),
            since=parse_time(data["since"]),
            status=data["status"],
            steps=[Step.from_json(item) for item in data["steps"]],
            summary=data["summary"],
            until=None if data.get("until") is None else parse_time(data["until"]),
            waiting_for=data.get("waiting_for"),
        )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How much of its limit a user uses."""

    bots: list[Bot]
    """A page of the bots that have not ended, newest first."""
    by_status: dict[str, int]
    """How many bots of the user have each status. For `completed` and `failed`: how many have ended so since
    the user was created.
    """
    max_concurrent_bots: int
    """The limit: how many bots the user may run at once."""
    next_cursor: str | None
    """Send it as `cursor`, here or to `GET /bots/active`, to get more bots; `null` on the last page."""
    running: int
    """How many bots count against the limit. Bots that are `stopping` do not count."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        return cls(
            bots=[Bot.from_json(item) for item in data["bots"]],
            by_status=data["by_status"],
            max_concurrent_bots=data["max_concurrent_bots"],
            next_cursor=data.get("next_cursor"),
            running=data["running"],
        )


class Requirements(TypedDict, total=False):
    """The requirements of a bot for its slot. A slot must meet all of them."""

    allowed_instance_types: str
    """Patterns separated by spaces; the instance type must match one of them. `*` matches any text. Default
    `c* m* r*`; a slot whose instance type is unknown then fits too.
    """
    cpu: int
    """The smallest number of processors."""
    mem: int
    """The smallest amount of memory, in MiB."""
    resource_class: str
    """The resource class of the slot, for example `large`. Default: any."""
    usage_class: UsageClass
    """The usage class of the slot. Default `on-demand`."""
