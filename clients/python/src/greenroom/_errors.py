"""What the client raises. `ApiError` and its subclasses are answers of the server; the others are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .models import Bot


class GreenroomError(Exception):
    """Everything that this package raises."""


class ServerUnreachableError(GreenroomError):
    """No answer came: the connection failed, broke, or was silent for too long. The cause is `__cause__`."""


class UnexpectedAnswerError(GreenroomError):
    """The answer is not one of Greenroom. Perhaps the address is that of another server."""


class WaitTimeoutError(GreenroomError):
    """The bot was not there in time. `bot` is the bot as it was then."""

    def __init__(self, bot: Bot, until: str) -> None:
        super().__init__(f"the bot {bot.id} is {bot.status}; it was not {until} in time")
        self.bot = bot


class BotEndedError(GreenroomError):
    """The bot ended before it was active. `bot` has its `reason`, `fault` and `error`."""

    def __init__(self, bot: Bot) -> None:
        because = ": ".join(text for text in (bot.reason, bot.error) if text)
        super().__init__(f"the bot {bot.id} {bot.status} before it was active ({because})")
        self.bot = bot


class ApiError(GreenroomError):
    """The server refused the request, or failed. Programs check `code`, people read `detail`.

    `request_id` identifies the request in the log of the server, `problem` is the whole document.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        request_id: str | None,
        problem: Mapping[str, Any],
        retry_after: float | None,
    ) -> None:
        suffix = f" (request {request_id})" if request_id else ""
        super().__init__(f"{status} {code}: {detail}{suffix}")
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.problem = problem
        self.retry_after = retry_after


class InvalidRequestError(ApiError):
    """400, 413, 415 or 422: the request is not valid, and `detail` names the field."""


class UnauthorizedError(ApiError):
    """401 or 403: the key is missing, wrong, or may not do this."""


class NotFoundError(ApiError):
    """404: there is no such thing, or it belongs to another user."""


class ConflictError(ApiError):
    """409: the state of the bot does not allow the request."""


class DuplicateBotError(ConflictError):
    """409 `duplicate_bot`: another bot of the user attends this meeting."""

    @property
    def bot_id(self) -> str:
        """The other bot."""
        return str(self.problem.get("bot_id", ""))


class GoneError(ApiError):
    """410 `gone`: the server no longer has the events after the last id.

    Read the current state with `bots.list`, and follow the events again without `last_event_id`.
    """


class LimitReachedError(ApiError):
    """429 `limit_reached`: the user has reached its limit of bots."""

    @property
    def running(self) -> int | None:
        """How many bots count against the limit."""
        return self.problem.get("running")

    @property
    def max_concurrent_bots(self) -> int | None:
        """The limit."""
        return self.problem.get("max_concurrent_bots")


class ServerError(ApiError):
    """5xx: the fault is in the server; its log has the cause under `request_id`."""


class UnavailableError(ServerError):
    """503: the server has too much to do, is stopping, or its database does not answer."""


BY_CODE: dict[str, type[ApiError]] = {"duplicate_bot": DuplicateBotError, "limit_reached": LimitReachedError}
BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: UnauthorizedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    503: UnavailableError,
}


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error that an answer stands for. A proxy in between may answer with something else than a problem."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    code = str(problem.get("code") or f"http_{status}")
    detail = str(problem.get("detail") or body[:200].decode("utf-8", "replace").strip() or "no explanation")
    request_id = problem.get("request_id") or headers.get("x-request-id")
    kind = BY_CODE.get(code) or BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    return kind(status, code, detail, request_id, problem, _seconds(headers.get("retry-after")))


def _seconds(header: str | None) -> float | None:
    """`Retry-After` in seconds. Greenroom sends no dates, and a proxy that does gets the usual pause."""
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None
