// Parts that several pages share: the head of a page, a list of facts, and links to bots, slots and pools.

import { html } from "../lib/html.js";
import { shortId } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Loading, ProblemNote } from "./ui.js";

/**
 * The head of a page: where it belongs, its name, its state, and what can be done.
 *
 * @param {object} props
 * @param {{label: string, href: string}} [props.parent] the list that the page belongs to
 * @param {any} props.title
 * @param {any} [props.note] a line below the title
 * @param {any} [props.actions]
 */
export function PageHead({ parent, title, note, actions }) {
  return html`
    <header class="page-head">
      <div class="page-name">
        ${parent && html`<nav class="page-path" aria-label="Path"><a href=${parent.href}>${parent.label}</a></nav>`}
        <h1>${title}</h1>
        ${note && html`<div class="page-note">${note}</div>`}
      </div>
      ${actions && html`<div class="page-actions">${actions}</div>`}
    </header>`;
}

/**
 * A page whose data has not come yet, or did not come.
 *
 * @param {{title: string, loaded: import("./load.js").Loaded<any>}} props
 */
export function Waiting({ title, loaded }) {
  return html`
    <div class="page">
      <h1 class="unseen">${title}</h1>
      ${loaded.problem ? html`<${ProblemNote} problem=${loaded.problem} onRetry=${loaded.reload} />` : html`<${Loading} />`}
    </div>`;
}

/**
 * Names and values. A fact without a value is left out.
 *
 * @param {{facts: [string, any][]}} props
 */
export function Facts({ facts }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return html`
    <dl class="facts">
      ${known.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd key=${`${name} value`}>${value}</dd>`)}
    </dl>`;
}

/** @param {{id: string | null | undefined, children?: any}} props */
export function BotLink({ id, children }) {
  if (!id) return null;
  return html`<a href=${link(`/bots/${encodeURIComponent(id)}`)} title=${id}>${children ?? html`<span class="id">${shortId(id)}</span>`}</a>`;
}

/** @param {{name: string | null | undefined}} props */
export function SlotLink({ name }) {
  return name ? html`<a class="id" href=${link(`/slots/${encodeURIComponent(name)}`)}>${name}</a>` : null;
}

/** @param {{name: string | null | undefined}} props */
export function PoolLink({ name }) {
  return name ? html`<a href=${link(`/pools/${encodeURIComponent(name)}`)}>${name}</a>` : null;
}
