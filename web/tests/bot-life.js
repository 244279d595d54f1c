// An operator starts a bot by a link, sees it move without touching the page, and stops it. Another tab sees the same.

import { assert, scenario, signIn } from "./browser.js";

await scenario(async ({ page, newPage, settings }) => {
  await signIn(page, settings.url, settings.admin_token);
  const other = await newPage();
  await other.goto(`${settings.url}/#/bots`);
  await other.getByRole("navigation", { name: "Views" }).waitFor();

  await page.getByRole("button", { name: "Start a bot" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Meeting link").fill("https://example.com/no-meeting");
  await dialog.getByRole("button", { name: "Start the bot" }).click();
  await dialog.getByText(/meeting_url/).first().waitFor();
  await dialog.getByLabel("Meeting link").fill("https://meet.google.com/abc-defg-hij");
  await dialog.getByRole("button", { name: "Start the bot" }).click();

  await page.waitForURL(/#\/bots\/[0-9a-f-]{36}$/);
  const id = page.url().split("/").at(-1);
  const head = page.getByRole("main");
  await head.getByText("Active", { exact: true }).first().waitFor();
  await head.getByText("The minutes of the meeting").waitFor();
  await other.getByRole("link", { name: /abc-defg-hij/ }).first().waitFor();

  await head.getByRole("button", { name: "Stop", exact: true }).click();
  await head.getByText("Completed", { exact: true }).first().waitFor();
  assert((await head.getByRole("button", { name: "Stop", exact: true }).count()) === 0, "an ended bot can be stopped");

  await page.goto(`${settings.url}/#/audit`);
  await page.getByRole("main").locator(`a[href*="${id}"]`).first().waitFor();
}, { allowed: [/status of 422/, /status of 404/] });
