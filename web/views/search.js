// Finds bots by id, meeting, name or slot, and slots and pools by name. Live bots and slots come from the live state, others from
// the newest bots of the API.

import { html, useMemo } from "../lib/html.js";
import { call } from "../lib/api.js";
import { fleet, useFleet } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { link, setQuery } from "../lib/router.js";
import { TextField, useText } from "../components/filters.js";
import { useLoad, withQuery } from "../components/load.js";
import { PageHead, PoolLink, SlotLink } from "../components/page-parts.js";
import { Empty, Loading, Panel, ProblemNote, StatusMark } from "../components/ui.js";
import { BotTable } from "./bots.js";

/** @typedef {import("../lib/types.js").Bot} Bot */

/** So many of the newest bots are searched. */
const NEWEST = 1000;
const SHOWN_MAX = 50;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** @param {{query: Record<string, string>}} props */
export function SearchPage({ query }) {
  const [text, setText] = useText(query.q ?? "");
  const wanted = (query.q ?? "").trim().toLowerCase();
  const isLive = useFleet((live) => live.loaded);
  const loaded = useLoad(() => (wanted ? findBots(wanted) : Promise.resolve([])), [wanted, isLive]);
  const slots = useMemo(() => (wanted ? [...fleet.slots.keys()].filter((name) => name.includes(wanted)) : []), [wanted, isLive]);
  const pools = useMemo(() => (wanted ? fleet.pools.filter((pool) => pool.name.includes(wanted)) : []), [wanted, isLive]);
  const bots = loaded.data ?? [];
  const isNothing = wanted && loaded.data && bots.length + slots.length + pools.length === 0;

  return html`
    <div class="page">
      <${PageHead} title="Search" />
      <form class="filters" role="search" aria-label="Search" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); setQuery({ q: text }); }}>
        <${TextField} label="Id, meeting link, name or slot" value=${text} onInput=${setText} />
      </form>
      ${!wanted && html`<${Empty} title="What do you look for?"><p>The id of a bot or a part of it, the link of a meeting, or the name of a slot or a pool.</p><//>`}
      ${wanted && !loaded.data && !loaded.problem && html`<${Loading} />`}
      ${loaded.problem && html`<${ProblemNote} problem=${loaded.problem} onRetry=${loaded.reload} />`}
      ${isNothing && html`
        <${Empty} title=${`Nothing found for “${query.q}”`}>
          <p>The newest ${NEWEST} bots, all bots that run, and all slots and pools were searched. An older bot is found by its whole id.</p>
          ${/^https?:\/\//.test(wanted) && html`<p><a href=${link("/start", { link: query.q })}>Start a bot in this meeting</a></p>`}
        <//>`}
      ${bots.length > 0 && html`
        <${Panel} title=${`${count(bots.length, "bot")}${bots.length > SHOWN_MAX ? `, the newest ${SHOWN_MAX} of them` : ""}`} flush=${true}>
          <${BotTable} rows=${bots.slice(0, SHOWN_MAX)} isOperator=${true} isFramed=${false} caption="Bots that were found" />
        <//>`}
      ${slots.length > 0 && html`
        <${Panel} title=${count(slots.length, "slot")}>
          <ul class="found-list">${slots.slice(0, SHOWN_MAX).map((name) => html`<li key=${name}><${SlotLink} name=${name} /> <${FoundSlot} name=${name} /></li>`)}</ul>
          ${slots.length > SHOWN_MAX && html`<p><a href=${link("/slots", { q: wanted })}>All ${slots.length} slots</a></p>`}
        <//>`}
      ${pools.length > 0 && html`
        <${Panel} title=${count(pools.length, "pool")}>
          <ul class="found-list">${pools.map((pool) => html`<li key=${pool.name}><${PoolLink} name=${pool.name} /></li>`)}</ul>
        <//>`}
    </div>`;
}

/** @param {{name: string}} props */
function FoundSlot({ name }) {
  const status = useFleet((live) => live.slots.get(name)?.status);
  return status ? html`<${StatusMark} status=${status} kind="slot" />` : null;
}

/**
 * Bots that match: by their whole id, among those that run, and among the newest. Newest first.
 *
 * @param {string} wanted
 * @returns {Promise<Bot[]>}
 */
async function findBots(wanted) {
  if (UUID.test(wanted)) {
    const bot = await readBot(wanted);
    return bot ? [bot] : [];
  }
  const newest = call("GET", withQuery("/admin/bots", { limit: NEWEST })).then((answer) => /** @type {Bot[]} */ (answer.bots).filter((bot) => matches(bot, wanted)));
  const running = [...fleet.bots.values()].filter((bot) => bot.id.includes(wanted) || bot.slot?.includes(wanted)).slice(0, SHOWN_MAX);
  const found = await newest;
  const known = new Set(found.map((bot) => bot.id));
  const older = await Promise.all(running.filter((bot) => !known.has(bot.id)).map((bot) => readBot(bot.id)));
  return [...found, ...older.filter((bot) => bot !== null)].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
}

/**
 * @param {string} id
 * @returns {Promise<Bot | null>}
 */
async function readBot(id) {
  try {
    return (await call("GET", `/admin/bots/${id}`)).bot;
  } catch (problem) {
    if (/** @type {any} */ (problem).status === 404) return null;
    throw problem;
  }
}

/**
 * @param {Bot} bot
 * @param {string} wanted
 */
function matches(bot, wanted) {
  const meeting = bot.native_meeting_id.toLowerCase();
  // A link may carry more than the meeting's id, such as the account of the person who copied it.
  if (meeting.length >= 6 && wanted.includes(meeting)) return true;
  return [bot.id, bot.meeting_url, meeting, bot.bot_display_name, bot.slot].some((value) => value?.toLowerCase().includes(wanted));
}
