// The overview of a user: how much of the limit is used, and the user's own bots as they move.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { count, number, shortId, statusLabel } from "../lib/format.js";
import { link } from "../lib/router.js";
import { useLoad, useOnBotChange } from "../components/load.js";
import { StatusCounts, StopButton, TableHead } from "../components/overview-parts.js";
import { openStartDialog } from "../components/start-dialog.js";
import { Countdown, Elapsed, Empty, Loading, OutsideLink, Panel, ProblemNote, StatusMark } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Bot} Bot */
/** @typedef {import("../lib/types.js").Usage} Usage */

export function UserOverviewPage() {
  const { data, problem, reload } = useLoad(() => /** @type {Promise<Usage>} */ (call("GET", "/bots/status")), [], 15_000);
  useOnBotChange(null, reload, 300);
  return html`<div class="stack">
    <h1 class="unseen">Overview</h1>
    <${ProblemNote} problem=${problem} onRetry=${reload} />
    ${!data && !problem && html`<${Loading} />`}
    ${data && html`<${Usage} usage=${data} /><${BotList} bots=${data.bots} more=${Boolean(data.next_cursor)} onChange=${reload} />`}
  </div>`;
}

/** @param {{usage: Usage}} props */
function Usage({ usage }) {
  const { running, max_concurrent_bots: limit, by_status } = usage;
  const share = limit > 0 ? Math.min(100, (100 * running) / limit) : 100;
  return html`<section class="numbers" aria-label="Your bots in numbers">
    <div class="number">
      <h2>Bots running</h2>
      <p class="number-value">${number(running)}<span class="number-of"> of ${number(limit)}</span></p>
      <div class="meter" role="meter" aria-label="Use of your limit" aria-valuenow=${running} aria-valuemin="0" aria-valuemax=${limit}>
        <span style=${{ width: `${share}%` }}></span>
      </div>
      <p class="number-note quiet">
        ${running >= limit ? "You have reached your limit. Stop a bot to start another." : `You can start ${count(limit - running, "more bot")}.`}
      </p>
    </div>
    <div class="number wide">
      <h2>By status, ended bots included</h2>
      <${StatusCounts} kind="bot" statuses=${Object.keys(by_status)} counts=${by_status} empty="You have not started a bot yet." />
    </div>
  </section>`;
}

/** @type {[label: string, look?: string][]} */
const COLUMNS = [["Bot"], ["Status"], ["Meeting"], ["Platform", "wide-only"], ["For", "right"], ["Deadline in", "right"], ["Action", "unseen"]];

/** @param {{bots: Bot[], more: boolean, onChange: () => void}} props */
function BotList({ bots, more, onChange }) {
  const title = html`Bots now <span class="quiet num">${number(bots.length)}</span>`;
  if (bots.length === 0) {
    return html`<${Panel} title=${title}><${Empty} title="None of your bots runs now">
      <p>Paste the link of a meeting, and a bot joins it.</p>
      <p><button type="button" class="primary" onClick=${() => openStartDialog()}>Start a bot</button></p>
    <//><//>`;
  }
  return html`<${Panel} title=${title} actions=${html`<a href=${link("/bots")}>All bots</a>`} flush>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Bots that have not ended">
      <table>
        <${TableHead} columns=${COLUMNS} />
        <tbody>${bots.map((bot) => html`<${BotRow} key=${bot.id} bot=${bot} onChange=${onChange} />`)}</tbody>
      </table>
    </div>
    ${more && html`<p class="panel-note quiet">There are more. <a href=${link("/bots")}>Show all bots</a></p>`}
  <//>`;
}

/** @param {{bot: Bot, onChange: () => void}} props */
function BotRow({ bot, onChange }) {
  const name = bot.bot_display_name ?? `…${shortId(bot.id)}`;
  return html`<tr>
    <th scope="row"><a href=${link(`/bots/${bot.id}`)} class=${bot.bot_display_name ? "" : "mono"}>${name}</a></th>
    <td><${StatusMark} status=${bot.status} />${bot.queue_position ? html` <span class="quiet">position ${bot.queue_position}</span>` : null}</td>
    <td class="break"><${OutsideLink} href=${bot.meeting_url} /></td>
    <td class="wide-only">${statusLabel(bot.platform)}</td>
    <td class="right"><${Elapsed} from=${bot.status_since ?? bot.updated_at} /></td>
    <td class="right">${bot.deadline_at ? html`<${Countdown} to=${bot.deadline_at} />` : "–"}</td>
    <td class="right">
      ${bot.status !== "stopping" && html`<${StopButton} id=${bot.id} name=${name} path=${`/bots/${bot.id}`} onDone=${onChange} />`}
    </td>
  </tr>`;
}
