"""Client for Greenroom, the control plane that keeps meeting bots warm.

`Greenroom` is the client, and `AsyncGreenroom` the same for asyncio. In reading order: `_client`
and `_async_client` have the methods, `_calls` the requests behind them, `_retries` what is tried
again and when, `_event_stream` the state of a stream of events, `_errors` what is raised, and
`models` the types of the answers, which are generated from the OpenAPI document.
"""

from ._async_client import AsyncBots, AsyncEventStream, AsyncGreenroom
from ._client import Bots, EventStream, Greenroom
from ._errors import (
    ApiError,
    BotEndedError,
    ConflictError,
    DuplicateBotError,
    GoneError,
    GreenroomError,
    InvalidRequestError,
    LimitReachedError,
    NotFoundError,
    ServerError,
    ServerUnreachableError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)
from .models import (
    Actor,
    Bot,
    BotLog,
    BotPage,
    Event,
    EventKind,
    EventPage,
    Explanation,
    Fault,
    LogLine,
    Platform,
    ProviderReport,
    Requirements,
    Segment,
    Session,
    Status,
    Step,
    StreamedEvent,
    Transcript,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "Actor",
    "ApiError",
    "AsyncBots",
    "AsyncEventStream",
    "AsyncGreenroom",
    "Bot",
    "BotEndedError",
    "BotLog",
    "BotPage",
    "Bots",
    "ConflictError",
    "DuplicateBotError",
    "Event",
    "EventKind",
    "EventPage",
    "EventStream",
    "Explanation",
    "Fault",
    "GoneError",
    "Greenroom",
    "GreenroomError",
    "InvalidRequestError",
    "LimitReachedError",
    "LogLine",
    "NotFoundError",
    "Platform",
    "ProviderReport",
    "Requirements",
    "Segment",
    "ServerError",
    "ServerUnreachableError",
    "Session",
    "Status",
    "Step",
    "StreamedEvent",
    "Transcript",
    "UnauthorizedError",
    "UnavailableError",
    "UnexpectedAnswerError",
    "Usage",
    "WaitTimeoutError",
    "__version__",
]
