// Fills the server of `scripts/screenshots` with bots, and makes a picture of each page: on a desktop and a phone, light
// and dark.

import { join } from "node:path";
import { scenario, until } from "./browser.js";

const PEOPLE = ["Ada", "Grace", "Linus", "Margaret", "Barbara", "Edsger", "Frances", "Donald", "Radia", "Tony"];
const DESKTOP = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };

await scenario(async ({ browser, settings }) => {
  const call = async (token, method, path, body) => {
    const response = await fetch(settings.url + path, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: body && JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response.json();
  };
  const admin = (method, path, body) => call(settings.admin_token, method, path, body);

  const keys = [];
  for (const name of PEOPLE) {
    const email = `${name.toLowerCase()}@example.com`;
    keys.push((await admin("POST", "/admin/users", { email, name, max_concurrent_bots: 40 })).api_key);
  }
  await until("the hot slots wait", async () => (await admin("GET", "/admin/pools/google-meet")).pool.slots.idle >= 60);

  const letters = (number) => [0, 1, 2].map((digit) => String.fromCharCode(97 + (Math.floor(number / 26 ** digit) % 26))).join("");
  const meet = (number) => `https://meet.google.com/abc-defg-${letters(number)}`;
  const teams = (number) => `https://teams.microsoft.com/meet/${9_300_000_000_000 + number * 7919}?p=Bench${letters(number)}`;
  const ask = (number, meeting_url, scene, extra = {}) =>
    call(keys[number % keys.length], "POST", "/bots", {
      meeting_url,
      bot_display_name: `${PEOPLE[number % PEOPLE.length]}'s notes`,
      config: { scene },
      metadata: { team: ["sales", "support", "research"][number % 3] },
      ...extra,
    });
  // Bots come and go for some minutes, so that the charts have something to show.
  const until_ms = Date.now() + settings.minutes * 60_000;
  for (let number = 100; Date.now() < until_ms; number += 1) {
    const link = number % 4 === 0 ? teams(number) : meet(number);
    const { bot } = await ask(number, link, number % 9 === 0 ? "lobby" : "talk");
    // A minute has 30 bots at its begin and 8 at its end.
    await new Promise((resolve) => setTimeout(resolve, 1000 + 4000 * ((Date.now() / 60_000) % 1)));
    setTimeout(() => admin("DELETE", `/admin/bots/${bot.id}`).catch(() => {}), 20_000);
  }
  const none = async () => (await admin("GET", "/admin/bots?status=active&limit=200")).bots.length === 0;
  if (settings.minutes > 0) await until("the bots of the charts have left", none);
  // Two requests for slots that cannot start. Their bots fail, and the slots go into error.
  await ask(0, "https://zoom.us/j/98765432101", "talk");
  await ask(1, "https://zoom.us/j/98765432102", "talk");
  const bots = [];
  for (let number = 0; number < 60; number += 1) bots.push(await ask(number, meet(number), "talk"));
  for (let number = 60; number < 65; number += 1) await ask(number, meet(number), "lobby");
  await ask(65, meet(65), "help");
  for (let number = 0; number < 38; number += 1) {
    await ask(number, teams(number), "talk", { queue_timeout_ms: 600_000 });
  }
  const active = async () => (await admin("GET", "/admin/bots?status=active&limit=200")).bots.length;
  await until("most bots are in their meetings", async () => (await active()) >= 85);
  for (const bot of bots.slice(0, 6)) await admin("DELETE", `/admin/bots/${bot.bot.id}`);
  await until("a slot is in error", async () => (await admin("GET", "/admin/slots?status=error")).slots.length > 0);
  // Slots are counted once a minute, and a minute is shown when it is over.
  const isCharted = async () => (await admin("GET", "/admin/stats")).points.some(({ slots }) => slots.busy > 50);
  await until("the charts show the busy slots", isCharted, 180_000);
  const failed = (await admin("GET", "/admin/slots?status=error")).slots[0].name;

  const views = {
    overview: "#/",
    bot: `#/bots/${bots[20].bot.id}`,
    slot: `#/slots/${failed}`,
    charts: `#/charts?from=${new Date(until_ms - settings.minutes * 60_000).toISOString()}&to=${new Date().toISOString()}`,
    pools: "#/pools",
    queue: "#/queue",
  };
  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desktop", DESKTOP], ["phone", PHONE]]) {
      const context = await browser.newContext({ viewport, colorScheme, deviceScaleFactor: device === "phone" ? 2 : 1 });
      const page = await context.newPage();
      await page.goto(settings.url);
      await page.getByLabel(/token/i).fill(settings.admin_token);
      await page.keyboard.press("Enter");
      await page.getByRole("main").waitFor();
      for (const [name, hash] of Object.entries(views)) {
        await page.goto(`${settings.url}/${hash}`);
        await page.waitForLoadState("load");
        // Fonts, charts and the live state need a moment; nothing on the page says when all of them are drawn.
        await page.waitForTimeout(1500);
        await page.screenshot({ path: join(settings.images, `${name}-${device}-${colorScheme}.png`) });
        console.log(`${name}-${device}-${colorScheme}.png`);
      }
      await context.close();
    }
  }
});
