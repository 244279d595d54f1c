// Views whose files are loaded when they are first shown.

import { html, useEffect, useState } from "../lib/html.js";
import { Problem } from "../lib/api.js";
import { Loading, ProblemNote } from "./ui.js";

/** @type {(() => Promise<unknown>)[]} */
const all = [];

/** Loads the files of all views, so that they appear at once later. */
export function loadAllViews() {
  for (const load of all) load().catch(() => {});
}

/**
 * A component that loads the view and then shows it.
 * @param {() => Promise<unknown>} load
 */
export function lazyView(load) {
  /** @type {unknown} */
  let loaded = null;
  const loadOnce = async () => (loaded ??= await load());
  all.push(loadOnce);
  return function LazyView(/** @type {Record<string, unknown>} */ props) {
    const [, setShown] = useState(loaded !== null);
    const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
    const start = () => {
      setProblem(null);
      loadOnce().then(
        () => setShown(true),
        () => setProblem(new Problem({ status: 0, code: "unreachable", detail: "A part of the page could not be loaded." })),
      );
    };
    useEffect(() => {
      if (!loaded) start();
    }, []);
    if (loaded) return html`<${loaded} ...${props} />`;
    // A browser remembers that a file could not be loaded, so the page is loaded again.
    return problem ? html`<h1>Greenroom</h1><${ProblemNote} problem=${problem} onRetry=${() => location.reload()} />` : html`<${Loading} />`;
  };
}
