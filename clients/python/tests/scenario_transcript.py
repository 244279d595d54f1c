"""The transcript of a bot, while the bot talks and after its end, with both clients."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from harness import passed, settings

from greenroom import AsyncGreenroom, BotEndedError, Greenroom

T = TypeVar("T")

with Greenroom(settings["url"], settings["api_key"]) as greenroom:
    bot = greenroom.bots.start(settings["link"], config={"demo_ms": 1500})
    live = list(greenroom.bots.follow_transcript(bot.id, poll_interval=0.2))
    assert greenroom.bots.get(bot.id).status == "completed"
    whole = list(greenroom.bots.transcript(bot.id))
    assert len(live) > 1 and sorted(live, key=lambda segment: segment.start_time) == whole, (live, whole)
    assert whole[0].speaker == "Demo bot" and whole[0].end_time > whole[0].start_time


async def again() -> None:
    async with AsyncGreenroom(settings["url"], settings["api_key"]) as greenroom:
        bot = await greenroom.bots.start(settings["link"], config={"demo_ms": 1500})
        followed = greenroom.bots.follow(bot.id)
        segments, statuses = await asyncio.gather(
            collect(greenroom.bots.follow_transcript(bot.id, poll_interval=0.2)),
            collect(event.to async for event in followed if event.to is not None),
        )
        assert [segment.text for segment in segments] == [segment.text for segment in whole]
        assert "active" in statuses and statuses[-1] == "completed", statuses
        assert [bot.id async for bot in greenroom.bots.list()][0] == bot.id
        assert (await greenroom.bots.wait(bot.id)).reason == "finished"
        try:
            await greenroom.bots.wait(bot.id, "active")
        except BotEndedError as error:
            assert error.bot.status == "completed"
        else:
            raise AssertionError("the bot has ended")
        async with greenroom.events(bot_id=bot.id, last_event_id=0) as stream:
            assert (await anext(stream)).kind == "created"


async def collect(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


asyncio.run(again())
passed()
