// Buttons that change something: they make one call of the API, show its progress and its problem, and can be copied as a
// `curl` call or as a command. Also the dialog that asks before, and the short message after.

import { html, render, useEffect, useRef, useState } from "../lib/html.js";
import { asCurl, asProblem, call } from "../lib/api.js";
import { Icon, ProblemNote, copyText } from "./ui.js";

/** @typedef {import("../lib/api.js").Problem} Problem */
/** @typedef {{title: string, text?: unknown, button: string, danger?: boolean}} Question */

/**
 * @param {object} props
 * @param {string} props.label
 * @param {string} props.method
 * @param {string} props.path
 * @param {unknown} [props.body]
 * @param {string} [props.cli] the same as a command
 * @param {Question} [props.confirm] asked before the call
 * @param {boolean} [props.danger]
 * @param {boolean} [props.primary]
 * @param {boolean} [props.small]
 * @param {boolean} [props.disabled]
 * @param {string} [props.describe] what it acts on, for screen readers
 * @param {string} [props.done] shown after the call
 * @param {(answer: any) => void} [props.onDone]
 */
export function ActionButton({ label, method, path, body, cli, confirm, danger, primary, small, disabled, describe, done, onDone }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const run = async () => {
    if (busy || (confirm && !(await confirmDialog(confirm)))) return;
    setBusy(true);
    setProblem(null);
    try {
      const answer = await call(method, path, body);
      if (done) toast(done);
      onDone?.(answer);
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  const tone = [danger && "danger", primary && "primary", small && "small"].filter(Boolean).join(" ");
  return html`<span class="action">
    <span class="action-buttons">
      <button type="button" class=${tone} disabled=${disabled} aria-busy=${busy} aria-label=${describe && `${label} ${describe}`} onClick=${run}>
        ${busy && html`<span class="spinner" aria-hidden="true"></span>`}${label}
      </button>
      <${CopyMenu} name=${describe ? `${label} ${describe}` : label} curl=${asCurl(method, path, body)} cli=${cli} tone=${tone} />
    </span>
    <${ProblemNote} problem=${problem} />
  </span>`;
}

/**
 * A small menu: copy as curl, copy as command.
 * @param {{name: string, curl: string, cli?: string, tone?: string}} props
 */
export function CopyMenu({ name, curl, cli, tone = "" }) {
  const [open, setOpen] = useState(false);
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const menu = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!open) return undefined;
    place(menu.current, root.current);
    /** @type {HTMLElement | null | undefined} */ (menu.current?.querySelector("button"))?.focus();
    const outside = (/** @type {Event} */ event) => {
      if (!root.current?.contains(/** @type {Node} */ (event.target))) setOpen(false);
    };
    const close = () => setOpen(false);
    document.addEventListener("pointerdown", outside);
    addEventListener("scroll", close, { capture: true, passive: true });
    addEventListener("resize", close);
    return () => {
      document.removeEventListener("pointerdown", outside);
      removeEventListener("scroll", close, { capture: true });
      removeEventListener("resize", close);
    };
  }, [open]);
  const close = () => {
    setOpen(false);
    /** @type {HTMLElement | null | undefined} */ (root.current?.querySelector(".menu-button"))?.focus();
  };
  /** @param {string} text @param {string} what */
  const copy = async (text, what) => {
    await copyText(text);
    close();
    toast(`Copied as ${what}`);
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      event.preventDefault();
      close();
    }
    if (event.key === "Tab") setOpen(false);
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const items = /** @type {HTMLElement[]} */ ([...(menu.current?.querySelectorAll("button") ?? [])]);
    const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    items.at((at + (event.key === "ArrowDown" ? 1 : -1)) % items.length)?.focus();
  };
  const items = [["curl", curl], ["command", cli ?? ""]].filter(([, text]) => text !== "");
  return html`<span class="copy-menu" ref=${root}>
    <button
      type="button" class=${`menu-button ${tone}`} aria-haspopup="menu" aria-expanded=${open}
      aria-label=${`Copy “${name}” as curl or command`} onClick=${() => setOpen(!open)}
    ><${Icon} name="open" /></button>
    ${open &&
    html`<span class="menu" role="menu" ref=${menu} onKeyDown=${onKeyDown}>
      ${items.map(
        ([what, text]) => html`<button key=${what} type="button" role="menuitem" tabindex="-1" onClick=${() => copy(text, what)}>
          ${`Copy as ${what}`}<code>${text}</code>
        </button>`,
      )}
    </span>`}
  </span>`;
}

/**
 * Puts the menu below its button, within the window.
 * @param {HTMLElement | null} menu
 * @param {HTMLElement | null} button
 */
function place(menu, button) {
  if (!menu || !button) return;
  const around = button.getBoundingClientRect();
  const size = menu.getBoundingClientRect();
  const left = Math.max(8, Math.min(around.right - size.width, innerWidth - size.width - 8));
  const below = around.bottom + 4;
  const top = below + size.height > innerHeight - 8 ? Math.max(8, around.top - size.height - 4) : below;
  menu.style.left = `${left}px`;
  menu.style.top = `${top}px`;
}

/**
 * Asks in a dialog. Resolves to `true` if the person agrees.
 * @param {Question} question
 * @returns {Promise<boolean>}
 */
export function confirmDialog({ title, text, button, danger }) {
  return new Promise((resolve) => {
    const place = document.createElement("div");
    document.body.append(place);
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    /** @param {boolean} agreed */
    const finish = (agreed) => {
      render(null, place);
      place.remove();
      before?.focus();
      resolve(agreed);
    };
    render(
      html`<${Dialog} title=${title} onClose=${() => finish(false)}>
        ${text && html`<div class="dialog-text">${text}</div>`}
        <div class="dialog-buttons">
          <button type="button" onClick=${() => finish(false)}>Cancel</button>
          <button type="button" class=${danger ? "danger solid" : "primary"} onClick=${() => finish(true)}>${button}</button>
        </div>
      <//>`,
      place,
    );
  });
}

/**
 * A modal dialog. Escape and the backdrop close it.
 * @param {{title: string, onClose: () => void, children?: unknown, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  /** @param {Event} event */
  const onCancel = (event) => {
    event.preventDefault();
    onClose();
  };
  /** @param {MouseEvent} event */
  const onClick = (event) => {
    if (event.target === dialog.current) onClose();
  };
  return html`<dialog class=${wide ? "wide" : ""} ref=${dialog} aria-labelledby="dialog-title" onCancel=${onCancel} onMouseDown=${onClick}>
    <div class="dialog-inner">
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </div>
  </dialog>`;
}

/** @type {HTMLElement | null} */
let toasts = null;

/**
 * Shows a short message for a few seconds, and says it to screen readers.
 * @param {string} text
 */
export function toast(text) {
  if (!toasts) {
    toasts = document.createElement("div");
    toasts.className = "toasts";
    toasts.setAttribute("role", "status");
    document.body.append(toasts);
  }
  const note = document.createElement("p");
  note.className = "toast";
  note.textContent = text;
  toasts.append(note);
  setTimeout(() => note.remove(), 4000);
}
