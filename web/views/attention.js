// What needs a person, the most urgent first, each with its deadline and one button.

import { html, useState } from "../lib/html.js";
import { refreshAttention, useAttention } from "../lib/attention.js";
import { count, shortId } from "../lib/format.js";
import { link } from "../lib/router.js";
import { ActionButton } from "../components/action.js";
import { Countdown, Elapsed, Icon, Panel, ProblemNote, withCode } from "../components/ui.js";

/** @typedef {import("../lib/types.js").AttentionItem} AttentionItem */

const FIRST_SHOWN = 4;

/**
 * The view of each kind of subject.
 * @type {Record<string, (subject: string) => string>}
 */
const SUBJECTS = {
  needs_help: (id) => link(`/bots/${id}`),
  awaiting_admission: (id) => link(`/bots/${id}`),
  provider_unavailable: (pool) => link(`/pools/${pool}`),
  queue_too_long: (pool) => link(`/pools/${pool}`),
  provider_closed: () => link("/pools"),
  slot_error: (slot) => link(`/slots/${slot}`),
  keeper_late: () => link("/keepers"),
};

const IS_BOT = ["needs_help", "awaiting_admission"];

/**
 * The same call as a command, and what to say after it. `null` for a call that only reads, or that a person decides on
 * its own page: who waits for help is rarely to be stopped.
 * @param {AttentionItem} item
 * @returns {{cli: string, done: string} | null}
 */
function buttonFor({ kind, action }) {
  if (!action || action.method === "GET" || IS_BOT.includes(kind)) return null;
  const [, , group, name, verb] = action.path.split("/");
  if (group === "slots" && verb === "recover") return { cli: `greenroom slots recover ${name}`, done: "The server recovers the slot" };
  if (group === "pools") return { cli: `greenroom pools set ${name} ${settings(action.body)}`, done: "The pool has the new size" };
  if (name === "run") return { cli: `greenroom keepers run ${group}`, done: "The keeper has run" };
  return { cli: "", done: "Done" };
}

/** @param {unknown} body */
function settings(body) {
  return Object.entries(/** @type {Record<string, unknown>} */ (body ?? {})).map(([key, value]) => `${key}=${value}`).join(" ");
}

/** @type {Record<string, string>} */
const PAGE_LABELS = {
  needs_help: "Open the bot",
  awaiting_admission: "Open the bot",
  provider_unavailable: "Open the pool",
  queue_too_long: "Change the pool",
  provider_closed: "Open the pools",
  slot_error: "Open the slot",
  keeper_late: "Open the keepers",
};

export function AttentionPanel() {
  const { items, loaded, problem } = useAttention();
  const [all, setAll] = useState(false);
  if (problem && !loaded) return html`<${ProblemNote} problem=${problem} onRetry=${refreshAttention} />`;
  if (!loaded) return null;
  if (items.length === 0) {
    return html`<p class="all-good"><span class="tone-good"><${Icon} name="check" /></span>Nothing needs a person.</p>`;
  }
  const critical = items.filter(({ severity }) => severity === "critical").length;
  const shown = all ? items : items.slice(0, FIRST_SHOWN);
  const title = html`Attention <span class=${critical > 0 ? "tag bad" : "tag wait"}>${items.length}</span>`;
  const more =
    items.length > FIRST_SHOWN &&
    html`<button type="button" class="link" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? "Show less" : `Show all ${items.length}`}
    </button>`;
  return html`<${Panel} title=${title} label="Attention" actions=${more} class=${critical > 0 ? "attention critical" : "attention"} flush>
    <ul class="attention-list">${shown.map((item) => html`<${AttentionRow} key=${item.kind + item.subject} item=${item} />`)}</ul>
    <p class="unseen" role="status">${count(items.length, "item")} that need attention</p>
  <//>`;
}

/** @param {{item: AttentionItem}} props */
function AttentionRow({ item }) {
  const [icon, tone, severity] = item.severity === "critical" ? ["alert", "bad", "Critical"] : ["diamond", "wait", "Warning"];
  const href = SUBJECTS[item.kind]?.(encodeURIComponent(item.subject));
  const name = IS_BOT.includes(item.kind) ? `Bot …${shortId(item.subject)}` : item.subject;
  const button = buttonFor(item);
  return html`<li class="attention-item">
    <span class=${`mark tone-${tone}`}><${Icon} name=${icon} /><span class="severity">${severity}</span></span>
    <p class="attention-what" title=${item.message}>${withCode(item.message)}</p>
    <p class="attention-subject">${href ? html`<a class="mono" href=${href}>${name}</a>` : html`<span class="mono">${name}</span>`}</p>
    <p class="attention-time quiet">${item.since && html`for <${Elapsed} from=${item.since} />`}</p>
    <p class="attention-time">${item.deadline_at && html`<${Countdown} to=${item.deadline_at} before="deadline in" />`}</p>
    <div class="attention-action">
      ${button && item.action
        ? html`<${ActionButton}
            small label=${item.action.label} describe=${name} method=${item.action.method} path=${item.action.path} body=${item.action.body ?? undefined}
            cli=${button.cli} done=${button.done} onDone=${refreshAttention}
          />`
        : href && html`<a class="button small" href=${href} aria-label=${`${PAGE_LABELS[item.kind]}: ${name}`}>${PAGE_LABELS[item.kind]}</a>`}
    </div>
  </li>`;
}
