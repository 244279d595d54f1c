// The list of bots, newest first. Filters are in the address, so that a list can be shared; rows can be selected and stopped.

import { html, useMemo } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { ENDED, lasted, shortId, statusLabel, time, useNow } from "../lib/format.js";
import { link, setQuery } from "../lib/router.js";
import { base, useSession } from "../lib/session.js";
import { BulkBar } from "../components/bulk-bar.js";
import { MATCHES_MAX, SelectField, TextField, shownText, statusOptions, useText } from "../components/filters.js";
import { useOnBotChange, withQuery } from "../components/load.js";
import { BotLink, PageHead, SlotLink } from "../components/page-parts.js";
import { Pager, usePages } from "../components/pager.js";
import { Table, useSelection } from "../components/table.js";
import { Empty, Loading, OutsideLink, ProblemNote, StatusMark } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Bot} Bot */

/**
 * What a row needs of a bot. The bots of a slot have no link and no slot.
 *
 * @typedef {Pick<Bot, "id" | "platform" | "native_meeting_id" | "status" | "created_at"> & Partial<Bot>} BotRow
 */

const STATUSES = ["scheduled", "queued", "deploying", "starting", "awaiting_admission", "needs_help", "active", "stopping", "completed", "failed"];
const PLATFORMS = ["google_meet", "teams", "zoom"];
const EVERY_MS = 10_000;
/** With a text the page looks through more bots at once, because the API does not search for texts. */
const SIZE = 100;
const SIZE_WITH_TEXT = 1000;

/** @param {{query: Record<string, string>}} props */
export function BotsPage({ query }) {
  const session = useSession();
  const isOperator = session?.kind === "operator";
  const { status = "", platform = "" } = query;
  const [text, setText] = useText(query.q ?? "");
  const pages = usePages(
    async (limit, cursor) => {
      const answer = await call("GET", withQuery(`${base()}/bots`, { status, platform, limit, cursor }));
      return { rows: /** @type {Bot[]} */ (answer.bots), next: answer.next_cursor };
    },
    [status, platform, Boolean(text)],
    { size: text ? SIZE_WITH_TEXT : SIZE, every: EVERY_MS },
  );
  useOnBotChange(null, pages.reload, 2000);

  const found = useMemo(() => pages.rows.filter((bot) => matches(bot, text)), [pages.rows, text]);
  const rows = useMemo(() => (text ? found.slice(0, MATCHES_MAX) : found), [found, text]);
  const selection = useSelection(rows.filter((bot) => !ENDED.includes(bot.status)).map((bot) => bot.id));
  const isFiltered = Boolean(status || platform || text);

  return html`
    <div class="page">
      <${PageHead} title="Bots" />
      <form class="filters" role="search" aria-label="Filter the bots" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <${SelectField} label="Status" value=${status} options=${statusOptions("All statuses", STATUSES)} onChange=${(/** @type {string} */ value) => setQuery({ status: value })} />
        <${SelectField} label="Platform" value=${platform} options=${statusOptions("All platforms", PLATFORMS)} onChange=${(/** @type {string} */ value) => setQuery({ platform: value })} />
        <${TextField} label="Text" value=${text} placeholder="Id, meeting, name or slot" onInput=${setText} />
        ${isFiltered && html`<button type="button" onClick=${() => { setText(""); setQuery({ status: null, platform: null, q: null }); }}>Clear filters</button>`}
      </form>
      ${pages.isFirst && !pages.problem && html`<${Loading} />`}
      ${pages.isFirst && pages.problem && html`<${ProblemNote} problem=${pages.problem} onRetry=${pages.reload} />`}
      ${!pages.isFirst && rows.length === 0 && html`<${NoBots} isFiltered=${isFiltered} searched=${pages.rows.length} hasMore=${pages.hasMore} />`}
      ${rows.length > 0 && html`
        <${BotTable} rows=${rows} selection=${isOperator ? selection : undefined} isOperator=${isOperator} />`}
      ${!pages.isFirst && html`<${Pager} pages=${pages} shown=${shownText("bot", rows.length, found.length, text ? pages.rows.length : null)} />`}
      ${isOperator && html`
        <${BulkBar} noun="bot" selection=${selection} onDone=${pages.reload} actions=${[{
          verb: "Stop",
          done: "asked to leave",
          explanation: "Each bot is asked to leave its meeting. This cannot be undone.",
          path: "/admin/bots/bulk",
          body: (/** @type {string[]} */ bots) => ({ action: "stop", bots }),
          cli: (/** @type {string} */ id) => `greenroom bots stop ${id}`,
          danger: true,
        }]} />`}
    </div>`;
}

/**
 * @param {object} props
 * @param {BotRow[]} props.rows
 * @param {boolean} props.isOperator
 * @param {boolean} [props.hasSlot]
 * @param {import("../components/table.js").Selection} [props.selection]
 * @param {string} [props.caption]
 * @param {boolean} [props.isFramed]
 */
export function BotTable({ rows, isOperator, selection, caption = "Bots, newest first", isFramed = true, hasSlot = true }) {
  /** @type {import("../components/table.js").Column<BotRow>[]} */
  const all = [
    { title: "Bot", head: true, cell: (bot) => html`<span class="cell-name"><${BotLink} id=${bot.id}>${bot.bot_display_name || "Bot"}<//><span class="id quiet">${shortId(bot.id)}</span></span>` },
    { title: "Status", cell: (bot) => html`<${LiveStatus} bot=${bot} />` },
    { title: "Since", number: true, from: 2, cell: (bot) => html`<${Since} bot=${bot} />` },
    { title: "Meeting", from: 2, cell: (bot) => html`<span class="cell-meeting"><${OutsideLink} href=${bot.meeting_url ?? ""}>${bot.native_meeting_id}<//></span>` },
    { title: "Platform", from: 3, cell: (bot) => statusLabel(bot.platform) },
    { title: "Slot", from: 3, cell: (bot) => (isOperator ? html`<${SlotLink} name=${bot.slot} />` : bot.slot ?? "") },
    { title: "Requested", number: true, from: 4, cell: (bot) => time(bot.created_at) },
  ];
  const columns = hasSlot ? all : all.filter(({ title }) => title !== "Slot");
  return html`<${Table} caption=${caption} columns=${columns} rows=${rows} isFramed=${isFramed} keyOf=${(/** @type {BotRow} */ bot) => bot.id}
    nameOf=${(/** @type {BotRow} */ bot) => `${bot.bot_display_name || "the bot"} ${shortId(bot.id)}`} selection=${selection} />`;
}

/** @param {{bot: BotRow}} props */
function LiveStatus({ bot }) {
  const live = useFleet((fleet) => fleet.bots.get(bot.id)?.status);
  const isOver = ENDED.includes(bot.status);
  return html`
    <span class="row">
      <${StatusMark} status=${isOver ? bot.status : live ?? bot.status} kind="bot" />
      ${isOver && bot.reason && html`<span class="quiet from-3">${bot.reason}</span>`}
    </span>`;
}

/** @param {{bot: BotRow}} props */
function Since({ bot }) {
  useNow(1000);
  const live = useFleet((fleet) => fleet.bots.get(bot.id)?.since);
  const since = ENDED.includes(bot.status) ? bot.end_time ?? bot.status_since : live ?? bot.status_since;
  return since ? lasted(since) : "";
}

/** @param {{isFiltered: boolean, searched: number, hasMore: boolean}} props */
function NoBots({ isFiltered, searched, hasMore }) {
  if (!isFiltered) {
    return html`<${Empty} title="No bots yet"><p><a href=${link("/start")}>Start a bot</a> with the link of a meeting.</p><//>`;
  }
  return html`
    <${Empty} title="No bot matches">
      <p>${searched > 0 && hasMore ? `The newest ${searched} bots were searched. Show more to search older ones, or change the filters.` : "Change the filters, or clear them."}</p>
    <//>`;
}

/**
 * @param {Bot} bot
 * @param {string} text
 */
function matches(bot, text) {
  if (!text) return true;
  const wanted = text.trim().toLowerCase();
  return [bot.id, bot.meeting_url, bot.native_meeting_id, bot.bot_display_name, bot.slot].some((value) => value?.toLowerCase().includes(wanted));
}
