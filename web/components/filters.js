// Filters of lists: fields with their labels, a text that follows into the address, and how many rows match.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { count, number, statusLabel } from "../lib/format.js";
import { setQuery } from "../lib/router.js";

/** More matches than this are only counted: who searches for a text wants few. */
export const MATCHES_MAX = 200;

/**
 * A field of a filter, with its label.
 *
 * @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} props
 */
export function SelectField({ label, value, options, onChange }) {
  return html`
    <label class="field">
      <span class="label">${label}</span>
      <select value=${value} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
        ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
      </select>
    </label>`;
}

/**
 * A field for text that filters a list while the user types.
 *
 * @param {{label: string, value: string, placeholder?: string, onInput: (value: string) => void}} props
 */
export function TextField({ label, value, placeholder, onInput }) {
  return html`
    <label class="field field-text">
      <span class="label">${label}</span>
      <input type="search" value=${value} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
        onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)} />
    </label>`;
}

/**
 * The choices of a filter: all, or one of these statuses or platforms.
 *
 * @param {string} all
 * @param {string[]} values
 * @returns {[string, string][]}
 */
export function statusOptions(all, values) {
  return [["", all], ...values.map((value) => /** @type {[string, string]} */ ([value, statusLabel(value)]))];
}

/**
 * The text of a filter. The address follows a moment after the last key, so that typing stays quick.
 *
 * @param {string} inAddress
 * @returns {[string, (value: string) => void]}
 */
export function useText(inAddress) {
  const [text, setText] = useState(inAddress);
  const sent = useRef(inAddress);
  useEffect(() => {
    if (inAddress === sent.current) return;
    sent.current = inAddress;
    setText(inAddress);
  }, [inAddress]);
  useEffect(() => {
    if (text === sent.current) return undefined;
    const timer = setTimeout(() => {
      sent.current = text;
      setQuery({ q: text });
    }, 300);
    return () => clearTimeout(timer);
  }, [text]);
  return [text, setText];
}

/**
 * How many rows are shown, and of how many.
 *
 * @param {string} noun
 * @param {number} shown
 * @param {number} found
 * @param {number | null} searched `null` without a text
 */
export function shownText(noun, shown, found, searched) {
  if (searched === null) return `${count(shown, noun)} shown`;
  const matching = `${count(found, noun)} of ${number(searched)} match`;
  return shown < found ? `${matching}, and the first ${shown} are shown` : matching;
}
