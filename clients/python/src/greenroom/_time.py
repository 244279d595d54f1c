"""Times of the API: RFC 3339 in UTC, with 0 to 9 digits of a second."""

from __future__ import annotations

import re
from datetime import datetime, timezone

TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?[Zz]")


def parse_time(text: str) -> datetime:
    """`datetime.fromisoformat` of Python 3.10 knows neither the `Z` nor other than 3 or 6 digits."""
    match = TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time of the API: {text!r}")
    second, fraction = match.groups()
    microseconds = (fraction or "")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{second.upper()}.{microseconds}").replace(tzinfo=timezone.utc)
