// Eight tabs of one browser share one stream. When the tab that reads it closes, exactly one other tab takes over.

import { assert, reach, scenario, signIn, until } from "./browser.js";

await scenario(async ({ page, newPage, context, settings }) => {
  /** The open streams, each with the tab that has it. */
  const streams = new Map();
  context.on("request", (request) => {
    if (new URL(request.url()).pathname === "/admin/live") streams.set(request, request.frame().page());
  });
  for (const event of ["requestfinished", "requestfailed"]) context.on(event, (request) => streams.delete(request));
  context.on("page", (tab) => tab.on("close", () => {
    for (const [request, of] of streams) if (of === tab) streams.delete(request);
  }));
  page.on("close", () => {
    for (const [request, of] of streams) if (of === page) streams.delete(request);
  });

  await signIn(page, settings.url, settings.admin_token);
  const tabs = [page];
  while (tabs.length < 8) {
    const tab = await newPage();
    await tab.goto(settings.url);
    await tab.getByText("Connected", { exact: true }).waitFor();
    tabs.push(tab);
  }
  assert(streams.size === 1, `eight tabs have ${streams.size} streams`);
  for (const tab of tabs) await tab.goto(`${settings.url}/#/bots`);
  await reach("a bot is to be started");
  for (const tab of tabs) await tab.getByRole("link", { name: /abc-defg-aaa/ }).first().waitFor();

  const [leader] = streams.values();
  await leader.close();
  const rest = tabs.filter((tab) => tab !== leader);
  await until("another tab reads the stream", async () => streams.size === 1);
  await reach("another bot is to be started");
  for (const tab of rest) await tab.getByRole("link", { name: /abc-defg-baa/ }).first().waitFor();
  assert(streams.size === 1, `seven tabs have ${streams.size} streams`);
});
