// Slots on one canvas, for fleets with more cells than a browser handles well as elements. Only changed cells are drawn
// again, and long work is done in slices. `slot-table.js` is the accessible form of the same slots.

import { fleet, markDrawn, subscribe } from "../lib/fleet.js";
import { go } from "../lib/router.js";
import { hideCard, showCard } from "./slot-card.js";
import { SLOT_STATUSES, matches } from "./slot-filter.js";

/** @typedef {import("../lib/types.js").LiveSlot} LiveSlot */
/** @typedef {import("./slot-filter.js").SlotFilterValue} SlotFilterValue */
/** @typedef {{pool: string, top: number, first: number, names: string[]}} Group */

/** Drawing rests after this time until the next frame. */
const SLICE_MS = 6;
/** The heading of a group, and the room below it. */
const HEAD = 34;
const GAP = 14;

/** @param {number} slots */
function pitchFor(slots) {
  return slots <= 12_000 ? 13 : slots <= 40_000 ? 9 : 6;
}

export class SlotCanvas {
  /**
   * @param {HTMLElement} root holds the canvas, and the ring around the current cell
   * @param {SlotFilterValue} filter
   * @param {(groups: Group[], height: number) => void} onLayout called when the groups have other places
   */
  constructor(root, filter, onLayout) {
    this.root = root;
    this.filter = filter;
    this.onLayout = onLayout;
    this.canvas = /** @type {HTMLCanvasElement} */ (root.querySelector("canvas"));
    this.ring = /** @type {HTMLElement} */ (root.querySelector(".canvas-ring"));
    this.spoken = /** @type {HTMLElement} */ (root.querySelector("[role=status]"));
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    /** @type {Group[]} */
    this.groups = [];
    /** The place of each slot in drawing order. @type {Map<string, number>} */
    this.places = new Map();
    /** @type {string[]} */
    this.names = [];
    /** @type {Set<string>} */
    this.dirty = new Set();
    /** From here on everything has to be drawn. */
    this.undrawn = 0;
    this.structure = -1;
    this.frame = 0;
    this.columns = 1;
    this.pitch = 13;
    this.scale = 1;
    this.current = -1;
    /** @type {Map<string, HTMLCanvasElement>} */
    this.sprites = new Map();
    this.stopListening = subscribe((changes) => {
      if (changes.snapshot) this.undrawn = 0;
      for (const slot of changes.slots) this.dirty.add(slot.name);
      this.plan();
    });
    this.resizes = new ResizeObserver(() => this.relayout());
    this.resizes.observe(root);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.theme.addEventListener("change", this.onTheme);
    this.canvas.addEventListener("pointermove", this.onPointer);
    this.canvas.addEventListener("pointerleave", this.onLeave);
    this.canvas.addEventListener("click", this.onClick);
    this.canvas.addEventListener("keydown", this.onKey);
    this.canvas.addEventListener("focus", this.onFocus);
    this.canvas.addEventListener("blur", this.onLeave);
  }

  destroy() {
    this.stopListening();
    this.resizes.disconnect();
    this.theme.removeEventListener("change", this.onTheme);
    cancelAnimationFrame(this.frame);
    hideCard();
  }

  /** @param {SlotFilterValue} filter */
  setFilter(filter) {
    this.filter = filter;
    this.undrawn = 0;
    this.plan();
  }

  relayout() {
    this.structure = -1;
    this.plan();
  }

  onTheme = () => {
    this.sprites.clear();
    this.undrawn = 0;
    this.plan();
  };

  plan() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.work());
  }

  work() {
    this.frame = 0;
    const end = performance.now() + SLICE_MS;
    if (this.structure !== fleet.structure) this.layOut();
    while (this.undrawn < this.names.length && (this.undrawn % 64 !== 0 || performance.now() < end)) {
      this.draw(this.undrawn);
      this.undrawn += 1;
    }
    for (const name of this.dirty) {
      const place = this.places.get(name);
      // What comes later is drawn with the rest.
      if (place !== undefined && place < this.undrawn) this.draw(place);
      this.dirty.delete(name);
      if (performance.now() > end + SLICE_MS) break;
    }
    if (this.undrawn >= this.names.length) markDrawn();
    if (this.undrawn < this.names.length || this.dirty.size > 0) this.plan();
  }

  /** Gives each slot its place: groups below each other, slots by number. */
  layOut() {
    this.structure = fleet.structure;
    const width = this.root.clientWidth;
    this.pitch = pitchFor(fleet.slots.size);
    this.columns = Math.max(1, Math.floor((width + 2) / this.pitch));
    this.places.clear();
    this.names = [];
    this.groups = [];
    let top = 0;
    for (const { name } of fleet.pools) {
      const names = fleet.slotNames(name);
      this.groups.push({ pool: name, top, first: this.names.length, names });
      for (const slot of names) {
        this.places.set(slot, this.names.length);
        this.names.push(slot);
      }
      top += HEAD + Math.ceil(names.length / this.columns) * this.pitch + GAP;
    }
    const height = Math.max(1, top - GAP);
    const scale = Math.min(devicePixelRatio, 16_000 / height);
    this.canvas.width = Math.floor(width * scale);
    this.canvas.height = Math.floor(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    if (this.scale !== scale) this.sprites.clear();
    this.scale = scale;
    this.undrawn = 0;
    this.onLayout(this.groups, height);
    this.moveRing(-1);
  }

  /**
   * The top left corner of a place.
   * @param {number} place
   * @returns {[x: number, y: number]}
   */
  corner(place) {
    const group = /** @type {Group} */ (this.groups.findLast(({ first, names }) => first <= place && names.length > 0));
    const index = place - group.first;
    return [(index % this.columns) * this.pitch, group.top + HEAD + Math.floor(index / this.columns) * this.pitch];
  }

  /** @param {number} place */
  draw(place) {
    const slot = fleet.slots.get(this.names[place]);
    if (!slot) return;
    const [x, y] = this.corner(place);
    this.context.clearRect(x, y, this.pitch, this.pitch);
    this.context.globalAlpha = matches(slot, this.filter) ? 1 : 0.18;
    const size = this.pitch - 2;
    this.context.drawImage(this.sprite(slot.status, slot.hot), x, y, size, size);
  }

  /**
   * The picture of a state, made once.
   * @param {string} status
   * @param {boolean} hot
   */
  sprite(status, hot) {
    const key = status + hot;
    const known = this.sprites.get(key);
    if (known) return known;
    const size = this.pitch - 2;
    const sprite = document.createElement("canvas");
    const scale = this.scale;
    sprite.width = sprite.height = Math.max(1, Math.round(size * scale));
    const context = /** @type {CanvasRenderingContext2D} */ (sprite.getContext("2d"));
    context.scale(sprite.width / size, sprite.width / size);
    drawState(context, size, status, hot, getComputedStyle(this.root));
    this.sprites.set(key, sprite);
    return sprite;
  }

  // ---- pointer and keyboard ----

  /**
   * The place below a point of the canvas, or -1.
   * @param {number} x
   * @param {number} y
   */
  placeAt(x, y) {
    const group = this.groups.findLast(({ top }) => top + HEAD <= y);
    const column = Math.floor(x / this.pitch);
    if (!group || column < 0 || column >= this.columns) return -1;
    const index = Math.floor((y - group.top - HEAD) / this.pitch) * this.columns + column;
    return index < group.names.length ? group.first + index : -1;
  }

  onPointer = (/** @type {PointerEvent} */ event) => this.moveRing(this.placeAt(event.offsetX, event.offsetY));

  onLeave = () => this.moveRing(-1);

  onFocus = () => {
    if (this.canvas.matches(":focus-visible")) this.moveRing(Math.max(0, this.current));
  };

  onClick = (/** @type {MouseEvent} */ event) => this.open(this.placeAt(event.offsetX, event.offsetY));

  onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") return this.open(this.current);
    if (event.key === "Escape") return this.moveRing(-1);
    const next = this.neighbour(event.key);
    if (next === null || event.altKey || event.metaKey || event.ctrlKey) return undefined;
    event.preventDefault();
    this.moveRing(Math.max(0, Math.min(this.names.length - 1, next)));
    this.ring.scrollIntoView({ block: "nearest" });
    this.speak();
    return undefined;
  };

  /** Tells screen readers which slot the keyboard is on. */
  speak() {
    const slot = fleet.slots.get(this.names[this.current]);
    if (slot) this.spoken.textContent = `${slot.name}, ${slot.status}${slot.hot ? ", hot" : ""}`;
  }

  /** @param {string} key */
  neighbour(key) {
    const at = Math.max(0, this.current);
    switch (key) {
      case "ArrowRight": return at + 1;
      case "ArrowLeft": return at - 1;
      case "ArrowDown": return at + this.columns;
      case "ArrowUp": return at - this.columns;
      case "Home": return 0;
      case "End": return this.names.length - 1;
      default: return null;
    }
  }

  /** @param {number} place */
  open(place) {
    if (this.names[place]) go(`/slots/${encodeURIComponent(this.names[place])}`);
  }

  /**
   * Marks a cell and shows its card; -1 marks none.
   * @param {number} place
   */
  moveRing(place) {
    this.ring.hidden = place < 0;
    if (place < 0) return hideCard();
    this.current = place;
    const [x, y] = this.corner(place);
    this.ring.style.translate = `${x - 2}px ${y - 2}px`;
    this.ring.style.width = this.ring.style.height = `${this.pitch + 2}px`;
    return showCard(this.names[place], () => this.ring.getBoundingClientRect());
  }
}

/**
 * Draws a state with the shapes of the cells in overview.css.
 * @param {CanvasRenderingContext2D} context
 * @param {number} size
 * @param {string} status
 * @param {boolean} hot
 * @param {CSSStyleDeclaration} style
 */
function drawState(context, size, status, hot, style) {
  const colour = style.getPropertyValue(`--slot-${SLOT_STATUSES.includes(status) ? status : "idle"}`);
  const middle = size / 2;
  context.fillStyle = context.strokeStyle = colour;
  context.beginPath();
  if (status === "error") {
    context.moveTo(middle, 0);
    context.lineTo(size, size);
    context.lineTo(0, size);
    context.fill();
  } else if (status === "draining") {
    context.moveTo(0, 0);
    context.lineTo(size, 0);
    context.lineTo(middle, size);
    context.fill();
  } else if (status === "creating") {
    context.fillRect(0, middle, size, middle);
    context.strokeRect(0.5, 0.5, size - 1, size - 1);
  } else if (status === "busy") {
    context.roundRect(0, 0, size, size, size / 5);
    context.fill();
  } else {
    context.lineWidth = 1.25;
    if (hot) context.strokeStyle = style.getPropertyValue("--slot-hot");
    context.roundRect(0.75, 0.75, size - 1.5, size - 1.5, size / 5);
    context.stroke();
  }
  if (!hot || status === "error" || status === "draining" || status === "creating") return;
  context.fillStyle = style.getPropertyValue(status === "busy" ? "--raised" : "--slot-hot");
  context.globalAlpha = status === "busy" ? 0.55 : 1;
  context.beginPath();
  context.arc(middle, middle, Math.max(1, size / 6), 0, 2 * Math.PI);
  context.fill();
}
