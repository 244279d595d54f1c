// What a bot left behind: the last lines of its log and its last screenshot. Both outlive the slot.

import { html, useEffect, useState } from "../lib/html.js";
import { call, getBlobUrl } from "../lib/api.js";
import { time } from "../lib/format.js";
import { Loading, ProblemNote } from "./ui.js";
import { isAway, useLoad, whileVisible, withQuery } from "./load.js";
import { useStayAtEnd } from "./transcript.js";

const LINES = 200;
const LOG_EVERY_MS = 3000;
const SCREENSHOT_EVERY_MS = 15_000;

/** @param {{path: string, isOver: boolean}} props */
export function BotLog({ path, isOver }) {
  const log = useLoad(() => call("GET", withQuery(path, { lines: LINES })), [path, isOver], isOver ? 0 : LOG_EVERY_MS);
  /** @type {import("../lib/types.js").Schemas["LogLine"][]} */
  const lines = log.data?.lines ?? [];
  const { box, isAtEnd, toEnd, onScroll } = useStayAtEnd(lines.at(-1));

  if (!log.data) return log.problem ? html`<${ProblemNote} problem=${log.problem} onRetry=${log.reload} />` : html`<${Loading} />`;
  if (lines.length === 0) {
    return html`<p class="quiet">${isOver ? "The bot printed nothing." : "The bot has printed nothing yet."}</p>`;
  }
  const hasTimes = lines.some((line) => line.at);
  return html`
    <div class="reader">
      <div class="reader-box log" ref=${box} onScroll=${onScroll} tabindex="0" role="region" aria-label="Lines of the log">
        ${log.data.truncated && html`<p class="quiet">Earlier lines are not kept.</p>`}
        <ol class=${hasTimes ? "has-times" : ""}>
          ${lines.map((line, number) => html`
            <li key=${number}>${hasTimes && html`<span class="log-time">${line.at ? time(line.at) : ""}</span>`}<span class="log-text">${line.text}</span></li>`)}
        </ol>
      </div>
      ${!isAtEnd && html`<button type="button" class="small reader-end" onClick=${toEnd}>Go to the newest</button>`}
    </div>`;
}

/**
 * The last screenshot. A bot that never sent one has none, which is no problem.
 *
 * @param {{path: string, isOver: boolean}} props
 */
export function Screenshot({ path, isOver }) {
  const [state, setState] = useState(/** @type {{url: string | null, problem: any, loading: boolean}} */ ({ url: null, problem: null, loading: true }));
  useEffect(() => {
    /** @type {string | null} */
    let url = null;
    let isCurrent = true;
    const load = async () => {
      try {
        const next = await getBlobUrl(path);
        if (!isCurrent) {
          URL.revokeObjectURL(next);
          return;
        }
        const last = url;
        url = next;
        setState({ url, problem: null, loading: false });
        if (last) URL.revokeObjectURL(last);
      } catch (problem) {
        if (isCurrent) setState((old) => (old.loading || !isAway(problem) ? { ...old, problem, loading: false } : old));
      }
    };
    setState({ url: null, problem: null, loading: true });
    load();
    const end = isOver ? () => {} : whileVisible(load, SCREENSHOT_EVERY_MS);
    return () => {
      isCurrent = false;
      end();
      if (url) URL.revokeObjectURL(url);
    };
  }, [path, isOver]);

  if (state.url) {
    return html`
      <a class="screenshot" href=${state.url} target="_blank" rel="noreferrer noopener">
        <img src=${state.url} alt="The last screenshot that the bot sent. Opens in full size." />
      </a>`;
  }
  if (state.loading) return html`<${Loading} />`;
  if (state.problem && state.problem.status !== 404) return html`<${ProblemNote} problem=${state.problem} />`;
  return html`<p class="quiet">The bot sent no screenshot. A bot sends one with the event <code>screenshot</code>.</p>`;
}
