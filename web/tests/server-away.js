// The server goes away and comes back. The page says so, keeps what it showed, and catches up by itself.

import { reach, scenario, signIn } from "./browser.js";

await scenario(async ({ page, settings }) => {
  await signIn(page, settings.url, settings.admin_token);
  await page.getByText("Connected", { exact: true }).waitFor();
  await page.goto(`${settings.url}/#/bots`);
  await page.getByRole("link", { name: /abc-defg-aaa/ }).first().waitFor();
  await reach("the server is to be killed");
  await page.getByText("Not connected", { exact: true }).waitFor();
  await page.getByText(/Retrying/).waitFor();
  await page.getByRole("link", { name: /abc-defg-aaa/ }).first().waitFor();
  await reach("the server is to come back");
  await page.getByText("Connected", { exact: true }).waitFor();
  await page.getByRole("link", { name: /abc-defg-baa/ }).first().waitFor();
}, { allowed: [/ERR_CONNECTION/, /Failed to load resource/, /Failed to fetch/, /network error/i, /ERR_INCOMPLETE/] });
