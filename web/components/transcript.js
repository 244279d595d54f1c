// A transcript as it arrives. The newest words stay visible until the reader scrolls up; then the text stays where it is.

import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { call } from "../lib/api.js";
import { Loading, ProblemNote } from "./ui.js";
import { isAway, whileVisible, withQuery } from "./load.js";

/** @typedef {import("../lib/types.js").Schemas["Segment"]} Segment */

const PAGE = 500;
/** Older segments are shown on request, so that a long meeting does not make the page slow. */
const SHOWN_FIRST = 400;
const EVERY_MS = 2000;
/** So near to the end counts as at the end. */
const NEAR_END_PX = 32;

/**
 * Reads all segments, then the last page again and again while the bot runs.
 *
 * @param {string} path
 * @param {boolean} isOver
 */
function useSegments(path, isOver) {
  const [segments, setSegments] = useState(/** @type {Segment[] | null} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const pages = useRef(/** @type {{cursor?: string, segments: Segment[]}[]} */ ([]));

  const load = useCallback(async (/** @type {() => boolean} */ isCurrent = () => true) => {
    let cursor = pages.current.at(-1)?.cursor;
    let number = Math.max(0, pages.current.length - 1);
    try {
      for (;;) {
        const answer = await call("GET", withQuery(path, { limit: PAGE, cursor }));
        if (!isCurrent()) return;
        const isSame = pages.current[number]?.segments.length === answer.segments.length;
        pages.current[number] = { cursor, segments: answer.segments };
        setProblem(null);
        if (!isSame || number === 0) setSegments(pages.current.flatMap((page) => page.segments));
        if (!answer.next_cursor) return;
        cursor = answer.next_cursor;
        number += 1;
      }
    } catch (error) {
      if (isCurrent() && !(isAway(error) && pages.current.length > 0)) setProblem(error);
    }
  }, [path]);

  useEffect(() => {
    let isCurrent = true;
    const read = () => load(() => isCurrent);
    pages.current = [];
    setSegments(null);
    read();
    const end = isOver ? () => {} : whileVisible(read, EVERY_MS);
    return () => { isCurrent = false; end(); };
  }, [path, isOver]);

  return { segments, problem, reload: load };
}

/**
 * Keeps a scrolling element at its end until the reader leaves it.
 *
 * @param {unknown} content changes when there is something new
 */
export function useStayAtEnd(content) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [isAtEnd, setAtEnd] = useState(true);
  const follows = useRef(true);
  const toEnd = useCallback(() => {
    follows.current = true;
    setAtEnd(true);
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, []);
  const onScroll = useCallback(() => {
    const element = box.current;
    if (!element) return;
    follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    setAtEnd(follows.current);
  }, []);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [content]);
  return { box, isAtEnd, toEnd, onScroll };
}

/** @param {{path: string, isOver: boolean}} props */
export function Transcript({ path, isOver }) {
  const { segments, problem, reload } = useSegments(path, isOver);
  // Where the shown part begins. It stays there when words are added, so that nothing moves under the reader's eyes.
  const [start, setStart] = useState(/** @type {number | null} */ (null));
  const count = segments?.length ?? 0;
  useEffect(() => setStart(segments ? (old) => old ?? Math.max(0, segments.length - SHOWN_FIRST) : null), [segments === null]);
  const from = start ?? Math.max(0, count - SHOWN_FIRST);
  const { box, isAtEnd, toEnd, onScroll } = useStayAtEnd(segments);
  const shown = useMemo(() => (segments ? turnsOf(segments.slice(from)) : []), [segments, from]);

  if (!segments) return problem ? html`<${ProblemNote} problem=${problem} onRetry=${() => reload()} />` : html`<${Loading} />`;
  if (segments.length === 0) {
    return html`<p class="quiet">${isOver ? "The bot sent no transcript." : "No words yet. They appear here when the bot sends them."}</p>`;
  }
  return html`
    ${problem && html`<${ProblemNote} problem=${problem} onRetry=${() => reload()} />`}
    <div class="reader">
      <div class="reader-box transcript" ref=${box} onScroll=${onScroll} tabindex="0" role="region" aria-label="Words of the transcript">
        ${from > 0 && html`<button type="button" class="small" onClick=${() => setStart(0)}>Show ${from} earlier segments</button>`}
        <ol>
          ${shown.map((turn) => html`
            <li key=${turn.key}>
              <p class="turn-head"><span class="turn-speaker">${turn.speaker ?? "Unknown speaker"}</span> <span class="turn-time">${clock(turn.start)}</span></p>
              <p class="turn-text" dir="auto">${turn.text}</p>
            </li>`)}
        </ol>
      </div>
      ${!isAtEnd && html`<button type="button" class="small reader-end" onClick=${toEnd}>Go to the newest</button>`}
    </div>`;
}

/**
 * Segments of one speaker in a row, as one turn.
 *
 * @param {Segment[]} segments
 */
function turnsOf(segments) {
  /** @type {{key: string, speaker: string | null | undefined, start: number, session: string, text: string}[]} */
  const turns = [];
  for (const segment of segments) {
    const last = turns.at(-1);
    if (last && last.speaker === segment.speaker && last.session === segment.session_uid && last.text.length < 600) {
      last.text += ` ${segment.text}`;
    } else {
      turns.push({
        key: `${segment.session_uid} ${segment.start_time} ${turns.length}`,
        speaker: segment.speaker, start: segment.start_time, session: segment.session_uid, text: segment.text,
      });
    }
  }
  return turns;
}

/** @param {number} seconds */
function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  const minutes = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return whole >= 3600 ? `${Math.floor(whole / 3600)}:${minutes}` : minutes;
}
