// A person signs in with the admin token, and another with an API key; each sees what the token may see.

import { assert, scenario, signIn } from "./browser.js";

await scenario(async ({ page, context, settings }) => {
  await page.goto(settings.url);
  await page.getByLabel("Admin token or API key").fill("a-wrong-token");
  await page.keyboard.press("Enter");
  await page.getByText("neither the admin token nor an API key").waitFor();
  assert((await page.getByRole("navigation", { name: "Views" }).count()) === 0, "a wrong token opens the page");

  await signIn(page, settings.url, settings.admin_token);
  const views = page.getByRole("navigation", { name: "Views" });
  await views.getByRole("link", { name: /^Pools/ }).click();
  await page.getByRole("link", { name: "google-meet" }).first().waitFor();
  const cookies = await context.cookies();
  const session = cookies.find(({ name }) => name === "greenroom_session");
  assert(session?.httpOnly && session.sameSite === "Strict", `the cookie is ${JSON.stringify(session)}`);
  const readable = await page.evaluate(() => document.cookie + JSON.stringify({ ...localStorage, ...sessionStorage }));
  assert(!readable.includes(settings.admin_token), "a script of the page can read the token");
  await views.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name: "Sign in" }).waitFor();

  await signIn(page, settings.url, settings.api_key);
  await views.getByRole("link", { name: /^Bots/ }).click();
  await page.getByRole("link", { name: settings.own_bot }).first().waitFor();
  const text = await page.getByRole("main").innerText();
  assert(!text.includes(settings.other_bot), "a user sees the bot of another user");
  for (const name of [/^Pools/, /^Slots/, /^Audit/]) {
    assert((await views.getByRole("link", { name }).count()) === 0, `a user is offered ${name}`);
  }
  await page.goto(`${settings.url}/#/bots/${settings.other_bot_id}`);
  await page.getByText("There is no bot with this id").waitFor();
}, { allowed: [/status of 401/, /status of 404/] });
