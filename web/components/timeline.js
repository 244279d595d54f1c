// The time line of a bot: each status with its duration beside the median of the pool, and the events of the bot.

import { html, useMemo } from "../lib/html.js";
import { duration, statusLabel, time, useNow } from "../lib/format.js";
import { StatusMark } from "./ui.js";

/** @typedef {import("../lib/types.js").BotEvent} BotEvent */
/** @typedef {import("../lib/types.js").Schemas["Step"]} Step */

/**
 * @typedef {object} Stay a time that the bot spent in one status
 * @property {number} id
 * @property {string} status
 * @property {string} at
 * @property {number} from
 * @property {number | null} to `null` while it lasts
 * @property {number | null} median
 * @property {string | null | undefined} reason
 */

/** A step that takes so much longer than the median is marked as slow. */
const SLOW = 2;
/** Shorter differences are no reason to look. */
const SLOW_MS_MIN = 1000;

/**
 * The times in each status. A bot that has ended stays in its last status, which is no time of interest.
 *
 * @param {BotEvent[]} events oldest first
 * @param {Step[]} steps of the explanation, for the medians
 * @returns {Stay[]}
 */
export function staysOf(events, steps) {
  const medians = new Map(steps.filter((step) => step.median_ms !== null).map((step) => [step.at, step.median_ms]));
  const changes = events.filter((event) => event.to);
  return changes.map((event, number) => {
    const next = changes[number + 1];
    return {
      id: event.id,
      status: String(event.to),
      at: event.at,
      from: Date.parse(event.at),
      to: next ? Date.parse(next.at) : null,
      median: medians.get(event.at) ?? null,
      reason: event.reason,
    };
  });
}

/** @param {string} status */
const isEnd = (status) => status === "completed" || status === "failed";

/** @param {{events: BotEvent[], steps: Step[]}} props */
export function Timeline({ events, steps }) {
  const stays = useMemo(() => staysOf(events, steps), [events, steps]);
  const last = stays.at(-1);
  const isOver = !last || isEnd(last.status);
  const now = useNow(isOver ? 3_600_000 : 1000);
  if (!last) return html`<p class="timeline-strip quiet">No status yet.</p>`;

  const first = stays[0];
  const end = isOver ? last.from : Math.max(now, last.from);
  const total = Math.max(1, end - first.from);
  const hasMedian = stays.some((stay) => stay.median !== null);
  return html`
    <div class="timeline-strip">
      <${Strip} stays=${stays} end=${end} total=${total} />
      <p class="strip-legend"><span>${time(first.at)}</span><span>${duration(total)} ${isOver ? "in total" : "so far"}</span></p>
    </div>
    <div class="table-wrap">
      <table class="timeline">
        <caption class="unseen">Statuses of the bot, oldest first</caption>
        <thead>
          <tr>
            <th scope="col">Status</th>
            <th scope="col" class="from-2">Since</th>
            <th scope="col" class="right">Took</th>
            <th scope="col" class="right"><span class=${hasMedian ? "" : "unseen"}>Median</span></th>
            <th scope="col" class="cell-bar"><span class="unseen">Compared with the median</span></th>
          </tr>
        </thead>
        <tbody>
          ${stays.map((stay) => html`<${StayRow} key=${stay.id} stay=${stay} now=${end} />`)}
        </tbody>
      </table>
    </div>`;
}

/**
 * The whole life in one bar, to scale.
 *
 * @param {{stays: Stay[], end: number, total: number}} props
 */
function Strip({ stays, end, total }) {
  return html`
    <div class="strip" aria-hidden="true">
      ${stays.filter((stay) => !isEnd(stay.status)).map((stay) => {
        const share = ((stay.to ?? end) - stay.from) / total;
        return html`
          <span key=${stay.id} class="strip-part" data-status=${stay.status} title=${statusLabel(stay.status)}
            style=${{ flexGrow: String(Math.max(share, 0.001)) }}></span>`;
      })}
    </div>`;
}

/** @param {{stay: Stay, now: number}} props */
function StayRow({ stay, now }) {
  const isLast = stay.to === null;
  const took = isLast ? (isEnd(stay.status) ? null : Math.max(0, now - stay.from)) : /** @type {number} */ (stay.to) - stay.from;
  const isSlow = took !== null && stay.median !== null && took > stay.median * SLOW && took - stay.median > SLOW_MS_MIN && stay.status !== "active";
  return html`
    <tr class=${isLast && took !== null ? "is-current" : ""}>
      <th scope="row">
        <span class="row">
          <${StatusMark} status=${stay.status} kind="bot" />
          ${stay.reason && html`<span class="quiet">${stay.reason}</span>`}
        </span>
      </th>
      <td class="from-2">${time(stay.at)}</td>
      <td class="right">
        ${took === null ? "" : duration(took)}
        ${isSlow && html`<span class="slow"> slow</span>`}
      </td>
      <td class="right quiet">${stay.median === null || took === null ? "" : duration(stay.median)}</td>
      <td class="cell-bar">${took !== null && stay.median !== null && html`<${Compare} took=${took} median=${stay.median} isSlow=${isSlow} />`}</td>
    </tr>`;
}

/**
 * A bar for the time that it took, and a mark where the median is. Each row has its own scale: it shows how far from
 * usual the step was, and the numbers beside it how long.
 *
 * @param {{took: number, median: number, isSlow: boolean}} props
 */
function Compare({ took, median, isSlow }) {
  const scale = Math.max(took, median, 1);
  const part = (/** @type {number} */ of) => `${Math.max(2, (of / scale) * 100).toFixed(1)}%`;
  return html`
    <span class="compare" aria-hidden="true">
      <span class=${`compare-took${isSlow ? " is-slow" : ""}`} style=${{ width: part(took) }}></span>
      <span class="compare-median" style=${{ left: part(median) }}></span>
    </span>`;
}

/** @type {Record<string, string>} */
const KINDS = {
  created: "Requested",
  assigned: "Got a slot",
  requeued: "Went back to the queue",
  status_changed: "Status changed",
  command_sent: "Command sent",
  command_acknowledged: "Command acknowledged",
  warning: "Warning",
};

/** @type {Record<string, string>} */
const ACTORS = { user: "the user", bot: "the bot", operator: "an operator", greenroom: "Greenroom", keeper: "a keeper" };

/**
 * Everything that is recorded of the bot, newest first.
 *
 * @param {{events: BotEvent[]}} props
 */
export function EventList({ events }) {
  if (events.length === 0) return html`<p class="quiet">No events yet.</p>`;
  return html`
    <ol class="event-list" reversed>
      ${[...events].reverse().map((event) => html`
        <li key=${event.id}>
          <time dateTime=${event.at}>${time(event.at)}</time>
          <span class="event-what row">
            ${event.to ? html`<${StatusMark} status=${event.to} kind="bot" />` : KINDS[event.kind] ?? event.kind}
            ${event.reason && html`<span class="event-reason">${event.reason}</span>`}
          </span>
          <span class="quiet">by ${ACTORS[event.actor] ?? event.actor}</span>
        </li>`)}
    </ol>`;
}
