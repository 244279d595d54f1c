#!/usr/bin/env python3
"""A meeting bot in a real browser, for greenroom-agent. It needs Python 3 and Chromium, and nothing else.

It opens the browser and signs in. If it has its meeting in BOT_DATA, it then joins. Otherwise GREENROOM_PREWARM=1 must be
set: it prints {"event": "ready"}, and gets its meeting as a line on standard input.

    CHROMIUM        the browser; default: chromium, chromium-browser or google-chrome on PATH
    BROWSER_FLAGS   more flags for it, such as --no-sandbox in a container
    MEETING_SITE    the site of the meeting, such as http://127.0.0.1:8000; default: the bot serves meeting.html itself

page.js knows the page of the meeting, and chromium.py the browser.
"""
import base64
import json
import math
import os
import select
import signal
import sys
import time

from chromium import BrowserError, Chromium

LEAVE_SECONDS_MAX = 3
SCREENSHOT_BYTES_MAX = 512 * 1024


class End(Exception):
    """Ends the bot with this reason. With an error, the bot has failed."""

    def __init__(self, reason, error=None):
        super().__init__(reason)
        self.reason, self.error = reason, error


def emit(event, **fields):
    try:
        print(json.dumps({"event": event, **fields}), flush=True)
    except OSError:
        pass  # Nobody reads any more. Then standard input closes too, and the bot leaves.


def log(message):
    print(f"browser-bot: {message}", file=sys.stderr, flush=True)


class Bot:
    def __init__(self, data):
        self.data = data  # None until the bot has a meeting
        self.config = (data or {}).get("config") or {}
        self.screenshot_at = math.inf  # until the bot has joined
        self.leave_by = math.inf  # until the bot leaves
        # A signal becomes an input, like everything else that happens.
        self.signals, on_signal = os.pipe()
        os.set_blocking(on_signal, False)
        signal.set_wakeup_fd(on_signal)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.js")) as script:
            self.browser = Chromium(script.read(), self.on_report)

    def run(self):
        import meeting  # This takes a while, and so does the start of the browser.
        self.site = os.environ.get("MEETING_SITE") or meeting.start()
        self.browser.open_first_page(self.site + "/sign-in")
        unread = b""
        while True:
            inputs = [self.browser.fileno, self.signals] + ([0] if self.leave_by == math.inf else [])
            next_at = min(self.screenshot_at, self.leave_by)
            wait = None if next_at == math.inf else max(0, next_at - time.monotonic())
            readable = select.select(inputs, [], [], wait)[0]
            if self.browser.fileno in readable:
                self.browser.receive()
            if self.signals in readable:
                os.read(self.signals, 100)
                self.leave()
            if 0 in readable:
                read = os.read(0, 64 * 1024)
                *lines, unread = (unread + read).split(b"\n")
                for line in lines:
                    self.on_command(line)
                if not read:
                    self.leave()
            if time.monotonic() >= self.leave_by:
                raise End("left")
            if time.monotonic() >= self.screenshot_at:
                self.take_screenshot()

    def on_report(self, text):
        """page.js reports a caption, or what the page shows."""
        report = json.loads(text)
        state = report.get("state")
        if "segment" in report:
            emit("transcript", segments=[report["segment"]])
        elif state == "signed-in" and self.data:
            self.join()
        elif state == "signed-in":
            emit("ready")
        elif state == "lobby":
            emit("status", status="awaiting_admission", reason="in the lobby")
        elif state == "in":
            emit("joined")
            self.browser.call_script("configure", self.page_settings())
            self.take_screenshot()
        elif state in ("ended", "left"):
            raise End("meeting_ended" if state == "ended" else "left")
        elif state in ("refused", "signed-out"):
            raise End("not_admitted" if state == "refused" else "not_signed_in", f"the page shows: {state}")

    def on_command(self, line):
        try:
            command = json.loads(line)
            action, payload = command["action"], command.get("payload") or {}
        except (ValueError, TypeError, KeyError):
            return log("command ignored: it is not a JSON object with an action")
        if action == "assignment" and not self.data:
            self.data, self.config = payload, payload.get("config") or {}
            self.join()
        elif action == "reconfigure":
            self.config = payload
            if self.screenshot_at < math.inf:
                self.browser.call_script("configure", self.page_settings())
                self.take_screenshot()
        elif action == "leave":
            self.leave()

    def join(self):
        from urllib.parse import urlencode
        # With the settings in the page, page.js joins as soon as the page lets it.
        self.browser.add_script(f"settings = {json.dumps(self.page_settings())}")
        # A real bot opens data["meeting_url"]. The pretend meeting is on another site, and a user chooses only its
        # parameters: a browser that opens any address for a user would show the user the network of this machine.
        self.browser.open_page(f"{self.site}/meeting?{urlencode(self.setting('meeting', dict, {}))}")

    def leave(self):
        if self.screenshot_at == math.inf:
            raise End("left")  # It is not in the meeting yet.
        if self.leave_by == math.inf:
            self.leave_by = time.monotonic() + LEAVE_SECONDS_MAX
            self.browser.call_script("leave", None)

    def setting(self, name, kind, default):
        value = self.config.get(name)
        if value is not None and not isinstance(value, kind):
            log(f"config.{name} ignored: it has the wrong type")
            value = None
        return default if value is None else value

    def page_settings(self):
        name = self.setting("display_name", str, None) or self.data.get("bot_display_name") or "Notes"
        return {"display_name": name, "language": self.setting("language", str, None)}

    def take_screenshot(self, quality=70):
        def on_result(result):
            image = base64.b64decode(result["data"])
            if len(image) > SCREENSHOT_BYTES_MAX and quality > 10:
                return self.take_screenshot(quality - 20)
            path = os.path.join(self.browser.folder, "screenshot.jpg")
            with open(path + ".new", "wb") as file:
                file.write(image)
            os.rename(path + ".new", path)  # So nobody reads half a file.
            emit("screenshot", path=path)

        self.screenshot_at = time.monotonic() + max(1, self.setting("screenshot_interval_s", (int, float), 30))
        self.browser.send("Page.captureScreenshot", on_result, format="jpeg", quality=quality)


def main():
    if not os.environ.get("BOT_DATA") and os.environ.get("GREENROOM_PREWARM") != "1":
        sys.exit("browser-bot: set BOT_DATA to a bot's data, or GREENROOM_PREWARM=1")
    bot, data = None, json.loads(os.environ.get("BOT_DATA") or "null")
    try:
        bot = Bot(data)
        bot.run()
    except (BrowserError, End) as error:
        end = error if isinstance(error, End) else End(error.reason, str(error))
    finally:
        if bot:
            bot.browser.close()
    if end.error:
        log(end.error)
    if data or bot and bot.data:
        emit("exited", reason=end.reason, error=end.error)
    sys.exit(1 if end.error else 0)


if __name__ == "__main__":
    main()
