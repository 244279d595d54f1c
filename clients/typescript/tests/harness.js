// What every scenario needs. A scenario runs against a real server, and talks with its test by lines: it says which
// point it has come to, and goes on when the test answers.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const settings = JSON.parse(process.env.SCENARIO_SETTINGS ?? "{}");

/** The compiled client: in the folder that the variable names, or in `dist`. */
const dist = process.env.GREENROOM_DIST ? pathToFileURL(`${process.env.GREENROOM_DIST}/`) : new URL("../dist/", import.meta.url);
export const client = await import(new URL("index.js", dist).href);
export const load = (module) => import(new URL(module, dist).href);

let answers;

/** Tells the test where the scenario is, and returns what the test answers. */
export async function reach(point) {
  answers ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log(`reached: ${point}`);
  const { done, value } = await answers.next();
  if (done) throw new Error("the test has ended");
  return value;
}

/** Ends the scenario, also if standard input is still open. */
export function passed() {
  console.log("passed");
  process.exit(0);
}

/** The items of an asynchronous iterator. */
export async function collect(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}
