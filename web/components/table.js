// A table with columns that give way on narrow screens, and with rows that can be selected.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "../lib/html.js";

/**
 * @template T
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: T) => any} cell
 * @property {boolean} [number] numbers stand at the right
 * @property {2 | 3 | 4} [from] how wide a table must be to show the column: 2 wider than a phone, up to 4 for the widest
 * @property {boolean} [wraps] long text may take more than one line
 * @property {boolean} [head] the cell names its row
 */

/**
 * @typedef {object} Selection
 * @property {Set<string>} possible the rows that can be selected
 * @property {Set<string>} chosen
 * @property {(key: string, isRange: boolean) => void} toggle
 * @property {(all: boolean) => void} toggleAll
 * @property {() => void} clear
 */

/**
 * Which of these keys are selected. A key that leaves the list leaves the selection.
 *
 * @param {string[]} keys of the rows that can be selected, in the order of the rows
 * @returns {Selection}
 */
export function useSelection(keys) {
  const [stored, setStored] = useState(/** @type {Set<string>} */ (new Set()));
  const last = useRef(/** @type {string | null} */ (null));
  const list = keys.join("\n");
  const possible = useMemo(() => new Set(keys), [list]);
  const chosen = useMemo(() => new Set(keys.filter((key) => stored.has(key))), [stored, list]);

  const toggle = useCallback((/** @type {string} */ key, /** @type {boolean} */ isRange) => {
    const from = isRange && last.current !== null ? keys.indexOf(last.current) : -1;
    const to = keys.indexOf(key);
    const range = from < 0 ? [key] : keys.slice(Math.min(from, to), Math.max(from, to) + 1);
    last.current = key;
    setStored((old) => {
      const next = new Set(old);
      const isAdded = !old.has(key);
      for (const one of range) isAdded ? next.add(one) : next.delete(one);
      return next;
    });
  }, [list]);
  const toggleAll = useCallback((/** @type {boolean} */ all) => setStored(new Set(all ? keys : [])), [list]);
  const clear = useCallback(() => setStored(new Set()), []);
  return { possible, chosen, toggle, toggleAll, clear };
}

/**
 * @template T
 * @param {object} props
 * @param {string} props.caption what the table lists, for screen readers
 * @param {Column<T>[]} props.columns
 * @param {T[]} props.rows
 * @param {(row: T) => string} props.keyOf
 * @param {Selection} [props.selection]
 * @param {boolean} [props.isFramed] a table inside of a panel needs no frame of its own
 * @param {(row: T) => string} [props.nameOf] names a row in the label of its checkbox
 */
export function Table({ caption, columns, rows, keyOf, selection, nameOf, isFramed = true }) {
  return html`
    <div class=${`table-wrap${isFramed ? " panel" : ""}`}>
      <table>
        <caption class="unseen">${caption}</caption>
        <thead>
          <tr>
            ${selection && html`<th class="cell-select" scope="col"><${SelectAll} selection=${selection} /></th>`}
            ${columns.map((column) => html`<th scope="col" class=${classOf(column)}>${column.title}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${rows.map((row) => {
            const key = keyOf(row);
            const isChosen = selection?.chosen.has(key) ?? false;
            return html`
              <tr key=${key} class=${isChosen ? "is-chosen" : ""}>
                ${selection && html`
                  <td class="cell-select">
                    ${selection.possible.has(key) && html`
                      <label class="check">
                        <input type="checkbox" checked=${isChosen}
                          onClick=${(/** @type {MouseEvent} */ event) => selection.toggle(key, event.shiftKey)} />
                        <span class="unseen">Select ${(nameOf ?? keyOf)(row)}</span>
                      </label>`}
                  </td>`}
                ${columns.map((column) => (column.head
                  ? html`<th scope="row" class=${classOf(column)}>${column.cell(row)}</th>`
                  : html`<td class=${classOf(column)}>${column.cell(row)}</td>`))}
              </tr>`;
          })}
        </tbody>
      </table>
    </div>`;
}

/** @param {{selection: Selection}} props */
function SelectAll({ selection }) {
  const box = useRef(/** @type {HTMLInputElement | null} */ (null));
  const count = selection.chosen.size;
  const rows = selection.possible.size;
  useEffect(() => {
    if (box.current) box.current.indeterminate = count > 0 && count < rows;
  }, [count, rows]);
  return html`
    <label class="check">
      <input type="checkbox" ref=${box} checked=${rows > 0 && count === rows} disabled=${rows === 0}
        onChange=${(/** @type {any} */ event) => selection.toggleAll(event.currentTarget.checked)} />
      <span class="unseen">Select all rows that are shown</span>
    </label>`;
}

/** @param {Column<any>} column */
function classOf({ number, from, wraps, head }) {
  return [number && "right", from && `from-${from}`, wraps && "cell-wraps", head && "cell-head"].filter(Boolean).join(" ");
}
