// The page of one slot: its state, why it is there, what failed in it, the bots that ran there, and what can be done.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { bytes, duration, lasted, time, useNow } from "../lib/format.js";
import { link } from "../lib/router.js";
import { ActionButton } from "../components/action.js";
import { Explain } from "../components/explain.js";
import { useLoad, useOnChange } from "../components/load.js";
import { BotLink, Facts, PageHead, PoolLink, Waiting } from "../components/page-parts.js";
import { Countdown, Empty, Panel, StatusMark } from "../components/ui.js";
import { BotTable } from "./bots.js";
import { SLOT_ACTIONS } from "./slots.js";

/** @typedef {import("../lib/types.js").Slot} Slot */
/** @typedef {import("../lib/types.js").Schemas["Failure"]} Failure */

const EVERY_MS = 10_000;

/**
 * What the deadline of a status is for.
 *
 * @type {Record<string, string>}
 */
const DEADLINES = { creating: "must be ready in", error: "next recovery in" };

/** @param {{params: Record<string, string>}} props */
export function SlotPage({ params }) {
  const { name } = params;
  const path = `/admin/slots/${encodeURIComponent(name)}`;
  const one = useLoad(() => call("GET", path), [path], EVERY_MS);
  const explanation = useLoad(() => call("GET", `${path}/explain`), [path], EVERY_MS);
  const live = useFleet((fleet) => fleet.slots.get(name));
  const reloadAll = () => { one.reload(); explanation.reload(); };
  useOnChange(live, reloadAll, 500);

  /** @type {Slot | undefined} */
  const slot = one.data?.slot;
  if (!slot || one.problem?.status === 404) {
    return one.problem?.status === 404
      ? html`<${GoneSlot} name=${name} explanation=${explanation} />`
      : html`<${Waiting} title=${name} loaded=${one} />`;
  }
  const shown = live ? { ...slot, status: live.status, hot: live.hot, bot_id: live.bot_id ?? null } : slot;
  /** @type {Failure[]} */
  const failures = one.data.failures ?? [];
  /** @type {import("./bots.js").BotRow[] | undefined} */
  const bots = one.data.bots;
  return html`
    <div class="page">
      <${SlotHead} slot=${shown} since=${live?.since ?? slot.status_since ?? explanation.data?.since} path=${path}
        until=${slot.deadline_at === undefined ? explanation.data?.until : slot.deadline_at} onDone=${reloadAll} />
      <div class="page-columns">
        <div class="page-main">
          <${Explain} title="Why" loaded=${explanation} />
          <${Panel} title="Failures"><${Failures} failures=${failures} /><//>
          ${bots && html`
            <${Panel} title="Bots that ran here" flush=${bots.length > 0}>
              ${bots.length > 0 ? html`<${BotTable} rows=${bots} isOperator=${true} isFramed=${false} hasSlot=${false} caption="Bots that ran in this slot, newest first" />`
                : html`<p class="quiet">No bot has run here yet.</p>`}
            <//>`}
        </div>
        <div class="page-side">
          <${Panel} title="Facts"><${SlotFacts} slot=${shown} /><//>
          <${Panel} title="What happened"><${Steps} steps=${explanation.data?.steps ?? []} /><//>
        </div>
      </div>
    </div>`;
}

/** @param {{slot: Slot, since: string | number | null | undefined, until: string | null | undefined, path: string, onDone: () => void}} props */
function SlotHead({ slot, since, until, path, onDone }) {
  useNow(1000);
  const note = html`
    <${StatusMark} status=${slot.status} kind="slot" />
    ${since && html`<span class="quiet">for ${lasted(since)}</span>`}
    ${slot.hot && html`<span class="tag good">hot</span>`}
    ${until && html`<${Countdown} to=${until} before=${DEADLINES[slot.status] ?? "deadline in"} />`}
    ${slot.bot_id && html`<span>bot <${BotLink} id=${slot.bot_id} /></span>`}`;
  const { drain, delete: remove } = SLOT_ACTIONS;
  const actions = html`
    ${slot.status === "error" && html`
      <${ActionButton} label="Recover" method="POST" path=${`${path}/recover`} cli=${`greenroom slots recover ${slot.name}`} done="The slot is being recovered." onDone=${onDone} />`}
    ${slot.status !== "draining" && html`
      <${ActionButton} label="Drain" method="POST" path=${`${path}/drain`} cli=${`greenroom slots drain ${slot.name}`} done="The slot takes no more bots." onDone=${onDone}
        confirm=${{ title: `Drain ${slot.name}?`, text: drain.explanation, button: "Drain the slot" }} />`}
    <${ActionButton} label="Delete" method="DELETE" path=${path} cli=${`greenroom slots delete ${slot.name}`} danger=${true} done="The slot is being deleted." onDone=${onDone}
      confirm=${{ title: `Delete ${slot.name}?`, text: remove.explanation, button: "Delete the slot", danger: true }} />`;
  return html`<${PageHead} parent=${{ label: "Slots", href: link("/slots", { pool: slot.pool }) }} title=${slot.name} note=${note} actions=${actions} />`;
}

/** @param {{slot: Slot}} props */
function SlotFacts({ slot }) {
  const { cpu, mem, instance_type, resource_class, usage_class } = slot.attributes ?? {};
  return html`
    <${Facts} facts=${[
      ["Error", slot.status === "error" && slot.error_message],
      ["Pool", html`<${PoolLink} name=${slot.pool} />`],
      ["Description", slot.description],
      ["Id at the provider", slot.provider_ref && html`<span class="id">${slot.provider_ref}</span>`],
      ["Release", slot.release && html`<span class="id">${slot.release}</span>`],
      ["Recovery attempts", slot.recovery_attempts > 0 && `${slot.recovery_attempts} so far`],
      ["Memory", slot.memory_bytes !== null && bytes(slot.memory_bytes)],
      ["Processors", cpu > 0 && String(cpu)],
      ["Memory of the machine", mem > 0 && bytes(mem * 1024 * 1024)],
      ["Instance type", instance_type],
      ["Resource class", resource_class],
      ["Usage class", usage_class],
      ["Usable until", slot.threshold && time(slot.threshold)],
      ["Last used", slot.last_used_at ? time(slot.last_used_at) : "never"],
      ["Created", time(slot.created_at)],
    ]} />`;
}

/** @param {{failures: Failure[]}} props */
function Failures({ failures }) {
  if (failures.length === 0) return html`<p class="quiet">Nothing has failed in this slot.</p>`;
  return html`
    <ol class="failures" reversed>
      ${failures.map((failure, number) => html`
        <li key=${failure.at}>
          <p><time class="quiet" dateTime=${failure.at}>${time(failure.at)}</time> ${failure.bot_id && html`<span class="quiet">bot <${BotLink} id=${failure.bot_id} /></span>`}</p>
          <p class="failure-words">${failure.words}</p>
          ${failure.log && html`
            <details open=${number === 0}>
              <summary>Last lines</summary>
              <pre tabindex="0">${failure.log}</pre>
            </details>`}
        </li>`)}
    </ol>`;
}

/** @param {{steps: import("../lib/types.js").Schemas["Step"][]}} props */
function Steps({ steps }) {
  if (steps.length === 0) return html`<p class="quiet">Nothing is recorded.</p>`;
  return html`
    <ol class="event-list" reversed>
      ${[...steps].reverse().map((step, number) => html`
        <li key=${`${step.at} ${number}`}>
          <time dateTime=${step.at}>${time(step.at)}</time>
          <span class="event-what">${step.what}</span>
          ${step.took_ms !== null && html`<span class="quiet">${duration(step.took_ms)}</span>`}
        </li>`)}
    </ol>`;
}

/** @param {{name: string, explanation: import("../components/load.js").Loaded<import("../lib/types.js").Explanation>}} props */
function GoneSlot({ name, explanation }) {
  return html`
    <div class="page">
      <${PageHead} parent=${{ label: "Slots", href: link("/slots") }} title=${name} />
      <${Empty} title="This slot does not exist">
        <p>It was deleted, or never existed. <a href=${link("/slots")}>See all slots</a>.</p>
      <//>
      ${explanation.data && html`
        <${Explain} title="What is known of it" loaded=${explanation} />
        <${Panel} title="What happened"><${Steps} steps=${explanation.data.steps} /><//>`}
    </div>`;
}
