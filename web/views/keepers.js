// The keepers: when each one last ran, what it did, when it runs next, and a button that runs it now.

import { html } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { duration, now, statusLabel, useNow } from "../lib/format.js";
import { useLoad, useOnChange } from "../components/load.js";
import { ActionButton } from "../components/action.js";
import { TableHead } from "../components/overview-parts.js";
import { Countdown, Elapsed, Empty, Icon, Loading, Panel, ProblemNote } from "../components/ui.js";

/** @typedef {import("../lib/types.js").Keeper} Keeper */

/** @type {[label: string, look?: string][]} */
const COLUMNS = [
  ["Keeper"], ["State"], ["Ran before", "right"], ["Took", "right wide-only"], ["Did"], ["Next in", "right"], ["Action", "unseen"],
];

/** A keeper is late when it did not run for so long after it was due. */
const LATE_MS = 30_000;

export function KeepersPage() {
  const live = useFleet((fleet) => fleet.keepers);
  const { data, problem, reload } = useLoad(() => /** @type {Promise<{keepers: Keeper[]}>} */ (call("GET", "/admin/keepers")), [], 15_000);
  useOnChange(live, reload, 1000);
  useNow(5000);
  const leader = data?.keepers.find((keeper) => keeper.leader)?.leader;
  return html`<div class="stack">
    <div class="page-head">
      <h1>Keepers</h1>
      ${leader && html`<p class="quiet">Leader <span class="mono">${leader}</span></p>`}
      ${data && !leader && html`<p class="tone-bad">No replica leads the keepers.</p>`}
    </div>
    <p class="quiet">Keepers are background jobs that compare the records with the world. One replica, the leader, runs them.</p>
    <${ProblemNote} problem=${problem} onRetry=${reload} />
    ${!data
      ? !problem && html`<${Loading} />`
      : data.keepers.length === 0
        ? html`<${Empty} title="No keeper has run yet">They appear here after their first run.<//>`
        : html`<${Panel} title="Last runs" flush>
            <div class="table-wrap" tabindex="0" role="region" aria-label="Keepers">
              <table>
                <${TableHead} columns=${COLUMNS} />
                <tbody>
                  ${data.keepers.map((keeper) => html`<${KeeperRow} key=${keeper.name} keeper=${keeper} onRun=${reload} />`)}
                </tbody>
              </table>
            </div>
          <//>`}
  </div>`;
}

/** @param {{keeper: Keeper, onRun: () => void}} props */
function KeeperRow({ keeper, onRun }) {
  const late = keeper.next_run ? now() - Date.parse(keeper.next_run) > LATE_MS : false;
  const [icon, tone, word] = keeper.error ? ["alert", "bad", "Failed"] : late ? ["clock", "wait", "Late"] : ["check", "good", "Fine"];
  const counts = Object.entries(keeper.did).filter(([, n]) => n > 0);
  const did = counts.map(([what, n]) => `${n} ${statusLabel(what).toLowerCase()}`).join(", ");
  return html`<tr>
    <th scope="row"><span class="mono">${keeper.name}</span></th>
    <td><span class=${`mark tone-${tone}`}><${Icon} name=${icon} /><span class="mark-label">${word}</span></span></td>
    <td class="right">${keeper.last_run ? html`<${Elapsed} from=${keeper.last_run} />` : html`<span class="quiet">never</span>`}</td>
    <td class="right wide-only">${duration(keeper.took_ms)}</td>
    <td class=${keeper.error ? "break tone-bad" : did ? "break" : "break quiet"}>${keeper.error ?? (did || "nothing to do")}</td>
    <td class="right">${keeper.next_run ? html`<${Countdown} to=${keeper.next_run} warnMs=${0} />` : "–"}</td>
    <td class="right">
      <${ActionButton}
        small label="Run now" describe=${keeper.name} method="POST" path=${`/admin/${keeper.name}/run`}
        cli=${`greenroom keepers run ${keeper.name}`} done=${`${keeper.name} has run`} onDone=${onRun}
      />
    </td>
  </tr>`;
}
