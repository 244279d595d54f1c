// Every slot as a cell, grouped by pool: shape and colour by state, a filter that dims the rest. Small fleets are drawn as
// elements, large ones on a canvas.

import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { useFleet } from "../lib/fleet.js";
import { number, statusLabel } from "../lib/format.js";
import { link } from "../lib/router.js";
import { Empty, Loading, Panel } from "../components/ui.js";
import { SlotCanvas } from "./slot-canvas.js";
import { SlotCard } from "./slot-card.js";
import { SlotCells } from "./slot-cells.js";
import { SlotFilter, SlotLegend, readFilter } from "./slot-filter.js";
import { SlotTable } from "./slot-table.js";

/** @typedef {import("./slot-filter.js").SlotFilterValue} SlotFilterValue */
/** @typedef {import("../lib/fleet.js").LivePool} LivePool */

/** With more slots than this, they are drawn on a canvas. */
const MOST_ELEMENTS = 2000;

const CANVAS_LABEL = "Every slot as a cell. Move with the arrow keys, open with Enter. The table below has the same slots.";

/** @param {{query: Record<string, string>}} props */
export function SlotGrid({ query }) {
  const { loaded, pools, total } = useFleet((live) => ({ loaded: live.loaded, pools: live.pools, total: live.slots.size }));
  const filter = useMemo(() => readFilter(query), [query.pool, query.status, query.q]);
  // It changes back only when there are clearly fewer slots, so that the view does not flicker at the border.
  const large = useRef(false);
  large.current = total > (large.current ? MOST_ELEMENTS * 0.9 : MOST_ELEMENTS);
  const view = large.current ? CanvasGroups : ElementGroups;
  const title = html`Slots <span class="quiet num">${loaded ? number(total) : ""}</span>`;
  return html`<${Panel} title=${title} actions=${html`<${SlotFilter} filter=${filter} text=${query.q ?? ""} />`}>
    <${SlotLegend} filter=${filter} />
    ${!loaded
      ? html`<${Loading} />`
      : pools.length === 0
        ? html`<${Empty} title="There is no pool yet">Add a <code>[[pool]]</code> to the configuration, then restart the server.<//>`
        : html`<${view} key=${pools.map(({ name }) => name).join()} pools=${pools} filter=${filter} total=${total} />`}
    <${SlotTable} filter=${filter} />
    <${SlotCard} />
  <//>`;
}

/** @param {{pools: LivePool[], filter: SlotFilterValue, total: number}} props */
function ElementGroups({ pools, filter, total }) {
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const cells = useRef(/** @type {SlotCells | null} */ (null));
  useEffect(() => {
    cells.current = new SlotCells(/** @type {HTMLElement} */ (root.current), filter);
    return () => cells.current?.destroy();
  }, []);
  useEffect(() => cells.current?.setFilter(filter), [filter]);
  const size = total <= 150 ? "cells-l" : total <= 700 ? "cells-m" : "cells-s";
  return html`<div class=${`slot-groups ${size}`} ref=${root}>
    ${pools.map(
      (pool) => html`<section key=${pool.name} class="slot-group">
        <${GroupHead} pool=${pool} />
        <ul class="cells" data-pool=${pool.name} aria-label=${`Slots of ${pool.name}`}></ul>
      </section>`,
    )}
  </div>`;
}

/** @param {{pools: LivePool[], filter: SlotFilterValue}} props */
function CanvasGroups({ pools, filter }) {
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {SlotCanvas | null} */ (null));
  const [tops, setTops] = useState(/** @type {Record<string, number>} */ ({}));
  useEffect(() => {
    canvas.current = new SlotCanvas(/** @type {HTMLElement} */ (root.current), filter, (groups) => {
      setTops(Object.fromEntries(groups.map(({ pool, top }) => [pool, top])));
    });
    return () => canvas.current?.destroy();
  }, []);
  useEffect(() => canvas.current?.setFilter(filter), [filter]);
  return html`<div class="slot-groups slot-canvas" ref=${root}>
    ${pools
      .filter(({ name }) => tops[name] !== undefined)
      .map((pool) => html`<div key=${pool.name} class="canvas-head" style=${{ top: `${tops[pool.name]}px` }}><${GroupHead} pool=${pool} /></div>`)}
    <canvas tabindex="0" role="img" aria-label=${CANVAS_LABEL}></canvas>
    <div class="canvas-ring" hidden></div>
    <p class="unseen" role="status"></p>
  </div>`;
}

/** @param {{pool: LivePool}} props */
function GroupHead({ pool }) {
  const counts = useFleet((live) => ({ ...live.countsOf(pool.name) }));
  const total = Object.values(counts).reduce((sum, one) => sum + one, 0);
  const errors = counts.error ? `, ${number(counts.error)} in error` : "";
  const note = total === 0 ? "no slots yet" : `${number(counts.busy ?? 0)} of ${number(total)} busy${errors}`;
  return html`<header class="slot-group-head">
    <h3><a href=${link(`/pools/${pool.name}`)}>${pool.name}</a></h3>
    <p class="quiet">${statusLabel(pool.platform)} · ${note}</p>
  </header>`;
}
