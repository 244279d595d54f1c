// Starts a real Chromium for one scenario, and fails the scenario when a page logs an error, breaks its policy or asks
// another host. A scenario talks to the Rust test that started it: `reach` prints a line and waits for the answer.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.env.TEST_NODE_PACKAGES ?? "", "package.json"));
const { chromium } = require("playwright-core");

/** How long a page may take for one step. No step takes this long, even on a busy machine. */
const PATIENCE = 60_000;

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync", "--disable-dev-shm-usage",
  "--disable-background-networking", "--disable-component-update",
  // No name can be resolved, so that a page that needs another host fails.
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
];

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Tells the Rust test that the scenario came to a point, and waits until the test goes on. Returns its answer. */
export async function reach(point) {
  console.log(`reached: ${point}`);
  const { value, done } = await input.next();
  if (done) throw new Error(`the test ended while the scenario waited at: ${point}`);
  return value;
}

export function assert(condition, message) {
  if (!condition) throw new Error(message);
}

/** Waits until a condition holds. */
export async function until(what, condition, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  while (!(await condition())) {
    assert(Date.now() < deadline, `timeout while waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Opens the dashboard and signs in with the admin token or an API key. */
export async function signIn(page, url, token) {
  await page.goto(url);
  await page.getByLabel("Admin token or API key").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Views" }).waitFor();
}

/** The calls of the pages that the OpenAPI document does not have. */
async function unknownCalls(url, calls) {
  const { paths } = await (await fetch(`${url}/openapi.json`)).json();
  const known = Object.entries(paths).flatMap(([path, item]) => {
    const pattern = path.split("/").map((part) => (part.startsWith("{") ? "[^/]+" : part.replace(/\W/g, "\\$&")));
    return Object.keys(item).map((method) => ({ method, path: new RegExp(`^${pattern.join("/")}$`) }));
  });
  return [...calls].filter((call) => {
    const [method, path] = call.split(" ");
    return !known.some((one) => one.method === method.toLowerCase() && one.path.test(path));
  });
}

/** The source of axe-core, which a scenario evaluates in its page. */
export function axeSource() {
  return require("axe-core").source;
}

/**
 * Runs a scenario with `{ browser, context, page, settings, problems, newPage }`. `settings` come from the Rust test.
 * `allowed` are patterns of console errors that the scenario causes on purpose.
 */
export async function scenario(run, { allowed = [], contextOptions = {} } = {}) {
  const settings = JSON.parse(process.env.SCENARIO_SETTINGS ?? "{}");
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
  const problems = [];
  const calls = new Set();
  const note = (text) => allowed.some((pattern) => pattern.test(text)) || problems.push(text);
  let status = 0;
  try {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...contextOptions });
    context.setDefaultTimeout(PATIENCE);
    const watch = (page) => {
      page.on("pageerror", (error) => note(`error in the page: ${error.stack ?? error}`));
      page.on("console", (message) => {
        if (message.type() === "error") note(`console: ${message.text()} ${message.location().url}`);
      });
      page.on("request", (request) => {
        const url = new URL(request.url());
        if (/^https?:$/.test(url.protocol) && !settings.urls.some((own) => request.url().startsWith(own))) {
          note(`request to another host: ${request.url()}`);
        }
        if (["fetch", "xhr", "eventsource"].includes(request.resourceType())) {
          calls.add(`${request.method()} ${url.pathname}`);
        }
      });
    };
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
      });
    });
    const newPage = async () => {
      const page = await context.newPage();
      watch(page);
      return page;
    };
    const page = await newPage();
    await run({ browser, context, page, newPage, settings, problems });
    for (const call of await unknownCalls(settings.url, calls)) note(`call that the document does not have: ${call}`);
    if (problems.length > 0) throw new Error(`the pages had problems:\n${problems.join("\n")}`);
    console.log("passed");
  } catch (error) {
    console.log(`failed: ${error.stack ?? error}`);
    for (const problem of problems) console.log(`problem: ${problem}`);
    for (const context of browser.contexts()) {
      for (const page of context.pages()) {
        console.log(`page ${page.url()}:\n${await page.locator("body").innerText().catch((failure) => String(failure))}`);
      }
    }
    status = 1;
  } finally {
    await browser.close();
  }
  process.exit(status);
}
