// A page of another site tries to use the session of a signed-in operator. Nothing happens to the bot.

import { createServer } from "node:http";
import { assert, scenario, signIn } from "./browser.js";

await scenario(async ({ page, newPage, settings }) => {
  await signIn(page, settings.url, settings.admin_token);
  const attack = createServer((_, response) => {
    response.writeHead(200, { "content-type": "text/html" });
    response.end("<!doctype html><title>Another site</title>");
  });
  await new Promise((resolve) => attack.listen(0, "127.0.0.1", () => resolve(undefined)));
  const address = /** @type {import("node:net").AddressInfo} */ (attack.address());
  // Another host name is another site, also on the same machine.
  const site = `http://localhost:${address.port}`;
  settings.urls.push(site);
  const hostile = await newPage();
  await hostile.goto(site);
  await hostile.evaluate(async ({ url, bot }) => {
    const body = JSON.stringify({ action: "stop", bots: [bot] });
    const types = ["text/plain", "application/json"];
    for (const type of types) {
      const headers = { "content-type": type };
      await fetch(`${url}/admin/bots/bulk`, { method: "POST", mode: "no-cors", credentials: "include", body, headers }).catch(() => {});
      await fetch(`${url}/admin/bots/bulk`, { method: "POST", credentials: "include", body, headers }).catch(() => {});
    }
    await fetch(`${url}/admin/bots/${bot}`, { method: "DELETE", credentials: "include" }).catch(() => {});
    // A form can be sent to another site, and follows to its answer.
    const form = Object.assign(document.createElement("form"), { method: "post", action: `${url}/admin/bots/bulk`, enctype: "text/plain" });
    form.append(Object.assign(document.createElement("input"), { name: body, value: "" }));
    document.body.append(form);
    form.submit();
  }, { url: settings.url, bot: settings.bot });
  await hostile.waitForURL(`${settings.url}/**`);
  const frame = await newPage();
  await frame.goto(site);
  await frame.evaluate((url) => {
    const frame = document.createElement("iframe");
    frame.src = `${url}/`;
    document.body.append(frame);
    return new Promise((resolve) => frame.addEventListener("load", resolve));
  }, settings.url);
  const framed = frame.frames().find((one) => one !== frame.mainFrame());
  assert(!(await framed?.content())?.includes("Greenroom"), "another site can show the dashboard in a frame");

  const status = await page.evaluate(async (bot) => (await (await fetch(`/admin/bots/${bot}`)).json()).bot.status, settings.bot);
  assert(status === "active", `the bot is ${status}`);
  attack.close();
}, { allowed: [/status of 40[0-9]/, /CORS/, /Failed to load resource/, /frame-ancestors/, /Refused to/i, /Framing/i] });
