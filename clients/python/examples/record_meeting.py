"""Sends a bot into a meeting, prints what is said, and makes the bot leave when you press Ctrl-C.

GREENROOM_SERVER=http://127.0.0.1:7700 GREENROOM_TOKEN=grk_… python record_meeting.py https://meet.google.com/abc-defg-hij
"""

from __future__ import annotations

import sys

from greenroom import BotEndedError, DuplicateBotError, Greenroom


def main(link: str) -> int:
    with Greenroom() as greenroom:
        try:
            bot = greenroom.bots.start(link, bot_display_name="Minutes", metadata={"example": "record_meeting"})
        except DuplicateBotError as error:
            bot = greenroom.bots.get(error.bot_id)
        try:
            greenroom.bots.wait(bot.id, "active")
            for segment in greenroom.bots.follow_transcript(bot.id):
                print(f"{segment.speaker or 'somebody'}: {segment.text}", flush=True)
        except BotEndedError as error:
            print(error, file=sys.stderr)
            return 3
        except KeyboardInterrupt:
            greenroom.bots.stop(bot.id)
        bot = greenroom.bots.wait(bot.id)
        print(f"The bot {bot.status}: {bot.reason}", file=sys.stderr)
        return 0 if bot.status == "completed" else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
