// The queue in the order in which bots are served, the deploy gates, what starts there, and images that are pulled.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { bytes, count, duration, number, statusLabel } from "../lib/format.js";
import { link } from "../lib/router.js";
import { useLoad, useOnChange } from "../components/load.js";
import { BotLink, TableHead } from "../components/overview-parts.js";
import { Countdown, Elapsed, Empty, Loading, Panel, ProblemNote } from "../components/ui.js";

/** @typedef {import("../lib/types.js").LiveQueueEntry} LiveQueueEntry */
/** @typedef {import("../lib/types.js").LiveGate} LiveGate */
/** @typedef {import("../lib/types.js").Deployments} Deployments */
/** @typedef {import("../lib/types.js").Pull} Pull */

const MOST_ROWS = 200;

/** The queue, and the position of each bot among those of its platform. */
function useQueue() {
  return useFleet((live) => live.queue);
}

/**
 * Positions within each platform, from 1.
 * @param {LiveQueueEntry[]} queue
 */
function withPositions(queue) {
  /** @type {Record<string, number>} */
  const last = {};
  return queue.map((entry) => ({ ...entry, position: (last[entry.platform] = (last[entry.platform] ?? 0) + 1) }));
}

/** How long bots will probably wait, by the id of the bot. The live state has no estimates. @param {LiveQueueEntry[]} queue */
function useEstimates(queue) {
  const waiting = queue.length > 0;
  const load = async () => (waiting ? (await call("GET", `/admin/queue?limit=${MOST_ROWS}`)).entries : []);
  const { data, reload } = useLoad(load, [waiting], waiting ? 5000 : 0);
  useOnChange(queue, reload, 2000);
  return new Map((data ?? []).map((/** @type {import("../lib/types.js").QueueEntry} */ entry) => [entry.bot_id, entry.estimated_wait_ms]));
}

/** What starts and what is pulled. */
function useDeployments() {
  const gates = useFleet((live) => live.gates);
  const loaded = useLoad(() => /** @type {Promise<Deployments>} */ (call("GET", "/admin/deployments")), [], 3000);
  useOnChange(gates, loaded.reload, 1000);
  return loaded;
}

export function QueuePage() {
  const { data, problem, reload } = useDeployments();
  return html`<div class="stack">
    <h1>Queue and starts</h1>
    <${QueueTable} />
    <div class="two-columns">
      <${Panel} title="Deploy gates"><${Gates} /><//>
      <${Panel} title="Image pulls"><${Pulls} pulls=${data?.pulls} /><${ProblemNote} problem=${problem} onRetry=${reload} /><//>
    </div>
    <${Starts} entries=${data?.entries} />
  </div>`;
}

/** @type {[label: string, look?: string][]} */
const QUEUE_COLUMNS = [
  ["#"], ["Bot"], ["Platform", "wide-only"], ["Pool", "wide-only"], ["Priority", "right wide-only"],
  ["Waits", "right"], ["Estimate", "right"], ["Gives up in", "right"],
];

/** @type {[label: string, look?: string][]} */
const START_COLUMNS = [["Slot"], ["State"], ["Bot"], ["For", "right"], ["Deadline in", "right"], ["Last error"]];

function QueueTable() {
  const queue = useQueue();
  const loaded = useFleet((live) => live.loaded);
  const estimates = useEstimates(queue);
  const rows = withPositions(queue).slice(0, MOST_ROWS);
  const title = html`Queue <span class="quiet num">${number(queue.length)}</span>`;
  if (!loaded) return html`<${Panel} title=${title}><${Loading} /><//>`;
  if (rows.length === 0) {
    return html`<${Panel} title=${title}>
      <${Empty} title="No bot waits for a slot">Bots come here when all slots of their platform are busy and the pools cannot grow.<//>
    <//>`;
  }
  return html`<${Panel} title=${title} flush>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Bots in the queue">
      <table>
        <${TableHead} columns=${QUEUE_COLUMNS} />
        <tbody>
          ${rows.map(
            (entry) => html`<tr key=${entry.bot_id}>
              <td class="num">${entry.position}</td>
              <th scope="row"><${BotLink} id=${entry.bot_id} /></th>
              <td class="wide-only">${statusLabel(entry.platform)}</td>
              <td class="wide-only"><a href=${link(`/pools/${entry.pool}`)}>${entry.pool}</a></td>
              <td class="right wide-only">${entry.priority}</td>
              <td class="right"><${Elapsed} from=${entry.queued_at} /></td>
              <td class="right">${estimate(estimates.get(entry.bot_id))}</td>
              <td class="right"><${Countdown} to=${entry.timeout_at} /></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${queue.length > rows.length && html`<p class="panel-note quiet">And ${count(queue.length - rows.length, "more bot")}.</p>`}
  <//>`;
}

/** An estimate is not exact to the second. @param {number | null | undefined} ms */
function estimate(ms) {
  if (ms === null || ms === undefined) return "–";
  const unit = ms < 60_000 ? 1000 : 60_000;
  return "about " + duration(Math.max(unit, Math.round(ms / unit) * unit));
}

/**
 * The estimate, or how long the bot has waited where there is none.
 * @param {LiveQueueEntry} entry
 * @param {number | null | undefined} ms
 */
function expected(entry, ms) {
  return ms === null || ms === undefined ? html`waits <${Elapsed} from=${entry.queued_at} />` : estimate(ms);
}

/** The first bots of the queue, for the overview. */
export function QueuePanel() {
  const queue = useQueue();
  const estimates = useEstimates(queue);
  const rows = withPositions(queue).slice(0, 6);
  const title = html`Queue <span class="quiet num">${number(queue.length)}</span>`;
  return html`<${Panel} title=${title} actions=${html`<a href=${link("/queue")}>All</a>`} flush>
    ${rows.length === 0
      ? html`<p class="panel-note quiet">No bot waits for a slot.</p>`
      : html`<ol class="rows">
          ${rows.map(
            (entry) => html`<li key=${entry.bot_id} class="queue-row">
              <span class="position" title="Position on its platform">${entry.position}</span>
              <span class="row-main">
                <${BotLink} id=${entry.bot_id} />
                <span class="quiet truncate">${statusLabel(entry.platform)} · ${expected(entry, estimates.get(entry.bot_id))}</span>
              </span>
              <span class="row-end" title="Gives up in"><${Countdown} to=${entry.timeout_at} /></span>
            </li>`,
          )}
        </ol>`}
    ${queue.length > rows.length && html`<p class="panel-note quiet">And ${count(queue.length - rows.length, "more bot")}.</p>`}
  <//>`;
}

/** Gates and pulls, for the overview. */
export function StartsPanel() {
  const { data } = useDeployments();
  return html`<${Panel} title="Deploy gates" actions=${html`<a href=${link("/queue")}>All</a>`}>
    <${Gates} />
    ${(data?.pulls ?? []).length > 0 && html`<h3 class="pulls-title">Image pulls</h3><${Pulls} pulls=${data?.pulls} />`}
  <//>`;
}

/** How full each gate is, and how many slots wait there. */
export function Gates() {
  const gates = useFleet((live) => live.gates);
  if (gates.length === 0) return html`<p class="quiet">No host has a gate yet.</p>`;
  return html`<ul class="gates">${gates.map((gate) => html`<${Gate} key=${gate.host} gate=${gate} />`)}</ul>`;
}

/** @param {{gate: LiveGate}} props */
function Gate({ gate }) {
  const places = Math.min(gate.max_concurrent, 24);
  const waiting = gate.queued > 0 && html`, <span class="tone-wait">${number(gate.queued)} waiting</span>`;
  return html`<li class="gate">
    <span class="truncate" title=${gate.host}>${gate.host}</span>
    <span class="gate-places" aria-hidden="true">
      ${Array.from({ length: places }, (_, index) => html`<span class=${index < gate.active ? "place taken" : "place"}></span>`)}
    </span>
    <span class="quiet num">${gate.active} of ${gate.max_concurrent}${waiting}</span>
  </li>`;
}

/** @param {{pulls: Pull[] | undefined}} props */
function Pulls({ pulls }) {
  if (!pulls) return null;
  if (pulls.length === 0) return html`<p class="quiet">No host pulls an image.</p>`;
  return html`<ul class="pulls">
    ${pulls.map((pull) => {
      const share = pull.bytes > 0 ? Math.min(100, Math.round((100 * pull.bytes_done) / pull.bytes)) : 0;
      const size = `${bytes(pull.bytes_done)} of ${bytes(pull.bytes)}`;
      const progress = `${pull.host} · ${size} · layer ${pull.layers_done} of ${pull.layers}`;
      return html`<li key=${pull.host + pull.image}>
        <p class="spread"><span class="mono truncate" title=${pull.image}>${pull.image}</span><span class="num">${share} %</span></p>
        <div
          class="meter" role="progressbar" aria-label=${`Pull of ${pull.image} on ${pull.host}`}
          aria-valuenow=${share} aria-valuemin="0" aria-valuemax="100"
        ><span style=${{ width: `${share}%` }}></span></div>
        <p class="quiet">${progress} · <${Elapsed} from=${pull.since} /></p>
      </li>`;
    })}
  </ul>`;
}

/** @param {{entries: Deployments["entries"] | undefined}} props */
function Starts({ entries }) {
  if (!entries) return null;
  const title = html`Starts <span class="quiet num">${number(entries.length)}</span>`;
  if (entries.length === 0) {
    return html`<${Panel} title=${title}>
      <${Empty} title="No slot starts now">Slots that start, or wait at a gate to start, are listed here.<//>
    <//>`;
  }
  return html`<${Panel} title=${title} flush>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Slots that start">
      <table>
        <${TableHead} columns=${START_COLUMNS} />
        <tbody>
          ${entries.slice(0, MOST_ROWS).map(
            (entry) => html`<tr key=${entry.slot}>
              <th scope="row"><a class="mono" href=${link(`/slots/${entry.slot}`)}>${entry.slot}</a></th>
              <td>${entry.state === "active" ? html`<span class="tag progress">starting</span>` : html`<span class="tag wait">waits at the gate</span>`}</td>
              <td>${entry.bot_id ? html`<${BotLink} id=${entry.bot_id} />` : html`<span class="quiet">none</span>`}</td>
              <td class="right"><${Elapsed} from=${entry.asked_at} /></td>
              <td class="right"><${Countdown} to=${entry.timeout_at} /></td>
              <td class="break">${entry.last_error ?? "–"}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  <//>`;
}
