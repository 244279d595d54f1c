"""Which failures are tried again, and after which pause."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ._errors import ApiError, ServerUnreachableError

RETRIED = frozenset({408, 429, 502, 503, 504})
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 8.0
LONGEST_RETRY_AFTER = 60.0


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is tried again. Every request of this client can be repeated safely."""

    max_retries: int

    def pause(self, error: ApiError | ServerUnreachableError, retries: int) -> float | None:
        """How many seconds to wait before the next attempt; `None` if the error is final."""
        if retries >= self.max_retries:
            return None
        if isinstance(error, ApiError):
            if error.status not in RETRIED:
                return None
            if error.retry_after is not None:
                return None if error.retry_after > LONGEST_RETRY_AFTER else error.retry_after
        return backoff(retries)


def backoff(failures: int, first: float = FIRST_PAUSE) -> float:
    """Twice as long after each failure, and never the same for two clients."""
    return min(LONGEST_PAUSE, first * 2.0 ** min(failures, 16)) * random.uniform(0.5, 1.0)
