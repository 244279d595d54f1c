// The search of the header: finds a slot or a live bot while one types, and leads to the search page for everything else.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { fleet } from "../lib/fleet.js";
import { go } from "../lib/router.js";
import { shortId } from "../lib/format.js";
import { Icon, StatusMark } from "./ui.js";

/** @typedef {{path: string, label: string, note: string, status: string, kind: "bot" | "slot"}} Hit */

const MOST_HITS = 8;
const id = "search-hits";

/**
 * Slots and live bots whose name or id contains the text.
 * @param {string} text
 * @returns {Hit[]}
 */
function findHits(text) {
  const wanted = text.trim().toLowerCase();
  /** @type {Hit[]} */
  const hits = [];
  if (wanted.length < 2) return hits;
  for (const bot of fleet.bots.values()) {
    if (hits.length >= MOST_HITS / 2) break;
    if (!bot.id.includes(wanted)) continue;
    hits.push({ path: `/bots/${bot.id}`, label: `Bot ${shortId(bot.id)}`, note: bot.slot ?? "", status: bot.status, kind: "bot" });
  }
  for (const slot of fleet.slots.values()) {
    if (hits.length >= MOST_HITS) break;
    if (!slot.name.includes(wanted)) continue;
    hits.push({ path: `/slots/${slot.name}`, label: slot.name, note: "", status: slot.status, kind: "slot" });
  }
  return hits;
}

export function SearchBox() {
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const hits = open ? findHits(text) : [];

  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const onKey = (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      const typing = target.closest("input, textarea, select, dialog, [contenteditable]");
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      field.current?.focus();
      field.current?.select();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);

  const leave = () => {
    setOpen(false);
    setChosen(-1);
  };
  /** @param {string} path @param {Record<string, string>} [query] */
  const show = (path, query) => {
    leave();
    setText("");
    field.current?.blur();
    go(path, query);
  };
  /** The field keeps the focus until the view changes. @param {Hit} hit */
  const choose = (hit) => (/** @type {Event} */ event) => {
    event.preventDefault();
    show(hit.path);
  };
  /** @param {Event} event */
  const onSubmit = (event) => {
    event.preventDefault();
    if (hits[chosen]) show(hits[chosen].path);
    else if (text.trim()) show("/search", { q: text.trim() });
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      if (hits.length === 0) field.current?.blur();
      leave();
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    setOpen(true);
    const step = event.key === "ArrowDown" ? 1 : -1;
    setChosen(Math.max(-1, Math.min(hits.length - 1, chosen + step)));
  };

  return html`<form class="search" role="search" onSubmit=${onSubmit}>
    <${Icon} name="search" />
    <input
      ref=${field} type="search" role="combobox" autocomplete="off" spellcheck="false"
      aria-label="Search for a bot, a meeting or a slot" placeholder="Bot, meeting link or slot"
      aria-expanded=${hits.length > 0} aria-controls=${id} aria-autocomplete="list" aria-activedescendant=${hits[chosen] && `${id}-${chosen}`}
      value=${text} onKeyDown=${onKeyDown} onFocus=${() => setOpen(true)} onBlur=${leave}
      onInput=${(/** @type {any} */ event) => { setText(event.target.value); setOpen(true); setChosen(-1); }}
    />
    <kbd aria-hidden="true">/</kbd>
    <ul class="search-hits" role="listbox" id=${id} aria-label="Found" hidden=${hits.length === 0}>
      ${hits.map(
        (hit, index) => html`<li key=${hit.path} id=${`${id}-${index}`} role="option" aria-selected=${index === chosen} onPointerDown=${choose(hit)}>
          <${StatusMark} status=${hit.status} kind=${hit.kind} short />
          <span class="mono">${hit.label}</span><span class="quiet truncate">${hit.note}</span>
        </li>`,
      )}
    </ul>
  </form>`;
}
