#!/usr/bin/env python3
"""A meeting bot for greenroom-agent: what it prints, which commands it obeys, how it ends.

It needs Python 3.9 or newer, and no packages for the pretend meeting. MEETING=google_meet joins a real Google Meet, with
Playwright: see google_meet.py, which is a skeleton.

A bot is its meeting and three duties:

1. Report, as one JSON object per line on standard output: ready, status, joined, transcript, exited.
2. Obey, from one JSON object per line on standard input: assignment, reconfigure, leave.
3. End: at leave, at SIGTERM, or when the meeting ends; with exit code 0 unless it failed.
"""
import asyncio
import json
import os
import signal
import sys

from meeting import Ended, NotAdmitted, PretendMeeting


def emit(event, **fields):
    """One line for the agent. Everything else that is printed is the bot's log."""
    print(json.dumps({"event": event, **fields}), flush=True)


def log(message):
    print(message, file=sys.stderr, flush=True)


def make_meeting():
    kind = os.environ.get("MEETING", "pretend")
    if kind == "google_meet":
        from google_meet import GoogleMeet  # needs Playwright
        return GoogleMeet()
    return PretendMeeting()


class Bot:
    def __init__(self, meeting):
        self.meeting = meeting
        self.assigned = asyncio.get_running_loop().create_future()  # the bot's data, once there is a meeting
        self.leaving = asyncio.Event()

    def obey(self, line):
        """One command of the agent."""
        try:
            command = json.loads(line)
            action, payload = command["action"], command.get("payload") or {}
        except (ValueError, TypeError, KeyError):
            return log("command ignored: it is not a JSON object with an action")
        if action == "assignment" and not self.assigned.done():
            self.assigned.set_result(payload)
        elif action == "reconfigure":
            self.meeting.configure(payload)
        elif action == "leave":
            self.leaving.set()

    async def read_commands(self):
        reader = asyncio.StreamReader(limit=2**20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.obey(line)
        self.leaving.set()  # The agent is gone.

    async def attend(self):
        """From the open browser to the end of the meeting."""
        await self.meeting.open()
        if not os.environ.get("BOT_DATA"):
            emit("ready")  # With prewarm, the browser is open before there is a meeting.
        data = await asyncio.shield(self.assigned)  # A cancelled wait must not look like a meeting.
        self.meeting.configure(data.get("config") or {})
        async for state in self.meeting.join(data["meeting_url"], data.get("bot_display_name") or "Notes"):
            if state == "lobby":
                emit("status", status="awaiting_admission", reason="in the lobby")
        emit("joined")
        async for segment in self.meeting.captions():
            emit("transcript", segments=[segment])

    async def run(self):
        """Returns the reason of the end, and an error if the bot failed."""
        commands = asyncio.create_task(self.read_commands())
        attending = asyncio.create_task(self.attend())
        leaving = asyncio.create_task(self.leaving.wait())
        try:
            await asyncio.wait([attending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not attending.done():
                attending.cancel()
                await asyncio.wait([attending])
                await self.meeting.leave()
                return "left", None
            attending.result()
            return "meeting_ended", None
        except Ended:
            return "meeting_ended", None
        except NotAdmitted as error:
            return "not_admitted", str(error)
        except Exception as error:  # The agent reports it: nobody reads a stack trace at 3 in the morning.
            return "crashed", f"{type(error).__name__}: {error}"
        finally:
            for task in (commands, leaving):
                task.cancel()
            await self.meeting.close()


async def main():
    bot = Bot(make_meeting())
    data = os.environ.get("BOT_DATA")
    if data:
        bot.assigned.set_result(json.loads(data))
    elif os.environ.get("GREENROOM_PREWARM") != "1":
        sys.exit("python-bot: set BOT_DATA to a bot's data, or GREENROOM_PREWARM=1")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, bot.leaving.set)
    reason, error = await bot.run()
    if bot.assigned.done():  # A bot without a meeting has no end to report.
        emit("exited", reason=reason, error=error)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
