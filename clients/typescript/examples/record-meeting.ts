// Sends a bot into a meeting, prints what is said, and makes the bot leave when you press Ctrl-C.
//
// GREENROOM_SERVER=http://127.0.0.1:7700 GREENROOM_TOKEN=grk_… node record-meeting.js https://meet.google.com/abc-defg-hij

import { type Bot, DuplicateBotError, Greenroom } from "greenroom";

declare const process: { argv: string[]; exitCode: number; once(signal: string, listener: () => void): void };

const greenroom = new Greenroom();

async function start(meeting_url: string): Promise<Bot> {
  try {
    return await greenroom.bots.start({ meeting_url, bot_display_name: "Minutes", metadata: { example: "record-meeting" } });
  } catch (error) {
    if (error instanceof DuplicateBotError) return greenroom.bots.get(error.botId);
    throw error;
  }
}

const bot = await start(process.argv[2] ?? "");
process.once("SIGINT", () => void greenroom.bots.stop(bot.id));
for await (const segment of greenroom.bots.followTranscript(bot.id)) {
  console.log(`${segment.speaker ?? "somebody"}: ${segment.text}`);
}
const ended = await greenroom.bots.wait(bot.id);
console.error(`The bot ${ended.status}: ${ended.reason}`);
process.exitCode = ended.status === "completed" ? 0 : 3;
