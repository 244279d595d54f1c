// The overview of operators: a line of numbers, what needs a person, every slot, and beside it lobby, queue and gates.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { number } from "../lib/format.js";
import { link } from "../lib/router.js";
import { useLoad } from "../components/load.js";
import { StatusCounts } from "../components/overview-parts.js";
import { Countdown, Elapsed } from "../components/ui.js";
import { AttentionPanel } from "./attention.js";
import { LobbyPanel } from "./lobby.js";
import { QueuePanel, StartsPanel } from "./queue.js";
import { SLOT_STATUSES } from "./slot-filter.js";
import { SlotGrid } from "./slot-grid.js";

/** Statuses of bots that have not ended, in the order of a bot's life. */
const BOT_STATUSES = ["active", "awaiting_admission", "needs_help", "starting", "deploying", "queued", "reserved", "scheduled", "stopping"];

/** @param {{query: Record<string, string>}} props */
export function OverviewPage({ query }) {
  return html`<h1 class="unseen">Overview</h1>
    <div class="stack">
      <${Numbers} />
      <${AttentionPanel} />
      <div class="overview">
        <${SlotGrid} query=${query} />
        <div class="stack overview-side"><${LobbyPanel} /><${QueuePanel} /><${StartsPanel} /></div>
      </div>
    </div>`;
}

/** The state of the fleet in one line. */
function Numbers() {
  return html`<section class="numbers" aria-label="The fleet in numbers">
    <${SlotNumbers} /><${BotNumbers} /><${QueueNumbers} /><${StartNumbers} />
  </section>`;
}

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((total, one) => total + one, 0);
}

function SlotNumbers() {
  const { counts, hot, loaded } = useFleet((live) => ({ counts: live.slotCounts, hot: live.hotIdle, loaded: live.loaded }));
  const { busy = 0, ...others } = counts;
  const share = (/** @type {string} */ status) => html`<span key=${status} class=${`fill-${status}`} style=${{ flexGrow: counts[status] }}></span>`;
  const hotNote = hot > 0 ? html` <span class="quiet">(${number(hot)} hot)</span>` : "";
  return html`<div class="number wide">
    <h2>Slots busy</h2>
    <p class="number-value">${loaded ? number(busy) : "–"}<span class="number-of"> of ${number(sum(counts))}</span></p>
    <div class="bar-stack" aria-hidden="true">${SLOT_STATUSES.filter((status) => counts[status] > 0).map(share)}</div>
    <${StatusCounts} kind="slot" statuses=${SLOT_STATUSES} counts=${others} notes=${{ idle: hotNote }} />
  </div>`;
}

function BotNumbers() {
  const { counts, loaded } = useFleet((live) => ({ counts: live.botCounts, loaded: live.loaded }));
  return html`<div class="number wide">
    <h2>Bots</h2>
    <p class="number-value">${loaded ? number(sum(counts)) : "–"}</p>
    <${StatusCounts} kind="bot" statuses=${BOT_STATUSES} counts=${counts} empty=${loaded ? "No bot runs now." : ""} />
  </div>`;
}

function QueueNumbers() {
  const { queue, loaded } = useFleet((live) => ({ queue: live.queue, loaded: live.loaded }));
  const oldest = queue.reduce((first, { queued_at }) => Math.min(first, queued_at), Infinity);
  const next = queue.reduce((first, { timeout_at }) => Math.min(first, timeout_at), Infinity);
  return html`<div class="number">
    <h2><a href=${link("/queue")}>Queued</a></h2>
    <p class="number-value">${loaded ? number(queue.length) : "–"}</p>
    ${queue.length > 0
      ? html`<p class="number-note"><span class="quiet">Longest wait</span> <${Elapsed} from=${oldest} /></p>
          <p class="number-note"><${Countdown} to=${next} before="First gives up in" /></p>`
      : html`<p class="number-note quiet">No bot waits for a slot.</p>`}
  </div>`;
}

function StartNumbers() {
  const { active, places, waiting, loaded } = useFleet((live) => ({
    loaded: live.loaded,
    active: live.gates.reduce((total, gate) => total + gate.active, 0),
    places: live.gates.reduce((total, gate) => total + gate.max_concurrent, 0),
    waiting: live.gates.reduce((total, gate) => total + gate.queued, 0),
  }));
  const { data } = useLoad(lastHour, [], 30_000);
  return html`<div class="number">
    <h2>Slots starting</h2>
    <p class="number-value">${loaded ? number(active) : "–"}<span class="number-of"> of ${number(places)}</span></p>
    <p class=${waiting > 0 ? "number-note tone-wait" : "number-note quiet"}>
      ${waiting > 0 ? `${number(waiting)} waiting at a gate` : "None waits at a gate."}
    </p>
    ${data &&
    html`<p class="number-note">
      <a href=${link("/charts")}>Last hour</a>${`: ${number(data.hot)} hot, ${number(data.stopped)} stopped, ${number(data.cold)} cold`}
    </p>`}
  </div>`;
}

/** How bots were started in the last hour; `null` where the server does not count it. */
async function lastHour() {
  const from = new Date(Date.now() - 3_600_000).toISOString();
  const to = new Date().toISOString();
  try {
    const { points } = await call("GET", `/admin/stats?from=${from}&to=${to}&step=minute`);
    const starts = { hot: 0, stopped: 0, cold: 0 };
    for (const point of points) {
      for (const kind of /** @type {const} */ (["hot", "stopped", "cold"])) starts[kind] += point.starts?.[kind] ?? 0;
    }
    return starts;
  } catch {
    return null;
  }
}
