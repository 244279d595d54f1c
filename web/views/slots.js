// The table of slots, by pool and number, with filters in the address and actions for the selected ones.

import { html, useMemo } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { ago, bytes, lasted, statusLabel, useNow } from "../lib/format.js";
import { link, setQuery } from "../lib/router.js";
import { BulkBar } from "../components/bulk-bar.js";
import { MATCHES_MAX, SelectField, TextField, shownText, statusOptions, useText } from "../components/filters.js";
import { useOnChange, withQuery } from "../components/load.js";
import { BotLink, PageHead, PoolLink, SlotLink } from "../components/page-parts.js";
import { Pager, usePages } from "../components/pager.js";
import { Table, useSelection } from "../components/table.js";
import { Empty, Loading, ProblemNote, StatusMark } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Slot} Slot */

export const SLOT_STATUSES = ["busy", "idle", "creating", "draining", "error"];
const EVERY_MS = 10_000;

/** What operators can do with slots, one by one or many at once. */
export const SLOT_ACTIONS = {
  recover: {
    verb: "Recover",
    done: "being recovered",
    explanation: "The server starts the slot afresh. Only slots in error can be recovered.",
  },
  drain: {
    verb: "Drain",
    done: "draining",
    explanation: "The slot takes no more bots. A bot that runs there goes on to its end; then the slot is deleted.",
  },
  delete: {
    verb: "Delete",
    done: "being deleted",
    explanation: "The slot takes no more bots. When it has no bot, the server deletes it at the provider and then in the database.",
    danger: true,
  },
};

/** @param {{query: Record<string, string>}} props */
export function SlotsPage({ query }) {
  const { pool = "", status = "" } = query;
  const [text, setText] = useText(query.q ?? "");
  const pools = useFleet((fleet) => fleet.pools.map((one) => one.name).join("\n"));
  const poolNames = pools ? pools.split("\n") : pool ? [pool] : [];
  const isFiltered = Boolean(pool || status || text);
  return html`
    <div class="page">
      <${PageHead} title="Slots" />
      <form class="filters" role="search" aria-label="Filter the slots" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <${SelectField} label="Pool" value=${pool} options=${[["", "All pools"], ...poolNames.map((name) => [name, name])]} onChange=${(/** @type {string} */ value) => setQuery({ pool: value })} />
        <${SelectField} label="Status" value=${status} options=${statusOptions("All statuses", SLOT_STATUSES)} onChange=${(/** @type {string} */ value) => setQuery({ status: value })} />
        <${TextField} label="Text" value=${text} placeholder="Name, bot or error" onInput=${setText} />
        ${isFiltered && html`<button type="button" onClick=${() => { setText(""); setQuery({ pool: null, status: null, q: null }); }}>Clear filters</button>`}
      </form>
      <${SlotList} pool=${pool} status=${status} text=${text} />
    </div>`;
}

/**
 * The slots that match, with their bulk actions.
 *
 * @param {{pool: string, status: string, text?: string}} props
 */
export function SlotList({ pool, status, text = "" }) {
  const pages = usePages(
    async (limit, cursor) => {
      const answer = await call("GET", withQuery("/admin/slots", { pool, status, limit, cursor }));
      return { rows: /** @type {Slot[]} */ (answer.slots), next: answer.next_cursor };
    },
    [pool, status, Boolean(text)],
    { size: text ? 1000 : 100, every: EVERY_MS },
  );
  // The live state has no errors and no times of use: these are read again when slots change their status.
  const counts = useFleet((fleet) => ({ ...(pool ? fleet.countsOf(pool) : fleet.slotCounts) }));
  useOnChange(counts, pages.reload, 2000);

  const found = useMemo(() => pages.rows.filter((slot) => matches(slot, text)), [pages.rows, text]);
  const rows = useMemo(() => (text ? found.slice(0, MATCHES_MAX) : found), [found, text]);
  const selection = useSelection(rows.map((slot) => slot.name));
  const bulk = Object.entries(SLOT_ACTIONS).map(([name, action]) => ({
    ...action,
    path: "/admin/slots/bulk",
    body: (/** @type {string[]} */ slots) => ({ action: name, slots }),
    cli: (/** @type {string} */ slot) => `greenroom slots ${name} ${slot}`,
  }));

  if (pages.isFirst) return pages.problem ? html`<${ProblemNote} problem=${pages.problem} onRetry=${pages.reload} />` : html`<${Loading} />`;
  if (rows.length === 0) return html`<${NoSlots} isFiltered=${Boolean(status || text)} pool=${pool} />`;
  return html`
    <${SlotTable} rows=${rows} hasPool=${!pool} selection=${selection} />
    <${Pager} pages=${pages} shown=${shownText("slot", rows.length, found.length, text ? pages.rows.length : null)} />
    <${BulkBar} noun="slot" selection=${selection} actions=${bulk} onDone=${pages.reload} />`;
}

/** @param {{isFiltered: boolean, pool: string}} props */
function NoSlots({ isFiltered, pool }) {
  if (isFiltered) return html`<${Empty} title="No slot matches"><p>Change the filters, or clear them.</p><//>`;
  return html`
    <${Empty} title="No slots yet">
      <p>A pool creates a slot when a bot needs it. To keep slots ready, set <code>min_idle</code> of ${pool ? html`<${PoolLink} name=${pool} />` : html`<a href=${link("/pools")}>a pool</a>`}.</p>
    <//>`;
}

/** @param {{rows: Slot[], hasPool: boolean, selection: import("../components/table.js").Selection}} props */
function SlotTable({ rows, hasPool, selection }) {
  /** @type {import("../components/table.js").Column<Slot>[]} */
  const columns = [
    { title: "Slot", head: true, cell: (slot) => html`<${SlotLink} name=${slot.name} />` },
    { title: "Status", cell: (slot) => html`<${LiveSlotStatus} slot=${slot} />` },
    { title: "Since", number: true, from: 2, cell: (slot) => html`<${Since} slot=${slot} />` },
    { title: "Bot", from: 2, cell: (slot) => html`<${LiveBot} slot=${slot} />` },
    { title: "Last used", number: true, from: 3, cell: (slot) => (slot.last_used_at ? html`<${Ago} at=${slot.last_used_at} />` : "never") },
    { title: "Memory", number: true, from: 3, cell: (slot) => (slot.memory_bytes === null ? "" : bytes(slot.memory_bytes)) },
    { title: "Error", wraps: true, from: 2, cell: (slot) => slot.error_message ?? "" },
  ];
  if (hasPool) columns.splice(1, 0, { title: "Pool", from: 3, cell: (slot) => html`<${PoolLink} name=${slot.pool} />` });
  return html`<${Table} caption="Slots, by pool and number" columns=${columns} rows=${rows} keyOf=${(/** @type {Slot} */ slot) => slot.name} selection=${selection} />`;
}

/** @param {{slot: Slot}} props */
export function LiveSlotStatus({ slot }) {
  const live = useFleet((fleet) => fleet.slots.get(slot.name)) ?? slot;
  return html`
    <span class="row">
      <${StatusMark} status=${live.status} kind="slot" />
      ${live.hot && html`<span class="tag good">hot</span>`}
    </span>`;
}

/** @param {{slot: Slot}} props */
function LiveBot({ slot }) {
  const id = useFleet((fleet) => (fleet.loaded ? fleet.slots.get(slot.name)?.bot_id : slot.bot_id));
  const status = useFleet((fleet) => (id ? fleet.bots.get(id)?.status : undefined));
  if (!id) return null;
  return html`<span class="row"><${BotLink} id=${id} />${status && html`<span class="quiet">${statusLabel(status)}</span>`}</span>`;
}

/** @param {{slot: Slot}} props */
function Since({ slot }) {
  useNow(1000);
  const since = useFleet((fleet) => fleet.slots.get(slot.name)?.since) ?? slot.status_since;
  return since ? lasted(since) : "";
}

/** @param {{at: string}} props */
function Ago({ at }) {
  useNow(1000);
  return ago(at);
}

/**
 * @param {Slot} slot
 * @param {string} text
 */
function matches(slot, text) {
  if (!text) return true;
  const wanted = text.trim().toLowerCase();
  return [slot.name, slot.bot_id, slot.error_message, slot.provider_ref].some((value) => value?.toLowerCase().includes(wanted));
}
