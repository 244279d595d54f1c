// Actions for all selected rows of a list, with the result for each of them.

import { html, useState } from "../lib/html.js";
import { count } from "../lib/format.js";
import { ActionButton, toast } from "./action.js";

/**
 * @typedef {object} BulkAction
 * @property {string} verb what the button says before the count: "Stop" for "Stop 12 bots"
 * @property {string} done what has happened then: "asked to leave"
 * @property {string} explanation what the action means, for the dialog
 * @property {string} path
 * @property {(names: string[]) => unknown} body
 * @property {(name: string) => string} cli the command for one
 * @property {boolean} [danger]
 */

/** @typedef {{name: string, detail: string}} Failed */

/** The API takes no more in one call. */
const MAX = 1000;

/**
 * @param {object} props
 * @param {string} props.noun
 * @param {import("./table.js").Selection} props.selection
 * @param {BulkAction[]} props.actions
 * @param {() => void} props.onDone
 */
export function BulkBar({ noun, selection, actions, onDone }) {
  const [failed, setFailed] = useState(/** @type {Failed[]} */ ([]));
  const names = [...selection.chosen].slice(0, MAX);
  const size = count(names.length, noun);

  const finish = (/** @type {BulkAction} */ action, /** @type {any} */ answer) => {
    /** @type {any[]} */
    const results = answer?.results ?? [];
    const bad = results.filter((result) => result.error);
    setFailed(bad.map((result) => ({ name: result.bot_id ?? result.name, detail: result.error.detail })));
    const good = results.length - bad.length;
    toast([good > 0 && `${count(good, noun)} ${action.done}.`, bad.length > 0 && `${count(bad.length, noun)} failed.`].filter(Boolean).join(" "));
    selection.clear();
    onDone();
  };

  return html`
    ${failed.length > 0 && html`
      <section class="bulk-failed" aria-label="What failed">
        <p><strong>${count(failed.length, noun)} could not be changed.</strong> Nothing else is affected.</p>
        <ul>${failed.map(({ name, detail }) => html`<li key=${name}><code>${name}</code>: ${detail}</li>`)}</ul>
        <button type="button" class="small" onClick=${() => setFailed([])}>Close</button>
      </section>`}
    ${names.length > 0 && html`
      <section class="bulk-bar" aria-label="Selected rows">
        <p class="bulk-count" role="status">${size} selected</p>
        ${actions.map((action) => html`
          <${ActionButton} key=${action.verb} label=${`${action.verb} ${size}`} method="POST" path=${action.path} body=${action.body(names)}
            cli=${names.map(action.cli).join("\n")} danger=${action.danger}
            confirm=${{ title: `${action.verb} ${size}?`, text: action.explanation, button: `${action.verb} ${size}`, danger: action.danger }}
            onDone=${(/** @type {any} */ answer) => finish(action, answer)} />`)}
        <button type="button" onClick=${selection.clear}>Clear the selection</button>
      </section>`}`;
}
