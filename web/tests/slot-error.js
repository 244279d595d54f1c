// A slot in error is what the overview shows first. The operator recovers it with one button, and it leaves the list.

import { scenario, signIn } from "./browser.js";

await scenario(async ({ page, settings }) => {
  await signIn(page, settings.url, settings.admin_token);
  const attention = page.getByRole("region", { name: "Attention" });
  await attention.getByRole("link", { name: settings.slot }).first().waitFor();
  await page.waitForFunction(() => /^\(\d+\) /.test(document.title));
  await attention.getByRole("link", { name: settings.slot }).first().click();
  await page.getByRole("heading", { name: settings.slot }).waitFor();
  await page.getByRole("main").getByText(settings.words).first().waitFor();
  await page.getByRole("button", { name: "Recover", exact: true }).click();
  await page.getByRole("main").getByText("Idle", { exact: true }).first().waitFor();
  await page.goto(`${settings.url}/#/`);
  await attention.getByRole("link", { name: settings.slot }).waitFor({ state: "detached" });
});
