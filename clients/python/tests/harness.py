"""What every scenario needs. A scenario runs against a real server, and talks with its test by lines: it says which
point it has come to, and goes on when the test answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

settings: dict[str, Any] = json.loads(os.environ.get("SCENARIO_SETTINGS", "{}"))


def reach(point: str) -> str:
    """Tells the test where the scenario is, and returns what the test answers."""
    print(f"reached: {point}", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError("the test has ended")
    return answer.rstrip("\n")


def passed() -> None:
    print("passed", flush=True)


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """The error that a call raises."""
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")
