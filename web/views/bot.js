// The page of one bot: its state, why it is there, its time line, its words, its evidence, and what can be done.

import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { call, quoted } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { ENDED, ago, duration, lasted, statusLabel, time, useNow } from "../lib/format.js";
import { link } from "../lib/router.js";
import { base, useSession } from "../lib/session.js";
import { ActionButton } from "../components/action.js";
import { BotLog, Screenshot } from "../components/evidence.js";
import { Explain } from "../components/explain.js";
import { useLoad, useOnBotChange, withQuery } from "../components/load.js";
import { Facts, PageHead, PoolLink, SlotLink, Waiting } from "../components/page-parts.js";
import { EventList, Timeline } from "../components/timeline.js";
import { Transcript } from "../components/transcript.js";
import { Copyable, Countdown, Empty, Loading, OutsideLink, Panel, ProblemNote, StatusMark } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Bot} Bot */
/** @typedef {import("../lib/types.js").BotEvent} BotEvent */

/** Changes arrive with the live state; this is for what it does not tell, such as the queue position. */
const EVERY_MS = 5000;

/** @param {{params: Record<string, string>}} props */
export function BotPage({ params }) {
  const { id } = params;
  const session = useSession();
  const path = `${base()}/bots/${encodeURIComponent(id)}`;
  const [isOver, setOver] = useState(false);
  const every = isOver ? 0 : EVERY_MS;

  const one = useLoad(() => call("GET", path), [path], every);
  const explanation = useLoad(() => call("GET", `${path}/explain`), [path], every);
  const events = useLoad(() => readEvents(`${path}/events`), [path], every);
  /** @type {Bot | undefined} */
  const bot = one.data?.bot;

  const live = useFleet((fleet) => fleet.bots.get(id));
  const reloadAll = () => { one.reload(); explanation.reload(); events.reload(); };
  useOnBotChange(id, reloadAll, 500);
  const wasRunning = useRef(false);
  useEffect(() => {
    if (!bot) return;
    const hasEnded = ENDED.includes(bot.status);
    setOver(hasEnded);
    // The last answers may be from just before the end, and nothing is read again after it.
    if (hasEnded && wasRunning.current) reloadAll();
    wasRunning.current = !hasEnded;
  }, [bot?.status]);

  if (!bot) {
    if (one.problem?.status !== 404) return html`<${Waiting} title="Bot" loaded=${one} />`;
    return html`
      <div class="page">
        <${PageHead} parent=${{ label: "Bots", href: link("/bots") }} title="No such bot" />
        <${Empty} title="There is no bot with this id">
          <p>It may have been deleted. <a href=${link("/bots")}>See all bots</a>, or <a href=${link("/search", { q: id })}>search for ${id}</a>.</p>
        <//>
      </div>`;
  }

  const isOperator = session?.kind === "operator";
  const end = events.data?.findLast((event) => ENDED.includes(event.to ?? ""));
  const shown = { ...bot, status: newestStatus(bot.status, live?.status, end?.to) };
  const since = ENDED.includes(shown.status) ? bot.end_time ?? end?.at ?? bot.status_since : live?.since ?? bot.status_since ?? explanation.data?.since;
  const steps = explanation.data?.steps ?? [];
  return html`
    <div class="page">
      <${BotHead} bot=${shown} path=${path} since=${since} until=${bot.deadline_at ?? explanation.data?.until} onDone=${reloadAll} />
      ${one.problem && html`<${ProblemNote} problem=${one.problem} onRetry=${one.reload} />`}
      <div class="page-columns">
        <div class="page-main">
          <${Explain} title="Why" loaded=${explanation} bot=${shown} />
          <${Panel} title="Time line" flush=${true}>
            ${events.data ? html`<${Timeline} events=${events.data} steps=${steps} />`
              : events.problem ? html`<${ProblemNote} problem=${events.problem} onRetry=${events.reload} />` : html`<${Loading} />`}
          <//>
          <${Panel} title="Transcript"><${Transcript} path=${`${path}/transcript`} isOver=${isOver} /><//>
          <${Panel} title="Last lines of its log"><${BotLog} path=${`${path}/logs`} isOver=${isOver} /><//>
        </div>
        <div class=${`page-side${shown.status === "needs_help" ? " evidence-first" : ""}`}>
          <${Panel} title="Facts"><${BotFacts} bot=${shown} isOperator=${isOperator} /><//>
          ${isOperator && html`<${Panel} title="Last screenshot" class="evidence"><${Screenshot} path=${`${path}/screenshot`} isOver=${isOver} /><//>`}
          <${Panel} title="Configuration"><${ConfigEditor} bot=${shown} path=${path} isOver=${isOver} onDone=${reloadAll} /><//>
          <${Panel} title="Events">${events.data ? html`<${EventList} events=${events.data} />` : html`<${Loading} />`}<//>
        </div>
      </div>
    </div>`;
}

/**
 * The answers of a page arrive one by one, and each may be newer than the others. An end is final, so the first answer
 * that tells of it is right: the head of the page never offers to stop a bot whose time line is complete.
 *
 * @param {Bot["status"]} read
 * @param {string | undefined} live
 * @param {string | null | undefined} end the status that the last event tells, if it is an end
 * @returns {Bot["status"]}
 */
function newestStatus(read, live, end) {
  const known = [read, live, end];
  return /** @type {Bot["status"]} */ (known.find((status) => status && ENDED.includes(status)) ?? live ?? read);
}

/**
 * All events of a bot, page by page.
 *
 * @param {string} path
 */
async function readEvents(path) {
  /** @type {BotEvent[]} */
  const events = [];
  let cursor;
  do {
    const answer = await call("GET", withQuery(path, { limit: 1000, cursor }));
    events.push(...answer.events);
    cursor = answer.next_cursor;
  } while (cursor);
  return events;
}

/**
 * What the deadline of a status is for.
 *
 * @type {Record<string, string>}
 */
const DEADLINES = {
  scheduled: "gets its slot in",
  queued: "leaves the queue in",
  deploying: "must have started in",
  starting: "must be in the meeting in",
  awaiting_admission: "must be admitted in",
  needs_help: "must be helped in",
  active: "next heartbeat within",
  stopping: "is ended in",
};

/** @param {{bot: Bot, path: string, since: string | number | null | undefined, until: string | null | undefined, onDone: () => void}} props */
function BotHead({ bot, path, since, until, onDone }) {
  useNow(1000);
  const isOver = ENDED.includes(bot.status);
  // With the end the button to stop goes away. Who used it goes on from the content, and not from the top of the page.
  useEffect(() => {
    if (isOver && document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
  }, [isOver]);
  const note = html`
    <span role="status"><${StatusMark} status=${bot.status} kind="bot" /></span>
    ${since && html`<span class="quiet">${isOver ? ago(since) : `for ${lasted(since)}`}</span>`}
    ${until && !isOver && html`<${Countdown} to=${until} before=${DEADLINES[bot.status] ?? "deadline in"} />`}
    ${bot.queue_position && html`<span>position ${bot.queue_position} in the queue</span>`}
    ${bot.estimated_wait_ms != null && html`<span class="quiet">about ${duration(bot.estimated_wait_ms)} to wait</span>`}
    <${OutsideLink} href=${bot.meeting_url}>${statusLabel(bot.platform)} ${bot.native_meeting_id}<//>`;
  const actions = html`
    <${ActionButton} label=${bot.status === "stopping" ? "Stop again" : "Stop"} method="DELETE" path=${path} cli=${`greenroom bots stop ${bot.id}`}
      danger=${true} done="The bot was asked to leave." onDone=${onDone} />`;
  return html`
    <${PageHead} parent=${{ label: "Bots", href: link("/bots") }} title=${bot.bot_display_name || `Bot in ${bot.native_meeting_id}`}
      note=${note} actions=${isOver ? null : actions} />`;
}

/** @param {{bot: Bot, isOperator: boolean}} props */
function BotFacts({ bot, isOperator }) {
  const isProbe = bot.metadata?.probe === true;
  const user = useLoad(() => (isOperator && !isProbe ? call("GET", `/admin/users/${bot.user_id}`) : Promise.resolve(null)), [bot.user_id, isOperator]);
  /** @type {import("../lib/types.js").User | undefined} */
  const owner = user.data?.user;
  const session = bot.sessions?.at(-1);
  const [joined, heartbeat] = [session?.joined_at, session?.last_heartbeat_at];
  return html`
    <${Facts} facts=${[
      ["Id", html`<${Copyable} text=${bot.id} label="the id" />`],
      ["Meeting", html`<${OutsideLink} href=${bot.meeting_url} />`],
      ["Platform", statusLabel(bot.platform)],
      ["Display name", bot.bot_display_name],
      ["User", isOperator && (isProbe ? "none: it is a probe of the pool" : owner ? html`${owner.name} <span class="quiet">${owner.email}</span>` : html`<span class="id">${bot.user_id}</span>`)],
      ["Pool", bot.pool && (isOperator ? html`<${PoolLink} name=${bot.pool} />` : bot.pool)],
      ["Slot", bot.slot && (isOperator ? html`<${SlotLink} name=${bot.slot} />` : bot.slot)],
      ["Priority", String(bot.priority)],
      ["Requested", time(bot.created_at)],
      ["Join at", bot.join_at && time(bot.join_at)],
      ["Started", bot.start_time && time(bot.start_time)],
      ["In the meeting", joined && time(joined)],
      ["Ended", bot.end_time && time(bot.end_time)],
      ["Last heartbeat", heartbeat && !bot.end_time && ago(heartbeat)],
      ["Sessions", bot.sessions && bot.sessions.length > 1 && String(bot.sessions.length)],
      ["Container", bot.container_id && html`<span class="id">${bot.container_id}</span>`],
      ["Requirements", bot.requirements && html`<code class="json">${JSON.stringify(bot.requirements)}</code>`],
      ["Metadata", Object.keys(bot.metadata ?? {}).length > 0 && html`<code class="json">${JSON.stringify(bot.metadata)}</code>`],
    ]} />`;
}

/**
 * Shows the configuration; while the bot runs, it can be replaced.
 *
 * @param {{bot: Bot, path: string, isOver: boolean, onDone: () => void}} props
 */
function ConfigEditor({ bot, path, isOver, onDone }) {
  const stored = useMemo(() => JSON.stringify(bot.config ?? {}, null, 2), [JSON.stringify(bot.config)]);
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const parsed = useMemo(() => parseConfig(text ?? stored), [text, stored]);

  if (text === null) {
    return html`
      ${stored === "{}" ? html`<p class="quiet">The configuration is empty.</p>` : html`<pre tabindex="0" aria-label="Configuration of the bot">${stored}</pre>`}
      ${!isOver && html`<button type="button" class="small" onClick=${() => setText(stored)}>Change the configuration</button>`}`;
  }
  return html`
    <form class="config-form" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label for="config-text">New configuration, as JSON. It replaces the old one.</label>
      <textarea id="config-text" rows="10" spellcheck=${false} value=${text} aria-invalid=${parsed.error ? "true" : "false"} aria-describedby="config-error"
        onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>
      <p id="config-error" class="field-error" role="status">${parsed.error ?? ""}</p>
      <div class="buttons">
        <${ActionButton} label="Send to the bot" method="PUT" path=${`${path}/config`} body=${{ config: parsed.value }} disabled=${Boolean(parsed.error)} primary=${true}
              cli=${`greenroom bots config ${bot.id} ${quoted(JSON.stringify(parsed.value))}`}
              done="The bot gets the new configuration." onDone=${() => { setText(null); onDone(); }} />
        <button type="button" onClick=${() => setText(null)}>Cancel</button>
      </div>
    </form>`;
}

/**
 * @param {string} text
 * @returns {{value: unknown, error: string | null}}
 */
function parseConfig(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { value: null, error: `This is not JSON yet: ${placeOf(text, /** @type {Error} */ (error).message)}` };
  }
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? { value, error: null } : { value: null, error: "The configuration must be an object: { … }." };
}

/**
 * The message of the parser with a line and a column, where it only has a position.
 *
 * @param {string} text
 * @param {string} message
 */
function placeOf(text, message) {
  const found = /position (\d+)/.exec(message);
  if (!found || /line \d+/.test(message)) return message;
  const before = text.slice(0, Number(found[1])).split("\n");
  return `${message} (line ${before.length}, column ${(before.at(-1) ?? "").length + 1})`;
}
