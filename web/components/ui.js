// Small parts that all views share: marks of statuses, countdowns, empty states, problems and panels.

import { html, useRef, useState } from "../lib/html.js";
import { duration, millis, statusLabel, time, useNow } from "../lib/format.js";

/** @typedef {import("../lib/api.js").Problem} Problem */

/**
 * The shape and the colour of each status, as the name of an icon below and of a class.
 * @type {Record<string, [icon: string, tone: string]>}
 */
const BOT_MARKS = {
  scheduled: ["clock", "quiet"],
  reserved: ["ring", "quiet"],
  queued: ["clock", "wait"],
  deploying: ["half", "progress"],
  starting: ["half", "progress"],
  awaiting_admission: ["diamond", "wait"],
  needs_help: ["alert", "bad"],
  active: ["disc", "good"],
  stopping: ["square", "quiet"],
  completed: ["check", "quiet"],
  failed: ["cross", "bad"],
};

/** @type {Record<string, [icon: string, tone: string]>} */
const SLOT_MARKS = {
  creating: ["half", "progress"],
  idle: ["ring", "quiet"],
  busy: ["disc", "good"],
  error: ["alert", "bad"],
  draining: ["down", "wait"],
};

/** @type {Record<string, string>} */
const ICONS = {
  ring: "M8 2.75a5.25 5.25 0 1 0 0 10.5a5.25 5.25 0 1 0 0-10.5",
  disc: "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12",
  half: "M8 2.75a5.25 5.25 0 1 0 0 10.5a5.25 5.25 0 1 0 0-10.5M8 2.75v10.5a5.25 5.25 0 0 0 0-10.5",
  clock: "M8 2.75a5.25 5.25 0 1 0 0 10.5a5.25 5.25 0 1 0 0-10.5M8 5v3l2 1.5",
  diamond: "M8 1.75L14.25 8L8 14.25L1.75 8z",
  alert: "M8 1.5L15 14H1z",
  down: "M1 2h14L8 14.5z",
  square: "M3 3h10v10H3z",
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  menu: "M2 4h12M2 8h12M2 12h12",
  open: "M4 6.5l4 4l4-4",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M10.5 10.5L14 14",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
};

/** Icons that are drawn as an area. The others are outlines. */
const SOLID = ["disc", "diamond", "alert", "down"];

/**
 * An icon of 16 by 16, in the colour of the text around it.
 * @param {{name: string}} props
 */
export function Icon({ name }) {
  const look = SOLID.includes(name) ? "solid" : name === "half" ? "half" : "outline";
  return html`<svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" focusable="false">
    <path d=${ICONS[name]} class=${look} />
  </svg>`;
}

/**
 * A status as shape, colour and word. `short` leaves the word to screen readers.
 * @param {{status: string, kind?: "bot" | "slot", short?: boolean}} props
 */
export function StatusMark({ status, kind = "bot", short = false }) {
  const [icon, tone] = (kind === "slot" ? SLOT_MARKS : BOT_MARKS)[status] ?? ["ring", "quiet"];
  return html`<span class=${`mark tone-${tone}`}>
    <${Icon} name=${icon} /><span class=${short ? "unseen" : "mark-label"}>${statusLabel(status)}</span>
  </span>`;
}

/**
 * The time that is left until `to`. Near the end it is marked, and past it says how much it is over. `before` and
 * `after` are words around the time that is left.
 * @param {{to: string | number | null | undefined, warnMs?: number, before?: string, after?: string}} props
 */
export function Countdown({ to, warnMs = 60_000, before = "", after = "" }) {
  const at = useNow(1000);
  const end = millis(to);
  if (Number.isNaN(end)) return null;
  const left = Math.ceil((end - at) / 1000) * 1000;
  const tone = left <= 0 ? "late" : left <= warnMs ? "soon" : "";
  const text = left <= -1000 ? duration(-left) + " over" : left <= 0 ? "now" : duration(left);
  const [start, finish] = left > 0 ? [before && `${before} `, after && ` ${after}`] : ["", ""];
  return html`<span class="nowrap">
    ${start && html`<span class="quiet">${start}</span>`}
    <time class=${`countdown ${tone}`} datetime=${new Date(end).toISOString()} title=${"Until " + time(end / 1000)}>${text}</time>
    ${finish && html`<span class="quiet">${finish}</span>`}
  </span>`;
}

/**
 * How long something has lasted, counting up.
 * @param {{from: string | number | null | undefined}} props
 */
export function Elapsed({ from }) {
  const at = useNow(1000);
  const start = millis(from);
  if (Number.isNaN(start)) return html`<span class="num">–</span>`;
  const passed = Math.max(0, Math.floor((at - start) / 1000) * 1000);
  const text = passed === 0 ? "0 s" : duration(passed);
  return html`<time class="num" datetime=${new Date(start).toISOString()} title=${"Since " + time(start / 1000)}>${text}</time>`;
}

/**
 * Says that there is nothing, and what to do next.
 * @param {{title: string, children?: unknown}} props
 */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<div class="empty-text">${children}</div>`}</div>`;
}

/**
 * A text of the server, with the parts between backticks as code.
 * @param {string} text
 */
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? html`<code>${part}</code>` : part));
}

/** @type {Record<string, string>} */
const NEXT_STEPS = {
  unreachable: "Check that the server runs, and the network between it and this browser.",
  overloaded: "The server has too much to do. Try again in a few seconds.",
  unavailable: "Something that the server needs does not answer. Try again in a few seconds.",
  internal: "This is a fault of the server. Its log has more, under the id of the request.",
  limit_reached: "Stop a bot of this user, or raise the limit of the user.",
  duplicate_bot: "The user has a bot in this meeting already.",
  invalid_transition: "The state has changed meanwhile. Look at it again.",
  bot_ended: "The bot has ended, so it cannot be changed any more.",
  forbidden_origin: "Open this page by the address in `public_url` of the configuration.",
};

/**
 * An error of the API: what happened, the next step where it is known, and the id of the request for the server's log.
 * @param {{problem: Problem | null | undefined, onRetry?: () => void}} props
 */
export function ProblemNote({ problem, onRetry }) {
  if (!problem) return null;
  const next = NEXT_STEPS[problem.code];
  return html`<div class="problem" role="alert">
    <${Icon} name="alert" />
    <div>
      <p class="problem-detail">${withCode(problem.detail)}</p>
      ${next && html`<p>${withCode(next)}</p>`}
      ${problem.request_id && html`<p class="problem-id">Request <code>${problem.request_id}</code></p>`}
      ${onRetry && html`<button type="button" class="small" onClick=${onRetry}>Try again</button>`}
    </div>
  </div>`;
}

export function Loading() {
  return html`<p class="loading" role="status"><span class="spinner" aria-hidden="true"></span>Loading</p>`;
}

/**
 * A part of a page with a heading. `level` is the level of the heading. With a `label` it is a landmark.
 * @param {{title: unknown, actions?: unknown, children?: unknown, level?: 2 | 3, class?: string, id?: string, flush?: boolean, label?: string}} props
 */
export function Panel({ title, actions, children, level = 2, class: extra = "", id, flush = false, label }) {
  return html`<section class=${`panel ${extra}`} id=${id} aria-label=${label}>
    <header class="panel-head">
      ${level === 2 ? html`<h2>${title}</h2>` : html`<h3>${title}</h3>`}
      ${actions && html`<div class="panel-actions">${actions}</div>`}
    </header>
    <div class=${flush ? "panel-body flush" : "panel-body"}>${children}</div>
  </section>`;
}

/**
 * A text with a button that copies it. `label` says what it is, for screen readers.
 * @param {{text: string, label: string, children?: unknown}} props
 */
export function Copyable({ text, label, children }) {
  const [copied, setCopied] = useState(false);
  const timer = useRef(0);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setCopied(false), 1500);
  };
  const what = `Copy ${label}`;
  return html`<span class="copyable">
    ${children ?? html`<code>${text}</code>`}
    <button type="button" class="copy" aria-label=${what} title=${what} onClick=${copy}><${Icon} name=${copied ? "check" : "copy"} /></button>
    <span class="unseen" role="status">${copied ? "Copied" : ""}</span>
  </span>`;
}

/**
 * Puts a text on the clipboard. Browsers offer `navigator.clipboard` only over https and on this machine.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

/**
 * A link to somewhere outside, if it is one that a browser should follow; otherwise its text.
 * @param {{href: string, children?: unknown}} props
 */
export function OutsideLink({ href, children }) {
  if (!/^https?:\/\//i.test(href)) return html`<span class="outside">${children ?? href}</span>`;
  const text = children ?? href.replace(/^https?:\/\//i, "");
  return html`<a class="outside" href=${href} target="_blank" rel="noreferrer noopener">${text}</a>`;
}
