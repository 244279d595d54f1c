// Slots as a table, page by page: the accessible form of the cells, with the same filter.

import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { fleet, useFleet } from "../lib/fleet.js";
import { count, number, useNow } from "../lib/format.js";
import { link } from "../lib/router.js";
import { BotLink, TableHead } from "../components/overview-parts.js";
import { Elapsed, Empty, StatusMark } from "../components/ui.js";
import { matches } from "./slot-filter.js";

/** @typedef {import("./slot-filter.js").SlotFilterValue} SlotFilterValue */

const PAGE = 50;

/** @param {{filter: SlotFilterValue}} props */
export function SlotTable({ filter }) {
  const [open, setOpen] = useState(false);
  return html`<details class="slot-table" onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary>Slots as a table</summary>
    ${open && html`<${Rows} filter=${filter} />`}
  </details>`;
}

/** @param {{filter: SlotFilterValue}} props */
function Rows({ filter }) {
  const [page, setPage] = useState(0);
  useEffect(() => setPage(0), [filter]);
  const second = useNow(2000);
  const structure = useFleet((live) => live.structure);
  const names = useMemo(() => {
    const found = [];
    for (const { name } of fleet.pools) {
      for (const slot of fleet.slotNames(name)) {
        const live = fleet.slots.get(slot);
        if (live && matches(live, filter)) found.push(slot);
      }
    }
    return found;
  }, [filter, second, structure]);
  const pages = Math.max(1, Math.ceil(names.length / PAGE));
  const shown = Math.min(page, pages - 1);
  const first = shown * PAGE;
  const slots = useFleet((live) => names.slice(first, first + PAGE).flatMap((name) => live.slots.get(name) ?? []));
  if (names.length === 0) return html`<${Empty} title="No slot matches the filter">Change or clear the filter.<//>`;
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label="Table of slots">
      <table>
        <caption class="unseen">${count(names.length, "slot")}, page ${shown + 1} of ${pages}</caption>
        <${TableHead} columns=${[["Slot"], ["Pool"], ["Status"], ["Hot"], ["For"], ["Bot"]]} />
        <tbody>
          ${slots.map(
            (slot) => html`<tr key=${slot.name}>
              <th scope="row"><a class="mono" href=${link(`/slots/${slot.name}`)}>${slot.name}</a></th>
              <td>${slot.pool}</td>
              <td><${StatusMark} status=${slot.status} kind="slot" /></td>
              <td>${slot.hot ? "Hot" : "–"}</td>
              <td><${Elapsed} from=${slot.since} /></td>
              <td>${slot.bot_id ? html`<${BotLink} id=${slot.bot_id} />` : "–"}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <div class="spread slot-pages">
      <span class="quiet">${number(first + 1)} to ${number(Math.min(first + PAGE, names.length))} of ${count(names.length, "slot")}</span>
      <span class="row">
        <button type="button" class="small" disabled=${shown === 0} onClick=${() => setPage(shown - 1)}>Previous</button>
        <button type="button" class="small" disabled=${shown >= pages - 1} onClick=${() => setPage(shown + 1)}>Next</button>
      </span>
    </div>`;
}
