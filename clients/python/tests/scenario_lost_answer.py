"""The proxy loses the answer to the first attempt. The second one gets the same bot, and there is only one."""

from harness import passed, reach, settings

from greenroom import Greenroom, ServerUnreachableError

with Greenroom(settings["url"], settings["api_key"]) as greenroom:
    reach("the next answer is to be lost")
    bot = greenroom.bots.start(settings["link"], config={"demo_ms": 3_600_000})
    assert [bot.id for bot in greenroom.bots.list()] == [bot.id]
    reach("the next answer is to be lost")
    try:
        greenroom.bots.start(settings["link"], max_retries=0)
    except ServerUnreachableError as error:
        assert error.__cause__ is not None
    else:
        raise AssertionError("the answer was not lost")
    greenroom.bots.stop(bot.id)
passed()
