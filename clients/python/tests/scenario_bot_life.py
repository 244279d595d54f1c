"""A bot from its start to its end, with a server that is restarted while the events are followed."""

from harness import passed, reach, settings

from greenroom import Greenroom, WaitTimeoutError

with Greenroom(settings["url"], settings["api_key"]) as greenroom:
    events = greenroom.events().open()
    assert events.last_event_id is not None
    bot = greenroom.bots.start(
        settings["link"], bot_display_name="Ada", config={"demo_ms": 2000}, metadata={"call": "7"}, priority=50
    )
    assert (bot.platform, bot.bot_display_name, bot.metadata) == ("google_meet", "Ada", {"call": "7"}), bot
    bot = greenroom.bots.wait(bot.id, "active", timeout=60)
    assert bot.status == "active" and bot.sessions and bot.start_time is not None, bot
    try:
        greenroom.bots.wait(bot.id, "ended", timeout=0)
    except WaitTimeoutError as error:
        assert error.bot.id == bot.id
    else:
        raise AssertionError("the bot has not ended")
    greenroom.bots.stop(bot.id)
    assert greenroom.bots.wait(bot.id).reason == "stopped"

    # The other bot is followed while the server goes away and comes back.
    bot = greenroom.bots.start(settings["link"], config={"demo_ms": 3_600_000})
    with greenroom.events(bot_id=bot.id, last_event_id=0) as stream:
        seen = []
        for event in stream:
            seen.append(event)
            if event.to == "active":
                break
        assert stream.last_event_id == seen[-1].id
        reach("the server is to be restarted")
        greenroom.bots.configure(bot.id, {"demo_ms": 3_600_000, "language": "fr"})
        greenroom.bots.stop(bot.id)
        for event in stream:
            seen.append(event)
            if event.to == "completed":
                break
    assert [event.id for event in seen] == [event.id for event in greenroom.bots.events(bot.id)]
    assert any((event.kind, event.reason) == ("command_sent", "reconfigure") for event in seen), seen
    assert seen[-1].error is None and {event.bot_id for event in seen} == {bot.id}
    assert [event.id for event in greenroom.bots.follow(bot.id)] == [event.id for event in seen]
    # Each bot made events in the stream that began before both.
    assert next(events).kind == "created"
    events.close()

    ids = [bot.id for bot in greenroom.bots.list(platform="google_meet")]
    assert len(ids) == 2 and ids[0] == bot.id
    page = greenroom.bots.page(limit=1)
    assert [bot.id for bot in page.bots] == ids[:1] and page.next_cursor is not None
    assert [bot.id for bot in greenroom.bots.page(limit=1, cursor=page.next_cursor).bots] == ids[1:]
    assert list(greenroom.bots.active()) == [] and list(greenroom.bots.list(status="failed")) == []
    usage = greenroom.usage()
    assert (usage.running, usage.by_status["completed"]) == (0, 2), usage
    assert greenroom.bots.explain(bot.id).status == "completed"
    assert any("demo bot joins" in line.text for line in greenroom.bots.logs(bot.id, lines=10).lines)
passed()
