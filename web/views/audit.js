// What operators did: one row for each call that changed something, newest first.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { count, shortId, time } from "../lib/format.js";
import { withQuery } from "../components/load.js";
import { BotLink, PageHead, PoolLink, SlotLink } from "../components/page-parts.js";
import { Pager, usePages } from "../components/pager.js";
import { Table } from "../components/table.js";
import { Empty, Loading, ProblemNote } from "../components/ui.js";

/** @typedef {import("../lib/types.js").AuditEntry} AuditEntry */

const EVERY_MS = 10_000;
/** Of a call about many bots or slots, so many are named. */
const LISTED_MAX = 8;

/** @type {Record<string, string>} */
const ACTIONS = {
  user_created: "Added a user",
  user_changed: "Changed a user",
  key_rotated: "Made a new API key",
  bot_created: "Started a bot",
  bot_stopped: "Stopped a bot",
  bot_reconfigured: "Reconfigured a bot",
  bot_assigned: "Assigned a bot by hand",
  bots_stopped: "Stopped several bots",
  pool_changed: "Changed a pool",
  pool_probed: "Probed a pool",
  slot_recovered: "Recovered a slot",
  slot_drained: "Drained a slot",
  slot_deleted: "Deleted a slot",
  slots_recovered: "Recovered several slots",
  slots_drained: "Drained several slots",
  slots_deleted: "Deleted several slots",
  keeper_run: "Ran a keeper",
};

export function AuditPage() {
  const pages = usePages(
    async (limit, cursor) => {
      const answer = await call("GET", withQuery("/admin/audit", { limit, cursor }));
      return { rows: /** @type {AuditEntry[]} */ (answer.entries), next: answer.next_cursor };
    },
    [],
    { every: EVERY_MS },
  );
  return html`
    <div class="page">
      <${PageHead} title="Audit" note=${html`<span class="quiet">Each call of an operator that changed something, from this page, the command line or the API.</span>`} />
      ${pages.isFirst && (pages.problem ? html`<${ProblemNote} problem=${pages.problem} onRetry=${pages.reload} />` : html`<${Loading} />`)}
      ${!pages.isFirst && pages.rows.length === 0 && html`
        <${Empty} title="Nothing yet"><p>When an operator stops a bot or changes a pool, it is listed here.</p><//>`}
      ${pages.rows.length > 0 && html`<${AuditTable} rows=${pages.rows} /><${Pager} pages=${pages} shown=${`${count(pages.rows.length, "action")} shown`} />`}
    </div>`;
}

/** @param {{rows: AuditEntry[]}} props */
function AuditTable({ rows }) {
  /** @type {import("../components/table.js").Column<AuditEntry>[]} */
  const columns = [
    { title: "When", cell: (entry) => html`<time dateTime=${entry.at}>${time(entry.at)}</time>` },
    { title: "What", head: true, cell: (entry) => ACTIONS[entry.action] ?? entry.action },
    { title: "Which", cell: (entry) => html`<${Subject} entry=${entry} />` },
    { title: "More", wraps: true, from: 2, cell: (entry) => html`<${Detail} detail=${entry.detail} />` },
    { title: "From", from: 2, cell: (entry) => html`<span class="id">${entry.address}</span>` },
  ];
  return html`<${Table} caption="Actions of operators, newest first" columns=${columns} rows=${rows} keyOf=${(/** @type {AuditEntry} */ entry) => String(entry.id)} />`;
}

/** @param {{entry: AuditEntry}} props */
function Subject({ entry: { action, subject } }) {
  if (!subject) return null;
  if (action.startsWith("bot_")) return html`<${BotLink} id=${subject} />`;
  if (action.startsWith("slot_")) return html`<${SlotLink} name=${subject} />`;
  if (action.startsWith("pool_")) return html`<${PoolLink} name=${subject} />`;
  return html`<${Text} text=${subject} />`;
}

/** @param {{detail: Record<string, unknown>}} props */
function Detail({ detail }) {
  const entries = Object.entries(detail ?? {});
  if (entries.length === 0) return null;
  return html`
    <span class="audit-detail">
      ${entries.map(([name, value]) => html`<span key=${name} class="row"><span class="quiet">${name}</span><${Value} name=${name} value=${value} /></span>`)}
    </span>`;
}

/** @param {{name: string, value: unknown}} props */
function Value({ name, value }) {
  if (name === "bot_id" && typeof value === "string") return html`<${BotLink} id=${value} />`;
  if (!Array.isArray(value)) return html`<${Text} text=${typeof value === "string" ? value : JSON.stringify(value)} />`;
  return html`
    ${value.slice(0, LISTED_MAX).map((one) => (name === "bots" ? html`<${BotLink} key=${one} id=${one} />`
      : name === "slots" ? html`<${SlotLink} key=${one} name=${one} />` : html`<code key=${one}>${String(one)}</code>`))}
    ${value.length > LISTED_MAX && html`<span class="quiet">and ${value.length - LISTED_MAX} more</span>`}`;
}

/**
 * A value. An id is shortened, and whole when the pointer is on it.
 *
 * @param {{text: string}} props
 */
function Text({ text }) {
  return html`<span class="id" title=${text}>${/^[0-9a-f-]{36}$/.test(text) ? shortId(text) : text}</span>`;
}
