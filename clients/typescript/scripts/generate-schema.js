// Writes src/schema.ts from docs/openapi.json with openapi-typescript: the calls for users, and the types that they
// need. With --check it only says whether the file is current.

import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Where npm installed the development dependencies: here, or in the folder that this variable names.
const packages = process.env.TEST_NODE_PACKAGES;
const require = createRequire(packages ? pathToFileURL(`${packages}/package.json`) : import.meta.url);
const { default: openapi, astToString } = require("openapi-typescript");

const document = JSON.parse(await readFile(new URL("../../../docs/openapi.json", import.meta.url), "utf8"));
const file = new URL("../src/schema.ts", import.meta.url);

/** The document with only the calls of this tag, and what they refer to. */
function only(tag) {
  const paths = {};
  for (const [path, calls] of Object.entries(document.paths)) {
    const kept = Object.entries(calls).filter(([, call]) => call.tags?.includes(tag));
    if (kept.length > 0) paths[path] = Object.fromEntries(kept);
  }
  const components = {};
  const keep = (value) => {
    if (value === null || typeof value !== "object") return;
    const [, kind, name] = /^#\/components\/(\w+)\/(\w+)$/.exec(value.$ref) ?? [];
    if (kind && !components[kind]?.[name]) {
      (components[kind] ??= {})[name] = document.components[kind][name];
      keep(components[kind][name]);
    }
    Object.values(value).forEach(keep);
  };
  keep(paths);
  // No call refers to the messages of the stream.
  keep({ $ref: "#/components/schemas/StreamedEvent" });
  return { ...document, paths, components };
}

const head = "// Written by scripts/generate-schema.js from the OpenAPI document: do not edit.\n\n";
const text = head + astToString(await openapi(only("For users"), { silent: true }));
if (!process.argv.includes("--check")) {
  await writeFile(file, text);
} else if ((await readFile(file, "utf8")) !== text) {
  console.error("src/schema.ts is not current: run `npm run generate`");
  process.exitCode = 1;
}
