// The lobby board: bots that wait to be admitted or that need help, how long, in which meeting, and until when.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { number, shortId } from "../lib/format.js";
import { link } from "../lib/router.js";
import { useLoad, useOnChange } from "../components/load.js";
import { StopButton } from "../components/overview-parts.js";
import { Countdown, Elapsed, Empty, Loading, OutsideLink, Panel, StatusMark } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Bot} Bot */
/** @typedef {import("../lib/types.js").LiveBot} LiveBot */

const STATUSES = ["needs_help", "awaiting_admission"];

/** Bots in the lobby, those that need help first, then by how long they wait; and what the API says of each. */
function useLobby() {
  const { loaded, bots } = useFleet(lobbyBots);
  const ids = bots.map(({ id }) => id).join();
  const some = bots.length > 0;
  const { data, reload } = useLoad(
    async () => {
      if (!some) return [];
      const answers = await Promise.all(STATUSES.map((status) => call("GET", `/admin/bots?status=${status}&limit=100`)));
      return /** @type {Bot[]} */ (answers.flatMap((answer) => answer.bots));
    },
    [some],
    some ? 10_000 : 0,
  );
  useOnChange(ids, reload, 2000);
  return { loaded, bots, details: new Map((data ?? []).map((bot) => [bot.id, bot])) };
}

/**
 * The bots that were found with these counts, which are a new object after each change of a bot.
 * @type {{counts: Record<string, number> | null, bots: LiveBot[]}}
 */
const remembered = { counts: null, bots: [] };

/** @param {typeof import("../lib/fleet.js").fleet} live */
function lobbyBots(live) {
  const n = STATUSES.reduce((sum, status) => sum + (live.botCounts[status] ?? 0), 0);
  // Most of the time nobody is in the lobby, and the bots need not be searched.
  if (n === 0) return { loaded: live.loaded, bots: NONE };
  if (remembered.counts !== live.botCounts) {
    const found = [];
    for (const bot of live.bots.values()) if (STATUSES.includes(bot.status)) found.push(bot);
    found.sort((a, b) => STATUSES.indexOf(a.status) - STATUSES.indexOf(b.status) || a.since - b.since);
    const same = found.length === remembered.bots.length && found.every((bot, index) => bot === remembered.bots[index]);
    Object.assign(remembered, { counts: live.botCounts, bots: same ? remembered.bots : found });
  }
  return { loaded: live.loaded, bots: remembered.bots };
}

/** @type {LiveBot[]} */
const NONE = [];

export function LobbyPage() {
  const { loaded, bots, details } = useLobby();
  return html`<div class="stack">
    <h1>Lobby</h1>
    ${!loaded
      ? html`<${Loading} />`
      : bots.length === 0
        ? html`<${Panel} title="Waiting for people">
            <${Empty} title="No bot waits in a lobby">
              A bot comes here while it waits for the host of its meeting to admit it, or when it needs help.
            <//>
          <//>`
        : html`<ul class="lobby-board">${bots.map((bot) => html`<${LobbyCard} key=${bot.id} bot=${bot} details=${details.get(bot.id)} />`)}</ul>`}
  </div>`;
}

/** @param {{bot: LiveBot, details: Bot | undefined}} props */
function LobbyCard({ bot, details }) {
  const name = details?.bot_display_name ?? `Bot …${shortId(bot.id)}`;
  return html`<li class=${bot.status === "needs_help" ? "lobby-card help" : "lobby-card"}>
    <div class="spread"><${StatusMark} status=${bot.status} /><span class="lobby-time"><${Elapsed} from=${bot.since} /></span></div>
    <h2 class="break"><a href=${link(`/bots/${bot.id}`)}>${name}</a></h2>
    <p class="truncate">${details ? html`<${OutsideLink} href=${details.meeting_url} />` : html`<span class="quiet">…</span>`}</p>
    ${details?.reason && html`<p class="quiet break">${details.reason}</p>`}
    <div class="spread lobby-end">
      ${details?.deadline_at
        ? html`<${Countdown} to=${details.deadline_at} warnMs=${120_000} before="Gives up in" />`
        : html`<span class="quiet mono">${bot.slot ?? ""}</span>`}
      <${StopButton} id=${bot.id} name=${name} path=${`/admin/bots/${bot.id}`} />
    </div>
  </li>`;
}

/** The longest waits, for the overview. */
export function LobbyPanel() {
  const { bots, details } = useLobby();
  const rows = bots.slice(0, 6);
  const title = html`Lobby <span class="quiet num">${number(bots.length)}</span>`;
  return html`<${Panel} title=${title} actions=${html`<a href=${link("/lobby")}>All</a>`} flush>
    ${rows.length === 0
      ? html`<p class="panel-note quiet">No bot waits in a lobby.</p>`
      : html`<ul class="rows">
          ${rows.map((bot) => html`<${LobbyRow} key=${bot.id} bot=${bot} details=${details.get(bot.id)} />`)}
        </ul>`}
    ${bots.length > rows.length && html`<p class="panel-note quiet">And ${number(bots.length - rows.length)} more.</p>`}
  <//>`;
}

/** @param {{bot: LiveBot, details: Bot | undefined}} props */
function LobbyRow({ bot, details }) {
  const name = details?.bot_display_name ?? html`<span class="mono">…${shortId(bot.id)}</span>`;
  return html`<li>
    <${StatusMark} status=${bot.status} short />
    <span class="row-main">
      <a class="truncate" href=${link(`/bots/${bot.id}`)}>${name}</a>
      <span class="quiet truncate">${details ? html`<${OutsideLink} href=${details.meeting_url} />` : bot.slot}</span>
    </span>
    <span class="row-end">
      <${Elapsed} from=${bot.since} />
      ${details?.deadline_at && html`<span class="row-note"><${Countdown} to=${details.deadline_at} after="left" /></span>`}
    </span>
  </li>`;
}
