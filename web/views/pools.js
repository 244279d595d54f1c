// The pools side by side: how many slots each has in which status, what waits, and how long bots stay.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { bytes, count, duration, statusLabel } from "../lib/format.js";
import { useLoad } from "../components/load.js";
import { PageHead, PoolLink } from "../components/page-parts.js";
import { Table } from "../components/table.js";
import { Countdown, Empty, Loading, ProblemNote } from "../components/ui.js";
import { SLOT_STATUSES } from "./slots.js";

/** @typedef {import("../lib/types.js").Pool} Pool */

const EVERY_MS = 5000;

export function PoolsPage() {
  const loaded = useLoad(() => call("GET", "/admin/pools"), [], EVERY_MS);
  /** @type {Pool[] | undefined} */
  const pools = loaded.data?.pools;
  return html`
    <div class="page">
      <${PageHead} title="Pools" />
      ${loaded.problem && html`<${ProblemNote} problem=${loaded.problem} onRetry=${loaded.reload} />`}
      ${!pools && !loaded.problem && html`<${Loading} />`}
      ${pools && pools.length === 0 && html`<${Empty} title="No pools"><p>Add a <code>[[pool]]</code> to <code>greenroom.toml</code> and start the server again.</p><//>`}
      ${pools && pools.length > 0 && html`<${PoolTable} pools=${pools} />`}
    </div>`;
}

/** @param {{pools: Pool[]}} props */
function PoolTable({ pools }) {
  /** @type {import("../components/table.js").Column<Pool>[]} */
  const columns = [
    { title: "Pool", head: true, cell: (pool) => html`<span class="row"><${PoolLink} name=${pool.name} /><span class="quiet">${statusLabel(pool.platform)}</span></span>` },
    { title: "Slots", cell: (pool) => html`<${SlotBar} pool=${pool} />` },
    { title: "Queued", number: true, cell: (pool) => (pool.queued > 0 ? html`<strong>${pool.queued}</strong>` : html`<span class="quiet">0</span>`) },
    { title: "Kept idle", number: true, from: 3, cell: (pool) => `${pool.min_idle}, ${pool.standby === "running" ? "hot" : "stopped"}` },
    { title: "Mean use", number: true, from: 2, cell: (pool) => (pool.mean_hold_ms == null ? html`<span class="quiet">not yet known</span>` : duration(pool.mean_hold_ms)) },
    { title: "Memory", number: true, from: 3, cell: (pool) => (pool.memory_bytes === null ? "" : bytes(pool.memory_bytes)) },
    { title: "Provider", from: 2, cell: (pool) => html`<${ProviderState} pool=${pool} />` },
  ];
  return html`<${Table} caption="Pools" columns=${columns} rows=${pools} keyOf=${(/** @type {Pool} */ pool) => pool.name} />`;
}

/** @param {{pool: Pool}} props */
export function ProviderState({ pool }) {
  return html`${pool.provider}${pool.closed_until && html` <span class="closed">closed, tried again in <${Countdown} to=${pool.closed_until} /></span>`}`;
}

/**
 * The slots of a pool by status, as a bar whose whole width is `max_slots`, and as words.
 *
 * @param {{pool: Pool, isLarge?: boolean}} props
 */
export function SlotBar({ pool, isLarge = false }) {
  const live = useFleet((fleet) => (fleet.loaded ? { ...fleet.countsOf(pool.name) } : null));
  const slots = live ?? pool.slots;
  const shown = SLOT_STATUSES.filter((status) => slots[status] > 0);
  const total = shown.reduce((sum, status) => sum + slots[status], 0);
  const whole = Math.max(pool.max_slots, total, 1);
  return html`
    <div class=${`slot-bar${isLarge ? " is-large" : ""}`}>
      <div class="bar-stack" aria-hidden="true">
        ${shown.map((status) => html`<span key=${status} class=${`fill-${status}`} style=${{ width: `${(slots[status] / whole) * 100}%` }}></span>`)}
      </div>
      <p class="bar-text">
        <span class="bar-total">${total} of ${count(pool.max_slots, "slot")}</span>
        ${shown.map((status) => html` <span key=${status} class="bar-label" data-status=${status}>${slots[status]} ${statusLabel(status).toLowerCase()}</span>`)}
      </p>
    </div>`;
}
