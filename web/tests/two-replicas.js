// A page at one replica shows what happens at the other one, and acts on it.

import { reach, scenario, signIn } from "./browser.js";

await scenario(async ({ page, settings }) => {
  await signIn(page, settings.url, settings.admin_token);
  await page.goto(`${settings.url}/#/bots`);
  await page.getByText("Connected", { exact: true }).waitFor();
  const bot = await reach("the other replica is to start a bot");
  await page.getByRole("link", { name: /abc-defg-aaa/ }).first().waitFor();
  await page.goto(`${settings.url}/#/bots/${bot}`);
  await page.getByRole("main").getByText("Active", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("main").getByText("Completed", { exact: true }).first().waitFor();
}, { allowed: [/status of 404/] });
