"""SKELETON: Google Meet with Playwright. No test runs this file, because no test may reach Google.

It shows where each step of a real bot belongs. Before you use it:

- `pip install playwright && playwright install chromium`
- Check every selector below against the page of today. Google changes them without notice.
- Sign in once by hand into the profile of PROFILE, or join as a guest, where the host allows guests.
- Tell the participants that a bot listens. In many countries the law asks for it.
"""
import asyncio
import os
import time

from playwright.async_api import TimeoutError as TooLate, async_playwright

from meeting import Ended, Meeting, NotAdmitted

# Everything that is special to the page of Google Meet is here. Labels are those of the English page.
NAME = 'input[aria-label="Your name"]'
JOIN = 'button:has-text("Ask to join"), button:has-text("Join now")'
LOBBY = 'text=/asking to be let in|asking to join/i'
REFUSED = 'text=/denied your request|can\'t join this/i'
INSIDE = 'button[aria-label*="Leave call"]'
REMOVED = 'text=/removed from the meeting|call ended/i'
CAPTIONS_ON = 'button[aria-label*="Turn on captions"]'
CAPTION = '[aria-label="Captions"] > div'  # one speaker with the text so far
ADMISSION_SECONDS = 9 * 60  # below `sweeper.no_join`, so that the bot says why it failed


class GoogleMeet(Meeting):
    async def open(self):
        self.playwright = await async_playwright().start()
        self.context = await self.playwright.chromium.launch_persistent_context(
            os.environ.get("PROFILE", "profile"),  # a relative folder is new for each bot
            headless=False,  # Meet refuses some headless browsers: run it under Xvfb
            args=["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", "--lang=en-US"],
        )
        self.page = self.context.pages[0]

    async def join(self, url, name):
        self.begun = time.monotonic()
        await self.page.goto(url, wait_until="domcontentloaded")
        if await self.page.locator(NAME).count():  # a guest
            await self.page.fill(NAME, name)
        await self.page.locator(JOIN).first.click()
        deadline, in_lobby = time.monotonic() + ADMISSION_SECONDS, False
        while not await self.page.locator(INSIDE).count():
            if await self.page.locator(REFUSED).count() or time.monotonic() > deadline:
                raise NotAdmitted("the host did not admit the bot")
            if not in_lobby and await self.page.locator(LOBBY).count():
                in_lobby = True
                yield "lobby"
            await asyncio.sleep(0.5)

    async def captions(self):
        try:
            await self.page.locator(CAPTIONS_ON).click(timeout=5000)
        except TooLate:
            pass  # They are on already.
        last = {}
        while True:
            if await self.page.locator(REMOVED).count():
                raise Ended
            for block in await self.page.locator(CAPTION).all():
                speaker, _, text = (await block.inner_text()).partition("\n")
                if text and last.get(speaker) != text:  # A real bot waits until the sentence is complete.
                    last[speaker] = text
                    at = round(time.monotonic() - self.begun, 3)
                    yield {"start_time": at, "end_time": at, "text": text, "speaker": speaker}
            await asyncio.sleep(1)

    async def leave(self):
        if await self.page.locator(INSIDE).count():
            await self.page.locator(INSIDE).click()

    async def close(self):
        if hasattr(self, "context"):
            await self.context.close()
        if hasattr(self, "playwright"):
            await self.playwright.stop()
