// The start of the dashboard: finds out who is signed in, follows the live state, and shows the view of the address.

import { html, render, useEffect, useState } from "./lib/html.js";
import { asProblem } from "./lib/api.js";
import { loadSession, onSession, useSession } from "./lib/session.js";
import { clearAttention, startAttention } from "./lib/attention.js";
import { startLive } from "./lib/live.js";
import { useRoute } from "./lib/router.js";
import { Empty, ProblemNote } from "./components/ui.js";
import { Shell } from "./components/shell.js";
import { SignIn } from "./components/sign-in.js";
import { OverviewPage } from "./views/overview.js";
import { UserOverviewPage } from "./views/user-overview.js";
import { QueuePage } from "./views/queue.js";
import { LobbyPage } from "./views/lobby.js";
import { KeepersPage } from "./views/keepers.js";
import { lazyView, loadAllViews } from "./components/lazy-view.js";

/** @typedef {(props: {params: Record<string, string>, query: Record<string, string>}) => unknown} View */

// The overview is there at once. The other views are loaded when they are needed, or when the browser has nothing to do.
const BotPage = lazyView(() => import("./views/bot.js").then((file) => file.BotPage));
const BotsPage = lazyView(() => import("./views/bots.js").then((file) => file.BotsPage));
const SlotPage = lazyView(() => import("./views/slot.js").then((file) => file.SlotPage));
const SlotsPage = lazyView(() => import("./views/slots.js").then((file) => file.SlotsPage));
const PoolsPage = lazyView(() => import("./views/pools.js").then((file) => file.PoolsPage));
const PoolPage = lazyView(() => import("./views/pool.js").then((file) => file.PoolPage));
const ChartsPage = lazyView(() => import("./views/charts.js").then((file) => file.ChartsPage));
const AuditPage = lazyView(() => import("./views/audit.js").then((file) => file.AuditPage));
const StartPage = lazyView(() => import("./views/start.js").then((file) => file.StartPage));
const SearchPage = lazyView(() => import("./views/search.js").then((file) => file.SearchPage));

/**
 * The views of operators, each with the title of the browser's tab.
 * @type {Record<string, [view: View, title: string]>}
 */
const OPERATOR_VIEWS = {
  overview: [OverviewPage, "Overview"],
  bots: [BotsPage, "Bots"],
  bot: [BotPage, "Bot"],
  slots: [SlotsPage, "Slots"],
  slot: [SlotPage, "Slot"],
  pools: [PoolsPage, "Pools"],
  pool: [PoolPage, "Pool"],
  queue: [QueuePage, "Queue"],
  lobby: [LobbyPage, "Lobby"],
  charts: [ChartsPage, "Charts"],
  audit: [AuditPage, "Audit"],
  keepers: [KeepersPage, "Keepers"],
  start: [StartPage, "Start a bot"],
  search: [SearchPage, "Search"],
};

/** @type {Record<string, [view: View, title: string]>} */
const USER_VIEWS = {
  overview: [UserOverviewPage, "Overview"],
  bots: [BotsPage, "Bots"],
  bot: [BotPage, "Bot"],
  start: [StartPage, "Start a bot"],
};

function NotFound() {
  return html`<h1 class="unseen">Not found</h1>
    <${Empty} title="There is no such page">Go to the <a href="#/">overview</a>, or search for a bot or a slot.<//>`;
}

function App() {
  const session = useSession();
  const route = useRoute();
  if (!session) return html`<${SignIn} />`;
  const views = session.kind === "operator" ? OPERATOR_VIEWS : USER_VIEWS;
  const [view, title] = views[route.name] ?? [NotFound, "Not found"];
  // A view of another bot or slot is a new one: it must not show what belongs to the last.
  const key = route.name + JSON.stringify(route.params);
  return html`<${Shell} session=${session} route=${route} title=${[...Object.values(route.params), title].join(" · ")}>
    <${view} key=${key} params=${route.params} query=${route.query} />
  <//>`;
}

/** How long to wait before asking again who is signed in, when the server does not answer. */
const RETRY_MS = 3000;

/** Shows the page when the server has said who is signed in. */
function Start() {
  const [ready, setReady] = useState(false);
  const [problem, setProblem] = useState(/** @type {import("./lib/api.js").Problem | null} */ (null));
  const load = () => {
    loadSession().then(
      () => {
        startLive();
        startAttention();
        onSession(clearAttention);
        setTimeout(loadAllViews, 2000);
        setReady(true);
      },
      (error) => {
        setProblem(asProblem(error));
        setTimeout(load, RETRY_MS);
      },
    );
  };
  useEffect(load, []);
  if (ready) return html`<${App} />`;
  if (!problem) return html`<main class="alone"></main>`;
  return html`<main class="alone">
    <h1>Greenroom</h1>
    <${ProblemNote} problem=${problem} />
    <p class="loading">Trying again every few seconds</p>
  </main>`;
}

render(html`<${Start} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
