// Slots as elements: one link per slot, in a list per pool. The cells are made and changed without rendering, so that a
// change costs only its own cells. One cell is in the tab order; the arrow keys move between cells.

import { fleet, markDrawn, subscribe } from "../lib/fleet.js";
import { statusLabel } from "../lib/format.js";
import { matches } from "./slot-filter.js";
import { CARD_ID, hideCard, showCard } from "./slot-card.js";

/** @typedef {import("../lib/types.js").LiveSlot} LiveSlot */
/** @typedef {import("./slot-filter.js").SlotFilterValue} SlotFilterValue */

/** Making cells rests after this time until the next frame. */
const SLICE_MS = 8;

export class SlotCells {
  /**
   * @param {HTMLElement} root
   * @param {SlotFilterValue} filter
   */
  constructor(root, filter) {
    this.root = root;
    this.filter = filter;
    /** @type {Map<string, HTMLAnchorElement>} */
    this.cells = new Map();
    /** @type {Set<string>} */
    this.dirty = new Set();
    this.structure = -1;
    this.frame = 0;
    /** The cell in the tab order. */
    this.current = "";
    this.stopListening = subscribe((changes) => {
      if (changes.snapshot) for (const name of this.cells.keys()) this.dirty.add(name);
      for (const slot of changes.slots) this.dirty.add(slot.name);
      this.plan();
    });
    root.addEventListener("pointerover", this.onPointer);
    root.addEventListener("pointerleave", hideCard);
    root.addEventListener("focusin", this.onFocus);
    root.addEventListener("focusout", hideCard);
    root.addEventListener("keydown", this.onKey);
    this.work();
  }

  destroy() {
    this.stopListening();
    cancelAnimationFrame(this.frame);
    hideCard();
  }

  /** @param {SlotFilterValue} filter */
  setFilter(filter) {
    this.filter = filter;
    for (const name of this.cells.keys()) this.dirty.add(name);
    this.plan();
  }

  plan() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.work());
  }

  /** Brings the cells up to date, for as long as one slice. */
  work() {
    this.frame = 0;
    const end = performance.now() + SLICE_MS;
    if (this.structure !== fleet.structure && !this.arrange(end)) return this.plan();
    for (const name of this.dirty) {
      const slot = fleet.slots.get(name);
      const cell = this.cells.get(name);
      if (slot && cell) this.draw(cell, slot);
      this.dirty.delete(name);
      if (performance.now() > end) break;
    }
    if (this.dirty.size > 0) this.plan();
    return undefined;
  }

  /**
   * Adds and removes cells until the lists are those of the pools. Returns `false` if time ran out.
   * @param {number} end
   */
  arrange(end) {
    const structure = fleet.structure;
    for (const [name, cell] of this.cells) {
      if (fleet.slots.has(name)) continue;
      cell.parentElement?.remove();
      this.cells.delete(name);
    }
    for (const list of this.lists()) {
      const names = fleet.slotNames(list.dataset.pool ?? "");
      for (const [index, name] of names.entries()) {
        const item = list.children[index];
        if (item?.firstElementChild === this.cells.get(name) && item) continue;
        const slot = /** @type {LiveSlot} */ (fleet.slots.get(name));
        const cell = this.cells.get(name) ?? this.make(slot);
        list.insertBefore(/** @type {Node} */ (cell.parentElement), item ?? null);
        if (index % 64 === 63 && performance.now() > end) return false;
      }
    }
    if (!this.cells.has(this.current)) this.setCurrent(this.cells.keys().next().value ?? "");
    this.structure = structure;
    markDrawn();
    return true;
  }

  /** @returns {HTMLElement[]} */
  lists() {
    return [...this.root.querySelectorAll("ul[data-pool]")].map((list) => /** @type {HTMLElement} */ (list));
  }

  /** @param {LiveSlot} slot */
  make(slot) {
    const item = document.createElement("li");
    const cell = document.createElement("a");
    cell.href = `#/slots/${encodeURIComponent(slot.name)}`;
    cell.tabIndex = -1;
    cell.dataset.slot = slot.name;
    item.append(cell);
    this.cells.set(slot.name, cell);
    this.draw(cell, slot);
    return cell;
  }

  /**
   * @param {HTMLAnchorElement} cell
   * @param {LiveSlot} slot
   */
  draw(cell, slot) {
    const look = `cell s-${slot.status}${slot.hot ? " hot" : ""}${matches(slot, this.filter) ? "" : " dim"}`;
    if (cell.className !== look) cell.className = look;
    const label = `${slot.name}, ${statusLabel(slot.status).toLowerCase()}${slot.hot ? ", hot" : ""}`;
    if (cell.ariaLabel !== label) cell.ariaLabel = label;
  }

  /** @param {string} name */
  setCurrent(name) {
    const earlier = this.cells.get(this.current);
    if (earlier) {
      earlier.tabIndex = -1;
      earlier.removeAttribute("aria-describedby");
    }
    this.current = name;
    const cell = this.cells.get(name);
    if (cell) {
      cell.tabIndex = 0;
      cell.setAttribute("aria-describedby", CARD_ID);
    }
  }

  /** @param {Event} event */
  cellOf(event) {
    return /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("a[data-slot]"));
  }

  onPointer = (/** @type {Event} */ event) => {
    const cell = this.cellOf(event);
    if (cell) showCard(cell.dataset.slot ?? "", () => cell.getBoundingClientRect());
    else hideCard();
  };

  onFocus = (/** @type {Event} */ event) => {
    const cell = this.cellOf(event);
    if (!cell) return;
    this.setCurrent(cell.dataset.slot ?? "");
    showCard(cell.dataset.slot ?? "", () => cell.getBoundingClientRect());
  };

  onKey = (/** @type {KeyboardEvent} */ event) => {
    const cell = this.cellOf(event);
    if (event.key === "Escape") hideCard();
    if (!cell || event.altKey || event.metaKey) return;
    const next = this.neighbour(cell, event.key, event.ctrlKey);
    if (!next) return;
    event.preventDefault();
    next.focus();
  };

  /**
   * The cell that a key leads to.
   * @param {HTMLElement} cell
   * @param {string} key
   * @param {boolean} everywhere
   * @returns {HTMLElement | undefined}
   */
  neighbour(cell, key, everywhere) {
    const lists = this.lists().filter((list) => list.childElementCount > 0);
    const at = lists.findIndex((list) => list.contains(cell));
    const cells = lists.map((list) => /** @type {HTMLElement[]} */ ([...list.children].map((item) => item.firstElementChild)));
    const index = cells[at].indexOf(cell);
    const columns = getComputedStyle(lists[at]).gridTemplateColumns.split(" ").length;
    switch (key) {
      case "ArrowRight":
        return cells[at][index + 1] ?? cells[at + 1]?.[0];
      case "ArrowLeft":
        return cells[at][index - 1] ?? cells[at - 1]?.at(-1);
      case "ArrowDown": {
        const lastRow = Math.floor(index / columns) === Math.floor((cells[at].length - 1) / columns);
        if (!lastRow) return cells[at][Math.min(index + columns, cells[at].length - 1)];
        return cells[at + 1]?.[Math.min(index % columns, cells[at + 1].length - 1)];
      }
      case "ArrowUp": {
        if (index >= columns) return cells[at][index - columns];
        const above = cells[at - 1];
        if (!above) return undefined;
        const rowStart = Math.floor((above.length - 1) / columns) * columns;
        return above[Math.min(rowStart + (index % columns), above.length - 1)];
      }
      case "Home":
        return everywhere ? cells[0][0] : cells[at][0];
      case "End":
        return everywhere ? cells.at(-1)?.at(-1) : cells[at].at(-1);
      default:
        return undefined;
    }
  }
}
