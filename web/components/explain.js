// Why a bot or a slot is where it is, what it waits for, and what a person can do about it.

import { html } from "../lib/html.js";
import { time } from "../lib/format.js";
import { Countdown, Loading, Panel, ProblemNote } from "./ui.js";

const PROVIDER_WORDS = {
  running: "runs",
  unhealthy: "runs, and is not healthy",
  stopped: "is stopped",
  missing: "does not exist there",
  failed: "has failed",
  no_answer: "did not answer",
  not_configured: "is not configured",
};

const FAULTS = {
  host: "The people in the meeting: they did not admit the bot, or they removed it.",
  bot: "The program of the bot.",
  provider: "The provider: its machine, its service, or a person who stopped the container there.",
  capacity: "The capacity: there was no free slot in time.",
  none: "Nobody: the bot ended as planned.",
};

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
 */
export function Explain({ title, loaded }) {
  const { data, problem, reload } = loaded;
  if (!data) {
    return html`<${Panel} title=${title}>${problem ? html`<${ProblemNote} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`}<//>`;
  }
  return html`
    <${Panel} title=${title}>
      <div class="explain">
        <p class="explain-summary">${data.summary}</p>
        ${data.waiting_for && html`
          <p>
            <span class="explain-label">Waits for</span> ${data.waiting_for}
            ${data.until && html`<span class="quiet">, until ${time(data.until)} (<${Countdown} to=${data.until} />)</span>`}
          </p>`}
        ${data.advice && html`<p class="explain-advice"><span class="explain-label">What to do</span> ${data.advice}</p>`}
        <${ProviderNote} provider=${data.provider} />
      </div>
    <//>`;
}

/** @param {{provider: import("../lib/types.js").Explanation["provider"]}} props */
function ProviderNote({ provider }) {
  if (!provider || (!provider.status && !provider.message && provider.last_lines.length === 0)) return null;
  return html`
    ${(provider.status || provider.message) && html`
      <p>
        <span class="explain-label">Provider</span>
        ${provider.status ? ` It ${PROVIDER_WORDS[provider.status] ?? provider.status}.` : ""}
        ${provider.message ? html` <span class="explain-message">${provider.message}</span>` : ""}
      </p>`}
    ${provider.last_lines.length > 0 && html`
      <details class="explain-lines">
        <summary>Last lines of its output (${provider.last_lines.length})</summary>
        <pre tabindex="0">${provider.last_lines.join("\n")}</pre>
      </details>`}`;
}

/**
 * How a bot ended, and whose fault it was.
 *
 * @param {{bot: import("../lib/types.js").Bot}} props
 */
export function EndNote({ bot }) {
  const isOver = bot.status === "completed" || bot.status === "failed";
  const words = isOver && bot.reason ? REASONS[/** @type {keyof typeof REASONS} */ (bot.reason)] : null;
  if (!bot.error && !isOver) return null;
  return html`
    <section class=${`end-note${bot.error ? " is-problem" : ""}`} aria-label=${isOver ? "How it ended" : "Last error"}>
      ${isOver && html`
        <p class="end-title">
          ${bot.status === "failed" ? "Failed" : "Completed"}${bot.reason ? html`: <code>${bot.reason}</code>` : ""}
        </p>`}
      ${words && html`<p>${words}</p>`}
      ${bot.error && html`<p class="end-error">${bot.error}</p>`}
      ${isOver && bot.fault && html`<p><span class="explain-label">Cause</span> ${FAULTS[bot.fault] ?? bot.fault}</p>`}
    </section>`;
}
