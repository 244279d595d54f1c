// Why a bot or a slot is where it is, what it waits for, and what a person can do about it.

import { html } from "../lib/html.js";
import { time } from "../lib/format.js";
import { Facts } from "./page-parts.js";
import { Countdown, Loading, Panel, ProblemNote, withCode } from "./ui.js";

/** @type {Record<string, string>} */
const PROVIDER_WORDS = {
  running: "runs",
  unhealthy: "runs, and is not healthy",
  stopped: "is stopped",
  missing: "does not exist there",
  failed: "has failed",
  no_answer: "did not answer",
  not_configured: "is not configured",
};

/** @type {Record<string, string>} */
const FAULTS = {
  host: "The people in the meeting: they did not admit the bot, or they removed it.",
  bot: "The program of the bot.",
  provider: "The provider: its machine, its service, or a person who stopped the container there.",
  capacity: "The capacity: there was no free slot in time.",
  none: "Nobody: the bot ended as planned.",
};

/** @type {Record<string, string>} */
const REASONS = {
  finished: "The meeting was over, or the bot had nothing more to do.",
  stopped: "It was asked to leave.",
  queue_timeout: "It waited too long for a slot.",
  deploy_timeout: "It waited too long at the deploy gate.",
  deploy_failed: "Its slot could not be started.",
  no_start: "Its slot was started, but the bot did not report in time.",
  no_join: "It did not get into the meeting in time.",
  heartbeat_lost: "It was in the meeting and stopped sending heartbeats.",
  crashed: "Its program ended with an error.",
  missed: "It was too late for its meeting.",
  interrupted: "Its slot was ended from outside while the bot ran.",
  never_joined: "Its program ended without having joined the meeting.",
};

/**
 * @param {object} props
 * @param {string} props.title
 * @param {import("./load.js").Loaded<import("../lib/types.js").Explanation>} props.loaded
 * @param {import("../lib/types.js").Bot} [props.bot] its end and its error are explained too
 */
export function Explain({ title, loaded, bot }) {
  const { data, problem, reload } = loaded;
  const isBad = bot ? bot.status === "failed" || bot.status === "needs_help" : data?.status === "error";
  const facts = [...(bot ? endFacts(bot) : []), ...(data ? waitFacts(data) : [])];
  return html`
    <${Panel} title=${title} class=${isBad ? "why is-bad" : "why"}>
      ${!data && (problem ? html`<${ProblemNote} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`)}
      ${data && html`<p class="why-summary">${withCode(data.summary)}</p>`}
      <${Facts} facts=${facts} />
      ${data && data.provider.last_lines.length > 0 && html`
        <details class="why-lines">
          <summary>Last lines of its output (${data.provider.last_lines.length})</summary>
          <pre tabindex="0">${data.provider.last_lines.join("\n")}</pre>
        </details>`}
    <//>`;
}

/**
 * How a bot ended, and whose fault it was.
 *
 * @param {import("../lib/types.js").Bot} bot
 * @returns {[string, any][]}
 */
export function endFacts(bot) {
  const isOver = bot.status === "completed" || bot.status === "failed";
  return [
    [isOver ? "Error" : "Last error", bot.error && html`<span class="why-error">${bot.error}</span>`],
    ["Reason", (isOver || bot.status === "needs_help") && bot.reason && html`<code>${bot.reason}</code> ${REASONS[bot.reason] ?? ""}`],
    ["Cause", isOver && bot.fault && (FAULTS[bot.fault] ?? bot.fault)],
  ];
}

/**
 * @param {import("../lib/types.js").Explanation} data
 * @returns {[string, any][]}
 */
function waitFacts({ status, waiting_for, until, advice, provider }) {
  const state = provider.status && `It ${PROVIDER_WORDS[provider.status] ?? provider.status}`;
  return [
    ["Waits for", waiting_for],
    // The deadline of an active bot is its next heartbeat, which is not the end of its wait.
    ["At the latest", until && status !== "active" && html`${time(until)} <${Countdown} to=${until} before="in" />`],
    ["What to do", advice && html`<strong class="why-advice">${withCode(advice)}</strong>`],
    ["Provider", [state, provider.message].filter(Boolean).join(": ")],
  ];
}
