// The frame around every view: header with search and connection, navigation with live counts, title and icon of the tab.

import { html, useEffect, useErrorBoundary, useRef, useState } from "../lib/html.js";
import { asProblem } from "../lib/api.js";
import { useAttention } from "../lib/attention.js";
import { fleet, useFleet } from "../lib/fleet.js";
import { number, useNow } from "../lib/format.js";
import { retryNow } from "../lib/live.js";
import { signOut } from "../lib/session.js";
import { SearchBox } from "./search-box.js";
import { openStartDialog } from "./start-dialog.js";
import { Icon, ProblemNote } from "./ui.js";

/** @typedef {import("../lib/router.js").Route} Route */
/** @typedef {import("../lib/types.js").BrowserSession} BrowserSession */

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((total, one) => total + one, 0);
}

/**
 * The entries of the navigation: path, label, names of the routes below it, and a live count.
 * @type {[path: string, label: string, routes: string[], live?: (live: typeof fleet) => number][]}
 */
const OPERATOR_NAV = [
  ["/", "Overview", ["overview"]],
  ["/bots", "Bots", ["bots", "bot"], (live) => sum(live.botCounts)],
  ["/lobby", "Lobby", ["lobby"], (live) => (live.botCounts.awaiting_admission ?? 0) + (live.botCounts.needs_help ?? 0)],
  ["/queue", "Queue", ["queue"], (live) => live.queue.length],
  ["/slots", "Slots", ["slots", "slot"], (live) => live.slots.size],
  ["/pools", "Pools", ["pools", "pool"], (live) => live.pools.length],
  ["/charts", "Charts", ["charts"]],
  ["/keepers", "Keepers", ["keepers"]],
  ["/audit", "Audit", ["audit"]],
];

/** @type {typeof OPERATOR_NAV} */
const USER_NAV = [
  ["/", "Overview", ["overview"]],
  ["/bots", "Bots", ["bots", "bot"]],
  ["/start", "Start a bot", ["start"]],
];

/**
 * @param {{session: BrowserSession, route: Route, title: string, children?: unknown}} props
 */
export function Shell({ session, route, title, children }) {
  const [menu, setMenu] = useState(false);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const operator = session.kind === "operator";
  useTitle(title, operator);

  // A new view begins at its top, also for the keyboard. Another query is the same view.
  const shown = useRef(route.path);
  useEffect(() => {
    if (shown.current === route.path) return;
    shown.current = route.path;
    setMenu(false);
    scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [route.path]);

  /** @param {Event} event */
  const skip = (event) => {
    event.preventDefault();
    main.current?.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="bar">
      <button type="button" class="plain menu-toggle" aria-expanded=${menu} aria-controls="navigation" onClick=${() => setMenu(!menu)}>
        <${Icon} name="menu" /><span class="unseen">Menu</span>
      </button>
      <a class="brand" href="#/">Greenroom</a>
      ${operator && html`<${SearchBox} />`}
      <div class="bar-end">
        <${ConnectionState} />
        <button type="button" class="primary" onClick=${() => openStartDialog()}>Start a bot</button>
      </div>
    </header>
    <div class="layout">
      <nav id="navigation" class=${menu ? "side open" : "side"} aria-label="Views">
        <${NavList} entries=${operator ? OPERATOR_NAV : USER_NAV} route=${route} />
        <div class="side-end">
          <a href="/docs">API documentation</a>
          <button type="button" class="link" onClick=${() => signOut()}>Sign out</button>
          <p class="quiet">${operator ? "Signed in as operator" : "Signed in with an API key"}</p>
        </div>
      </nav>
      <main id="main" ref=${main} tabindex="-1">
        <${ConnectionNote} />
        <${Guard} key=${route.path}>${children}<//>
      </main>
    </div>`;
}

/** @param {{entries: typeof OPERATOR_NAV, route: Route}} props */
function NavList({ entries, route }) {
  const counts = useFleet((live) => entries.map((entry) => (live.loaded && entry[3] ? entry[3](live) : null)));
  const { items } = useAttention();
  const attention = items.length;
  const alert = items.some(({ severity }) => severity === "critical") ? "nav-alert critical" : "nav-alert";
  return html`<ul class="nav">
    ${entries.map(([path, label, routes], index) => {
      const current = routes.includes(route.name) ? "page" : undefined;
      const badge = path === "/" && attention > 0;
      return html`<li key=${path}>
        <a href=${`#${path}`} aria-current=${current}>
          <span>${label}</span>
          ${badge && html`<span class=${alert}>${attention}<span class="unseen"> need attention</span></span>`}
          ${counts[index] !== null && html`<span class=${counts[index] ? "nav-count" : "nav-count zero"}>${number(counts[index])}</span>`}
        </a>
      </li>`;
    })}
  </ul>`;
}

/** Whether the stream is connected, in the header. */
function ConnectionState() {
  const { connected, waiting } = useFleet((live) => ({ connected: live.connected, waiting: live.retryAt !== null }));
  const [tone, icon, text] = connected
    ? ["good", "disc", "Connected"]
    : waiting
      ? ["bad", "cross", "Not connected"]
      : ["quiet", "ring", "Connecting"];
  return html`<span class=${`connection tone-${tone}`} role="status"><${Icon} name=${icon} /><span>${text}</span></span>`;
}

/** Says that what is shown is old, and when the page tries again. */
function ConnectionNote() {
  const { retryAt, connected, problem } = useFleet((live) => ({ retryAt: live.retryAt, connected: live.connected, problem: live.problem }));
  useNow(1000);
  if (connected || retryAt === null) return null;
  const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  return html`<div class="connection-note">
    <p>
      <strong role="status">${problem ?? "The server does not answer."}</strong>${" "}
      <span class="num">${left > 0 ? `Retrying in ${left} s.` : "Retrying now."}</span>${" "}
      What you see is from ${fleet.at ? new Date(fleet.at).toLocaleTimeString("en-GB") : "before"}.
    </p>
    <button type="button" class="small" onClick=${retryNow}>Retry now</button>
  </div>`;
}

/**
 * Shows an error of a view in its place, so that the rest of the page goes on.
 * @param {{children?: unknown}} props
 */
function Guard({ children }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  if (!error) return children;
  return html`<h1>This view failed</h1><${ProblemNote} problem=${asProblem(error)} onRetry=${reset} />`;
}

/**
 * The title and the icon of the browser's tab. Both show how much needs attention.
 * @param {string} title
 * @param {boolean} operator
 */
function useTitle(title, operator) {
  const { items } = useAttention();
  const attention = operator ? items.length : 0;
  const critical = items.some(({ severity }) => severity === "critical");
  useEffect(() => {
    document.title = `${attention > 0 ? `(${attention}) ` : ""}${title} · Greenroom`;
    const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector('link[rel="icon"]'));
    if (icon) icon.href = "data:image/svg+xml," + encodeURIComponent(iconSvg(attention, critical));
  }, [title, attention, critical]);
}

/**
 * @param {number} attention
 * @param {boolean} critical
 */
function iconSvg(attention, critical) {
  const text = attention > 99 ? "99" : String(attention);
  const corner = attention ? 0 : 4;
  const parts = [`<rect x="${corner}" y="${corner}" width="24" height="24" rx="7" fill="#12694a"/>`];
  if (attention > 0) {
    parts.push(
      `<circle cx="21" cy="21" r="11" fill="${critical ? "#cf3440" : "#b4650a"}"/>`,
      `<text x="21" y="26.5" font-family="sans-serif" font-size="${text.length > 1 ? 14 : 16}" font-weight="700"`,
      ` text-anchor="middle" fill="#fff">${text}</text>`,
    );
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">${parts.join("")}</svg>`;
}
