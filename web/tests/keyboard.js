// From the sign-in to a stopped bot without a mouse. The focus is always visible, and never in a trap.

import { assert, scenario, until } from "./browser.js";

await scenario(async ({ page, settings }) => {
  const focused = () =>
    page.evaluate(() => {
      const element = /** @type {HTMLElement | null} */ (document.activeElement);
      const style = element ? getComputedStyle(element) : null;
      return {
        name: element?.getAttribute("aria-label") || element?.innerText?.trim() || element?.id || element?.tagName || "",
        visible: style ? style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 : false,
      };
    });
  /** Presses Tab until the element with this name has the focus. */
  const tabTo = async (name) => {
    for (let presses = 0; presses < 120; presses += 1) {
      const now = await focused();
      if (name.test(now.name)) {
        assert(now.visible, `the focus on ${now.name} cannot be seen`);
        return;
      }
      await page.keyboard.press("Tab");
    }
    throw new Error(`Tab never reaches ${name}`);
  };

  await page.goto(settings.url);
  await page.getByLabel("Admin token or API key").waitFor();
  await until("the field for the token has the focus", async () => (await focused()).name === "token");
  await page.keyboard.type(settings.admin_token);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation", { name: "Views" }).waitFor();

  await tabTo(/^Start a bot$/);
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await until("the field for the link has the focus", async () => (await focused()).name === "start-link");
  await page.keyboard.type("https://meet.google.com/abc-defg-hij");
  await page.keyboard.press("Enter");
  await page.waitForURL(/#\/bots\/[0-9a-f-]{36}$/);
  await page.getByRole("main").getByText("Active", { exact: true }).first().waitFor();
  await tabTo(/^Stop$/);
  await page.keyboard.press("Enter");
  await page.getByRole("main").getByText("Completed", { exact: true }).first().waitFor();
}, { allowed: [/status of 404/] });
