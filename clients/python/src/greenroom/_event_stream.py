"""A stream of events, apart from how its bytes are read: server-sent events, and where to resume after a break."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from time import monotonic

from ._errors import ApiError, GreenroomError, ServerUnreachableError, UnexpectedAnswerError
from ._retries import RETRIED, backoff
from .models import StreamedEvent


@dataclass(frozen=True)
class Message:
    """One server-sent event. `id` is `None` if the message has none."""

    id: str | None
    event: str
    data: str | None
    retry: float | None


class MessageParser:
    """Makes messages of bytes, which may be cut anywhere. Lines end with LF, CRLF or CR."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._begins = True
        self._clear()

    def _clear(self) -> None:
        self._id: str | None = None
        self._event = "message"
        self._data: list[str] = []
        self._retry: float | None = None
        self._is_empty = True

    def feed(self, chunk: bytes) -> list[Message]:
        text = self._decoder.decode(chunk)
        if self._begins and text:
            self._begins = False
            text = text.removeprefix("\ufeff")
        text = self._rest + text
        # A CR at the end may be the first half of a CRLF.
        held = "\r" if text.endswith("\r") else ""
        lines = text.removesuffix(held).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + held
        return [message for line in lines if (message := self._line(line))]

    def _line(self, line: str) -> Message | None:
        if not line:
            if self._is_empty:
                return None
            data = "\n".join(self._data) if self._data else None
            message = Message(self._id, self._event, data, self._retry)
            self._clear()
            return message
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "event":
            self._event = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self._retry = int(value) / 1000
        else:
            return None
        self._is_empty = False
        return None


class StreamPosition:
    """Where a stream is: what it read last, and how long it has been without an answer."""

    def __init__(self, bot_id: str | None, last_event_id: int | None, give_up_after: float | None) -> None:
        self.bot_id = bot_id
        self.last_event_id = last_event_id
        self.is_closed = False
        self._give_up_after = give_up_after
        self._failures = 0
        self._silent_since = monotonic()
        self._first_pause = 1.0

    def query(self) -> dict[str, str]:
        return {"bot_id": self.bot_id} if self.bot_id is not None else {}

    def headers(self) -> dict[str, str]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self.last_event_id is not None:
            headers["Last-Event-ID"] = str(self.last_event_id)
        return headers

    def read(self, message: Message) -> StreamedEvent | None:
        """The event of a message; `None` for the first message, which has only the position."""
        self._failures = 0
        self._silent_since = monotonic()
        if message.retry is not None:
            self._first_pause = message.retry
        try:
            position = int(message.id) if message.id else None
            event = StreamedEvent.from_json(json.loads(message.data)) if message.data is not None else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnexpectedAnswerError("GET /events: the message is not one of Greenroom") from error
        if position is not None:
            self.last_event_id = position
        return event

    def heard(self) -> None:
        """Something came, if only a comment: the server is there."""
        self._silent_since = monotonic()

    def pause(self, error: GreenroomError | None) -> float:
        """How long to wait before the next connection. Raises the error if none can help. `None`: the stream ended."""
        if isinstance(error, ApiError) and error.status not in RETRIED and error.status < 500:
            raise error
        silent = monotonic() - self._silent_since
        if self._give_up_after is not None and silent > self._give_up_after:
            message = f"the stream of events ended, and did not continue for {silent:.0f} s"
            raise error or ServerUnreachableError(message)
        self._failures += 1
        if isinstance(error, ApiError) and error.retry_after is not None:
            return max(error.retry_after, backoff(self._failures - 1, self._first_pause))
        return backoff(self._failures - 1, self._first_pause)
