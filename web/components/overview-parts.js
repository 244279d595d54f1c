// Parts that several views of the overview share: counts by status, heads of tables, and the button that stops a bot.

import { html } from "../lib/html.js";
import { number, shortId, statusLabel } from "../lib/format.js";
import { link } from "../lib/router.js";
import { ActionButton } from "./action.js";
import { StatusMark } from "./ui.js";

/**
 * How many bots or slots have each status, as links to the list. Statuses without any are left out.
 * @param {object} props
 * @param {"bot" | "slot"} props.kind
 * @param {string[]} props.statuses in the order in which they are shown
 * @param {Record<string, number>} props.counts
 * @param {Record<string, unknown>} [props.notes] shown behind a status
 * @param {string} [props.empty] shown if there is no status
 */
export function StatusCounts({ kind, statuses, counts, notes = {}, empty }) {
  const present = statuses.filter((status) => (counts[status] ?? 0) > 0);
  const list = kind === "slot" ? "/slots" : "/bots";
  return html`<ul class="number-parts">
    ${present.length === 0 && empty && html`<li class="quiet">${empty}</li>`}
    ${present.map(
      (status) => html`<li key=${status}>
        <a href=${link(list, { status })}><${StatusMark} status=${status} kind=${kind} short /> ${countLabel(status, counts[status])}${notes[status]}</a>
      </li>`,
    )}
  </ul>`;
}

/**
 * @param {string} status
 * @param {number} n
 */
function countLabel(status, n) {
  const word = status === "needs_help" && n > 1 ? "need help" : statusLabel(status).toLowerCase();
  return `${number(n)} ${word}`;
}

/**
 * The head of a table: the label of each column, and its class.
 * @param {{columns: [label: string, look?: string][]}} props
 */
export function TableHead({ columns }) {
  return html`<thead>
    <tr>
      ${columns.map(([label, look]) => html`<th key=${label} scope="col" class=${look === "unseen" ? "" : look}>
        ${look === "unseen" ? html`<span class="unseen">${label}</span>` : label}
      </th>`)}
    </tr>
  </thead>`;
}

/**
 * Asks a bot to leave, after a question.
 * @param {{id: string, name: string, path: string, onDone?: () => void}} props
 */
export function StopButton({ id, name, path, onDone }) {
  const confirm = { title: "Stop this bot?", text: `${name} leaves its meeting. This cannot be undone.`, button: "Stop the bot", danger: true };
  return html`<${ActionButton}
    small danger label="Stop" describe=${name} method="DELETE" path=${path} cli=${`greenroom bots stop ${id}`}
    confirm=${confirm} done="The bot was asked to leave" onDone=${onDone}
  />`;
}

/** A link to a bot by the end of its id. @param {{id: string}} props */
export function BotLink({ id }) {
  return html`<a class="mono" href=${link(`/bots/${id}`)}>…${shortId(id)}</a>`;
}
