// What a bot or a user wrote stays text: names, titles, reasons, transcripts, log lines.

import { assert, scenario, signIn } from "./browser.js";

await scenario(async ({ page, settings }) => {
  await page.addInitScript(() => {
    Object.assign(window, { attacked: [] });
  });
  await signIn(page, settings.url, settings.admin_token);
  const views = ["#/", "#/bots", `#/bots/${settings.bot}`, "#/lobby", "#/audit", `#/search?q=${encodeURIComponent(settings.text)}`];
  for (const view of views) {
    await page.goto(`${settings.url}/${view}`);
    await page.getByRole("main").getByRole("heading", { level: 1 }).first().waitFor();
  }
  await page.goto(`${settings.url}/#/bots/${settings.bot}`);
  for (const place of ["name", "said", "printed", "reason"]) {
    await page.getByRole("main").getByText(`${settings.text}-${place}`).locator("visible=true").first().waitFor();
  }
  const images = await page.evaluate(() => [...document.images].map(({ src }) => src).filter((src) => src.includes("attack")));
  assert(images.length === 0, `an image was made of text: ${images}`);
  assert((await page.evaluate(() => /** @type {any} */ (window).attacked.length)) === 0, "text was run as code");
}, { allowed: [/status of 404/] });
