// Which slots a person looks at: by pool, by status and by text. The filter is part of the address.

import { html } from "../lib/html.js";
import { useFleet } from "../lib/fleet.js";
import { setQuery } from "../lib/router.js";
import { number, statusLabel } from "../lib/format.js";

/** @typedef {import("../lib/types.js").LiveSlot} LiveSlot */
/** @typedef {{pool: string, status: string, text: string}} SlotFilterValue */

/** All statuses, in the order of the legend. */
export const SLOT_STATUSES = ["busy", "idle", "creating", "draining", "error"];

/** Stands for idle slots in which an agent waits. */
export const HOT = "hot";

/**
 * @param {Record<string, string>} query
 * @returns {SlotFilterValue}
 */
export function readFilter(query) {
  return { pool: query.pool ?? "", status: query.status ?? "", text: (query.q ?? "").trim().toLowerCase() };
}

/** @param {SlotFilterValue} filter */
export function isFiltering(filter) {
  return filter.pool !== "" || filter.status !== "" || filter.text !== "";
}

/**
 * @param {LiveSlot} slot
 * @param {SlotFilterValue} filter
 */
export function matches(slot, filter) {
  if (filter.pool !== "" && slot.pool !== filter.pool) return false;
  if (filter.status === HOT ? !(slot.hot && slot.status === "idle") : filter.status !== "" && slot.status !== filter.status) return false;
  return filter.text === "" || slot.name.includes(filter.text) || Boolean(slot.bot_id?.includes(filter.text));
}

/** A button for each status, which is also the legend of the cells. @param {{filter: SlotFilterValue}} props */
export function SlotLegend({ filter }) {
  const { counts, hot } = useFleet((live) => ({ counts: live.slotCounts, hot: live.hotIdle }));
  const entries = SLOT_STATUSES.map((status) => ({ status, look: `s-${status}`, label: statusLabel(status), n: counts[status] ?? 0 }));
  entries.splice(2, 0, { status: HOT, look: "s-idle hot", label: "Idle and hot", n: hot });
  /** @param {string} status */
  const choose = (status) => setQuery({ status: filter.status === status ? "" : status });
  return html`<ul class="legend" aria-label="Show only slots with a status">
    ${entries.map(
      ({ status, look, label, n }) => html`<li key=${status}>
        <button type="button" class="legend-item" aria-pressed=${filter.status === status} onClick=${() => choose(status)}>
          <span class=${`cell ${look}`} aria-hidden="true"></span>${label} <span class="quiet num">${number(n)}</span>
        </button>
      </li>`,
    )}
  </ul>`;
}

/** Fields for pool and text. @param {{filter: SlotFilterValue, text: string}} props */
export function SlotFilter({ filter, text }) {
  const pools = useFleet((live) => live.pools);
  const clear = () => setQuery({ pool: "", status: "", q: "" });
  return html`<div class="filters" role="group" aria-label="Filter slots">
    ${isFiltering(filter) && html`<button type="button" class="small plain" onClick=${clear}>Clear</button>`}
    ${pools.length > 1 &&
    html`<select aria-label="Pool" value=${filter.pool} onChange=${(/** @type {any} */ event) => setQuery({ pool: event.target.value })}>
      <option value="">All pools</option>
      ${pools.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>`}
    <input
      type="search" aria-label="Name of a slot, or id of a bot" placeholder="Slot or bot"
      value=${text} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })}
    />
  </div>`;
}
