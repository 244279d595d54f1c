"""What a bot needs from a meeting, and a pretend one that runs everywhere."""
import asyncio
import time
from typing import AsyncIterator


class NotAdmitted(Exception):
    """The host refused the bot, or removed it."""


class Ended(Exception):
    """The meeting is over."""


class Meeting:
    """One bot in one meeting. Each method but `configure` may be cancelled while it waits."""

    async def open(self) -> None:
        """Prepares everything that needs no meeting: opens the browser, signs in."""

    async def join(self, url: str, name: str) -> AsyncIterator[str]:
        """Joins. Yields `lobby` while the host has to admit the bot. Returns when the bot is in the meeting."""
        raise NotImplementedError
        yield

    async def captions(self) -> AsyncIterator[dict]:
        """Yields `{start_time, end_time, text, speaker}` until the meeting ends."""
        raise NotImplementedError
        yield

    def configure(self, config: dict) -> None:
        """Takes over the bot's configuration, also during the meeting."""

    async def leave(self) -> None:
        """Leaves the meeting, if the bot is in it."""

    async def close(self) -> None:
        """Gives everything back: closes the browser."""


class PretendMeeting(Meeting):
    """A meeting without a network. `config` has `lobby_ms` (0), `lines` (3; 0: until leave) and `interval_ms` (500)."""

    def __init__(self):
        self.config = {}

    def configure(self, config):
        self.config = config

    def setting(self, name, default):
        value = self.config.get(name)
        return value if isinstance(value, (int, float)) and value >= 0 else default

    async def join(self, url, name):
        self.name, self.begun = name, time.monotonic()
        if self.config.get("refuse") is True:
            raise NotAdmitted("the host refused the bot")
        if lobby := self.setting("lobby_ms", 0):
            yield "lobby"
            await asyncio.sleep(lobby / 1000)

    async def captions(self):
        said = 0
        while (lines := self.setting("lines", 3)) == 0 or said < lines:
            said += 1
            at = round(time.monotonic() - self.begun, 3)
            yield {"start_time": at, "end_time": at, "text": f"Line {said} of a pretend meeting.", "speaker": self.name}
            await asyncio.sleep(self.setting("interval_ms", 500) / 1000)
