// The page of one pool: its size, which can be changed, a probe that proves that it works, and its slots.

import { html, useEffect, useState } from "../lib/html.js";
import { call } from "../lib/api.js";
import { ENDED, bytes, count, duration, statusLabel } from "../lib/format.js";
import { link } from "../lib/router.js";
import { ActionButton } from "../components/action.js";
import { endFacts } from "../components/explain.js";
import { useLoad } from "../components/load.js";
import { BotLink, Facts, PageHead, Waiting } from "../components/page-parts.js";
import { Timeline } from "../components/timeline.js";
import { Empty, Panel, ProblemNote } from "../components/ui.js";
import { ProviderState, SlotBar } from "./pools.js";
import { SlotList } from "./slots.js";

/** @typedef {import("../lib/types.js").Pool} Pool */
/** @typedef {import("../lib/types.js").Bot} Bot */

const EVERY_MS = 5000;
const PROBE_EVERY_MS = 1000;

/** @param {{params: Record<string, string>}} props */
export function PoolPage({ params }) {
  const { name } = params;
  const path = `/admin/pools/${encodeURIComponent(name)}`;
  const one = useLoad(() => call("GET", path), [path], EVERY_MS);
  /** @type {Pool | undefined} */
  const pool = one.data?.pool;
  const [probe, setProbe] = useState(/** @type {Bot | null} */ (null));
  const [isProbing, setProbing] = useState(false);

  if (!pool) {
    if (one.problem?.status !== 404) return html`<${Waiting} title=${name} loaded=${one} />`;
    return html`
      <div class="page">
        <${PageHead} parent=${{ label: "Pools", href: link("/pools") }} title=${name} />
        <${Empty} title="This pool does not exist"><p>It is not in the configuration. <a href=${link("/pools")}>See all pools</a>.</p><//>
      </div>`;
  }
  const actions = html`
    <${ActionButton} label="Probe the pool" method="POST" path=${`${path}/probe`} cli=${`greenroom pools probe ${pool.name}`} disabled=${isProbing}
      onDone=${(/** @type {any} */ answer) => { setProbe(answer.bot); setProbing(true); }} />`;
  const note = html`
    <span>${statusLabel(pool.platform)}</span>
    <span class="quiet">provider <${ProviderState} pool=${pool} /></span>
    ${pool.queued > 0 && html`<a href=${link("/queue")}>${count(pool.queued, "bot")} in the queue</a>`}`;
  return html`
    <div class="page">
      <${PageHead} parent=${{ label: "Pools", href: link("/pools") }} title=${pool.name} note=${note} actions=${actions} />
      ${one.problem && html`<${ProblemNote} problem=${one.problem} onRetry=${one.reload} />`}
      ${probe && html`<${Probe} key=${probe.id} bot=${probe} onEnd=${() => setProbing(false)} onClose=${() => { setProbe(null); setProbing(false); }} />`}
      <div class="page-columns">
        <div class="page-main">
          <${Panel} title="Slots" actions=${html`<a href=${link("/slots", { pool: pool.name })}>All slots of this pool</a>`}>
            <${SlotBar} pool=${pool} isLarge=${true} />
          <//>
          <${SlotList} pool=${pool.name} status="" />
        </div>
        <div class="page-side">
          <${Panel} title="Size"><${SizeForm} pool=${pool} path=${path} onDone=${one.reload} /><//>
          <${Panel} title="Facts"><${PoolFacts} pool=${pool} /><//>
        </div>
      </div>
    </div>`;
}

/** @param {{pool: Pool}} props */
function PoolFacts({ pool }) {
  return html`
    <${Facts} facts=${[
      ["Provider", pool.provider],
      ["Image", pool.image && html`<span class="id">${pool.image}</span>`],
      ["Idle slots are", pool.standby === "running" ? "hot: an agent waits inside" : "stopped: started for each bot"],
      ["Order", pool.order != null && String(pool.order)],
      ["Mean use of a slot", pool.mean_hold_ms == null ? "not yet known" : duration(pool.mean_hold_ms)],
      ["Memory of hot slots", pool.memory_bytes !== null && bytes(pool.memory_bytes)],
      ["Bots in the queue", String(pool.queued)],
    ]} />`;
}

/** @param {{pool: Pool, path: string, onDone: () => void}} props */
function SizeForm({ pool, path, onDone }) {
  const [edited, setEdited] = useState(/** @type {{max_slots?: string, min_idle?: string}} */ ({}));
  const max = edited.max_slots ?? String(pool.max_slots);
  const min = edited.min_idle ?? String(pool.min_idle);
  const error = sizeError(max, min);
  /** @type {Record<string, number>} */
  const body = {};
  if (!error && Number(max) !== pool.max_slots) body.max_slots = Number(max);
  if (!error && Number(min) !== pool.min_idle) body.min_idle = Number(min);
  const isChanged = Object.keys(body).length > 0;
  const total = Object.values(pool.slots).reduce((sum, size) => sum + size, 0);

  return html`
    <form class="size-form" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <${NumberField} label="Slots at most" name="max_slots" value=${max} onInput=${(/** @type {string} */ value) => setEdited({ ...edited, max_slots: value })} />
      <${NumberField} label="Idle slots kept ready" name="min_idle" value=${min} onInput=${(/** @type {string} */ value) => setEdited({ ...edited, min_idle: value })} />
      <p id="size-note" class=${error ? "field-error" : "quiet"} role="status">${error ?? effectOf(body, total)}</p>
      <div class="buttons">
        <${ActionButton} label="Change the size" method="PATCH" path=${path} body=${body} primary=${isChanged} disabled=${!isChanged}
          cli=${`greenroom pools set ${pool.name} ${Object.entries(body).map(([key, value]) => `${key}=${value}`).join(" ")}`}
          done="The size has changed." onDone=${() => { setEdited({}); onDone(); }} />
        ${(edited.max_slots !== undefined || edited.min_idle !== undefined) && html`<button type="button" onClick=${() => setEdited({})}>Undo</button>`}
      </div>
    </form>`;
}

/** @param {{label: string, name: string, value: string, onInput: (value: string) => void}} props */
function NumberField({ label, name, value, onInput }) {
  return html`
    <label class="field">
      <span class="label">${label} <code class="quiet">${name}</code></span>
      <input type="number" min="0" step="1" inputmode="numeric" value=${value} aria-describedby="size-note"
        onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)} />
    </label>`;
}

/**
 * @param {string} max
 * @param {string} min
 */
function sizeError(max, min) {
  if (!/^\d+$/.test(max) || !/^\d+$/.test(min)) return "Use whole numbers from 0 on.";
  if (Number(min) > Number(max)) return "A pool cannot keep more idle slots than it may have.";
  return null;
}

/**
 * What the change means, before it is made.
 *
 * @param {Record<string, number>} body
 * @param {number} total
 */
function effectOf({ max_slots, min_idle }, total) {
  if (max_slots !== undefined && max_slots < total) return `The pool has ${count(total, "slot")}. The server deletes idle ones until ${max_slots} are left; busy ones stay to the end of their bot.`;
  if (max_slots !== undefined) return `The pool can grow to ${count(max_slots, "slot")}.`;
  if (min_idle !== undefined) return `The server keeps ${count(min_idle, "idle slot")} ready.`;
  return "The new size holds until the configuration of this size changes.";
}

/**
 * Follows a probe: a demo bot that goes through a real slot of the pool, step by step.
 *
 * @param {{bot: Bot, onEnd: () => void, onClose: () => void}} props
 */
function Probe({ bot, onEnd, onClose }) {
  const path = `/admin/bots/${bot.id}`;
  const [isOver, setOver] = useState(false);
  const one = useLoad(() => call("GET", path), [path], isOver ? 0 : PROBE_EVERY_MS);
  const explanation = useLoad(() => call("GET", `${path}/explain`), [path], isOver ? 0 : PROBE_EVERY_MS);
  const events = useLoad(() => call("GET", `${path}/events`), [path], isOver ? 0 : PROBE_EVERY_MS);
  /** @type {Bot} */
  const shown = one.data?.bot ?? bot;
  const last = events.data?.events.findLast((/** @type {any} */ event) => event.to)?.to;
  useEffect(() => {
    if (!ENDED.includes(shown.status) || !ENDED.includes(last)) return;
    setOver(true);
    onEnd();
  }, [shown.status, last]);
  return html`
    <${Panel} title="Probe" class="probe" flush=${true} actions=${html`<${BotLink} id=${bot.id}>Open the bot<//><button type="button" class="small" onClick=${onClose}>Close</button>`}>
      <div class="probe-state">
        <p role="status">${probeText(shown)}</p>
        <${Facts} facts=${endFacts(shown)} />
        ${one.problem && html`<${ProblemNote} problem=${one.problem} onRetry=${one.reload} />`}
      </div>
      ${events.data && html`<${Timeline} events=${events.data.events} steps=${explanation.data?.steps ?? []} />`}
    <//>`;
}

/** @param {Bot} bot */
function probeText(bot) {
  if (bot.status === "completed") return "The pool works: the demo bot went through all steps.";
  if (bot.status === "failed") return "The pool does not work: the demo bot failed.";
  return `The demo bot is on its way through a real slot: ${statusLabel(bot.status).toLowerCase()}.`;
}
