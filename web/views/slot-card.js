// What is known of one slot, beside its cell, while the pointer or the keyboard is on it. The deadline is not part of the
// live state: it is read when the pointer rests.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { shortId } from "../lib/format.js";
import { Countdown, Elapsed, StatusMark } from "../components/ui.js";

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */
/** @typedef {{name: string, box: () => Box}} Target */
/** @typedef {{deadline_at?: string | null, meeting_url?: string, error_message?: string | null}} Details */

export const CARD_ID = "slot-card";
const REST_MS = 250;
/** Read details are used again for this long. */
const KEEP_MS = 5000;

/** @type {Target | null} */
let target = null;
/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {{key: string, at: number, details: Details} | null} */
let lastRead = null;

/**
 * Shows the card of a slot beside the box.
 * @param {string} name
 * @param {() => Box} box
 */
export function showCard(name, box) {
  if (target?.name === name) return;
  target = { name, box };
  for (const listener of listeners) listener();
}

export function hideCard() {
  if (!target) return;
  target = null;
  for (const listener of listeners) listener();
}

/**
 * Reads the deadline and a little more, when the pointer has rested.
 * @param {string} name
 * @param {string | undefined} botId
 * @param {string} version
 */
function useDetails(name, botId, version) {
  const key = `${name} ${botId} ${version}`;
  const [read, setRead] = useState(lastRead);
  useEffect(() => {
    if (!name || (lastRead?.key === key && Date.now() - lastRead.at < KEEP_MS)) return undefined;
    let wanted = true;
    const timer = setTimeout(async () => {
      try {
        const answer = botId ? (await call("GET", `/admin/bots/${botId}`)).bot : (await call("GET", `/admin/slots/${encodeURIComponent(name)}`)).slot;
        lastRead = { key, at: Date.now(), details: answer };
        if (wanted) setRead(lastRead);
      } catch {
        // The card shows what the live state knows.
      }
    }, REST_MS);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [key]);
  return read?.key === key ? read.details : lastRead?.key === key ? lastRead.details : null;
}

export function SlotCard() {
  const [shown, setShown] = useState(target);
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const update = () => setShown(target);
    listeners.add(update);
    return () => {
      listeners.delete(update);
      target = null;
    };
  }, []);
  const slot = useFleet((live) => (shown ? live.slots.get(shown.name) : undefined));
  const bot = useFleet((live) => (slot?.bot_id ? live.bots.get(slot.bot_id) : undefined));
  const details = useDetails(slot?.name ?? "", bot?.id, `${slot?.since} ${bot?.since}`);
  useLayoutEffect(() => {
    if (shown && card.current) placeBeside(card.current, shown.box());
  });
  if (!shown || !slot) return html`<div id=${CARD_ID} role="tooltip" hidden></div>`;
  return html`<div id=${CARD_ID} class="slot-card" role="tooltip" ref=${card}>
    <p class="slot-card-name mono">${slot.name}</p>
    <dl class="facts">
      <dt>Slot</dt>
      <dd>
        <${StatusMark} status=${slot.status} kind="slot" /> for <${Elapsed} from=${slot.since} />
        ${slot.hot && html` <span class="tag good">hot</span>`}
      </dd>
      ${bot &&
      html`<dt>Bot</dt>
        <dd><${StatusMark} status=${bot.status} /> for <${Elapsed} from=${bot.since} /></dd>
        <dt>Id</dt>
        <dd class="mono">…${shortId(bot.id)}</dd>`}
      ${details?.meeting_url && html`<dt>Meeting</dt><dd class="truncate">${details.meeting_url.replace(/^https?:\/\//, "")}</dd>`}
      ${details?.deadline_at && html`<dt>Deadline</dt><dd>in <${Countdown} to=${details.deadline_at} /></dd>`}
      ${details?.error_message && html`<dt>Error</dt><dd class="slot-card-error">${details.error_message}</dd>`}
      ${!bot && html`<dt>Pool</dt><dd>${slot.pool}</dd>`}
    </dl>
  </div>`;
}

/**
 * Places the card below the box, or above it where there is no room.
 * @param {HTMLElement} card
 * @param {Box} box
 */
function placeBeside(card, box) {
  const { width, height } = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left - 12, innerWidth - width - 8));
  const below = box.bottom + 8;
  const top = below + height > innerHeight - 8 ? box.top - height - 8 : below;
  card.style.translate = `${Math.round(left)}px ${Math.round(Math.max(8, top))}px`;
}
