"""What the server refuses becomes an error that says why."""

from harness import passed, raised, settings

from greenroom import (
    ConflictError,
    DuplicateBotError,
    Greenroom,
    InvalidRequestError,
    LimitReachedError,
    NotFoundError,
    ServerUnreachableError,
    UnauthorizedError,
)

url, key = settings["url"], settings["api_key"]
with Greenroom(url, key) as greenroom:
    bot = greenroom.bots.start(settings["link"], config={"demo_ms": 3_600_000}, idempotency_key="one")
    assert greenroom.bots.start(settings["link"], config={"demo_ms": 3_600_000}, idempotency_key="one").id == bot.id
    mismatch = raised(InvalidRequestError, lambda: greenroom.bots.start(settings["other_link"], idempotency_key="one"))
    assert (mismatch.status, mismatch.code) == (422, "idempotency_mismatch"), mismatch

    duplicate = raised(DuplicateBotError, lambda: greenroom.bots.start(settings["link"]))
    assert (duplicate.status, duplicate.code, duplicate.bot_id) == (409, "duplicate_bot", bot.id), duplicate
    assert duplicate.request_id and duplicate.request_id in str(duplicate) and duplicate.detail in str(duplicate)

    # The user may have one bot.
    limit = raised(LimitReachedError, lambda: greenroom.bots.start(settings["other_link"], max_retries=0))
    assert (limit.status, limit.running, limit.max_concurrent_bots) == (429, 1, 1), limit
    assert limit.retry_after is not None and limit.retry_after > 0

    invalid = raised(InvalidRequestError, lambda: greenroom.bots.start("https://example.com/no-meeting"))
    assert invalid.code == "invalid" and "meeting_url" in invalid.detail, invalid
    missing = raised(NotFoundError, lambda: greenroom.bots.get("00000000-0000-7000-8000-000000000000"))
    assert (missing.status, missing.code) == (404, "not_found"), missing
    raised(NotFoundError, lambda: next(greenroom.events(bot_id="00000000-0000-7000-8000-000000000000")))

    greenroom.bots.stop(bot.id)
    greenroom.bots.wait(bot.id)
    ended = raised(ConflictError, lambda: greenroom.bots.configure(bot.id, {}))
    assert ended.code == "bot_ended", ended

with Greenroom(url, "grk_wrong") as stranger:
    assert raised(UnauthorizedError, lambda: stranger.bots.get(bot.id)).code == "unauthorized"
    assert raised(UnauthorizedError, lambda: next(stranger.events())).status == 401

with Greenroom("http://127.0.0.1:1", key, max_retries=1) as nowhere:
    raised(ServerUnreachableError, lambda: nowhere.bots.get(bot.id))
    raised(ServerUnreachableError, lambda: next(nowhere.events(give_up_after=0)))
passed()
