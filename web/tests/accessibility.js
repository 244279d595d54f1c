// axe-core finds nothing on any view, signed in and not, in both colour schemes and on a phone.

import { assert, axeSource, scenario, signIn } from "./browser.js";

await scenario(async ({ page, settings }) => {
  const check = async (view) => {
    await page.evaluate(axeSource());
    const violations = await page.evaluate(async () => {
      const { violations } = await /** @type {any} */ (window).axe.run(document);
      return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
    });
    assert(violations.length === 0, `${view}:\n${violations.join("\n")}`);
  };

  await page.goto(settings.url);
  await page.getByRole("button", { name: "Sign in" }).waitFor();
  await check("sign in");
  await signIn(page, settings.url, settings.admin_token);
  const views = ["#/", "#/bots", `#/bots/${settings.bot}`, "#/slots", `#/slots/${settings.slot}`, "#/pools",
    "#/pools/google-meet", "#/queue", "#/lobby", "#/charts", "#/keepers", "#/audit", "#/start", "#/search?q=abc"];
  for (const [colorScheme, viewport] of [["light", { width: 1440, height: 900 }], ["dark", { width: 390, height: 844 }]]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await page.setViewportSize(viewport);
    for (const view of views) {
      await page.goto(`${settings.url}/${view}`);
      await page.getByRole("main").getByRole("heading", { level: 1 }).first().waitFor();
      await page.waitForLoadState("load");
      await check(`${view} ${colorScheme}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert(wide <= 0, `${view} is ${wide} px wider than the window of ${viewport.width} px`);
    }
  }
}, { allowed: [/status of 404/] });
