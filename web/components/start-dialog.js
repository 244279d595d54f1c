// Starts a bot from a pasted link: a form for the page `#/start`, and a dialog that opens from everywhere.

import { html, render, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { asCurl, asProblem, call, quoted } from "../lib/api.js";
import { base, session } from "../lib/session.js";
import { go } from "../lib/router.js";
import { statusLabel } from "../lib/format.js";
import { CopyMenu, Dialog, toast } from "./action.js";
import { ProblemNote } from "./ui.js";

/** @typedef {import("../lib/types.js").User} User */

/** Hosts of meeting links, to show the platform while the link is typed. The server decides. */
const HOSTS = [
  { platform: "google_meet", host: /(^|\.)meet\.google\.com$/ },
  { platform: "teams", host: /(^|\.)teams\.(microsoft|live)\.com$/ },
  { platform: "zoom", host: /(^|\.)zoom\.(us|com)$/ },
];

/** @param {string} link */
function platformOf(link) {
  try {
    const url = new URL(link.includes("://") ? link : "https://" + link);
    return HOSTS.find(({ host }) => host.test(url.hostname))?.platform ?? null;
  } catch {
    return null;
  }
}

const LAST_USER = "greenroom.start.user";

/** With more users than this, an operator enters the id of the user instead of choosing. */
const MOST_USERS = 1000;

/** The users that an operator can choose from. `more` says that there are too many to choose from. */
function useUsers() {
  const [found, setFound] = useState(/** @type {{users: User[] | null, more: boolean}} */ ({ users: null, more: false }));
  const [problem, setProblem] = useState(/** @type {import("../lib/api.js").Problem | null} */ (null));
  const listing = useRef(/** @type {ReturnType<typeof listUsers> | null} */ (null));
  useEffect(() => {
    if (session()?.kind !== "operator") return;
    listing.current = listUsers();
    listing.current.then(setFound, (error) => setProblem(asProblem(error)));
  }, []);
  return { ...found, problem, listing };
}

/**
 * The user that the form is about: the one that was chosen last, if there is still such a user, else the first.
 * @param {{users: User[] | null, more: boolean}} found
 * @param {string} wanted
 */
function chooseUser({ users, more }, wanted) {
  return more || users?.some(({ id }) => id === wanted) ? wanted.trim() : (users?.[0]?.id ?? "");
}

async function listUsers() {
  /** @type {User[]} */
  const users = [];
  let cursor = "";
  do {
    const page = await call("GET", `/admin/users?limit=200${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    users.push(...page.users);
    cursor = page.next_cursor ?? "";
  } while (cursor && users.length < MOST_USERS);
  return { users, more: cursor !== "" };
}

/**
 * @param {object} props
 * @param {string} [props.meetingUrl]
 * @param {(bot: import("../lib/types.js").Bot) => void} [props.onStarted]
 * @param {() => void} [props.onCancel]
 */
export function StartForm({ meetingUrl = "", onStarted, onCancel }) {
  const operator = session()?.kind === "operator";
  const { users, more, problem: usersProblem, listing } = useUsers();
  const [form, setForm] = useState({ link: meetingUrl, user: localStorage.getItem(LAST_USER) ?? "", name: "", priority: "", timeout: "" });
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {import("../lib/api.js").Problem | null} */ (null));
  const first = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => first.current?.focus(), []);

  const user = chooseUser({ users, more }, form.user);
  const body = useMemo(() => {
    /** @type {Record<string, unknown>} */
    const sent = { meeting_url: form.link.trim() };
    if (operator) sent.user_id = user;
    if (form.name.trim()) sent.bot_display_name = form.name.trim();
    if (form.priority) sent.priority = Number(form.priority);
    if (form.timeout) sent.queue_timeout_ms = Number(form.timeout) * 1000;
    return sent;
  }, [form, user, operator]);
  // The same request sent twice, by a second click or after a lost answer, starts one bot.
  const key = useMemo(() => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16).padStart(8, "0")).join(""), [body]);

  /** @param {"link" | "user" | "name" | "priority" | "timeout"} name */
  const set = (name) => (/** @type {any} */ event) => setForm({ ...form, [name]: event.target.value });
  const path = base() + "/bots";
  /** @param {Event} event */
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      // A quick person sends the form before the users are there.
      const sent = operator && !user && listing.current ? { ...body, user_id: chooseUser(await listing.current, form.user) } : body;
      const { bot } = await call("POST", path, sent, { headers: { "idempotency-key": key } });
      if (operator) localStorage.setItem(LAST_USER, String(sent.user_id));
      toast("The bot is on its way");
      onStarted?.(bot);
      go(`/bots/${bot.id}`);
    } catch (error) {
      setProblem(asProblem(error));
      setBusy(false);
    }
  };

  const platform = platformOf(form.link);
  const name = form.name.trim();
  const parts = [
    "greenroom bots start",
    quoted(form.link.trim() || "LINK"),
    operator && user && `--user ${user}`,
    name && `--name ${quoted(name)}`,
    form.priority && `--priority ${form.priority}`,
  ];
  const cli = parts.filter(Boolean).join(" ");
  return html`<form class="form start-form" onSubmit=${onSubmit}>
    <div class="field">
      <label for="start-link">Meeting link</label>
      <input
        id="start-link" ref=${first} type="text" inputmode="url" autocomplete="off" spellcheck="false" required
        placeholder="https://meet.google.com/abc-defg-hij" aria-describedby="start-platform"
        value=${form.link} onInput=${set("link")}
      />
      <p class="hint" id="start-platform">
        ${platform ? `A meeting on ${statusLabel(platform)}.` : "A link of Google Meet, Teams or Zoom, as copied from an invitation."}
      </p>
    </div>
    ${operator &&
    html`<div class="field">
      <label for="start-user">User</label>
      <${UserField} users=${users} more=${more} typed=${form.user} chosen=${user} onInput=${set("user")} />
      <${ProblemNote} problem=${usersProblem} />
    </div>`}
    <details>
      <summary>More settings</summary>
      <div class="start-more">
        <div class="field wide">
          <label for="start-name">Name in the meeting</label>
          <input id="start-name" type="text" maxlength="100" autocomplete="off" value=${form.name} onInput=${set("name")} />
        </div>
        <div class="field">
          <label for="start-priority">Priority</label>
          <input
            id="start-priority" type="number" placeholder="100" aria-describedby="start-priority-hint"
            value=${form.priority} onInput=${set("priority")}
          />
          <p class="hint" id="start-priority-hint">A lower number goes first.</p>
        </div>
        <div class="field">
          <label for="start-timeout">Wait for a slot, in seconds</label>
          <input id="start-timeout" type="number" min="1" max="600" placeholder="300" value=${form.timeout} onInput=${set("timeout")} />
        </div>
      </div>
    </details>
    <${ProblemNote} problem=${problem} />
    ${problem?.bot_id && html`<p><a href=${`#/bots/${problem.bot_id}`} onClick=${onCancel}>Show the bot that is there already</a></p>`}
    <div class="dialog-buttons">
      ${onCancel && html`<button type="button" onClick=${onCancel}>Cancel</button>`}
      <span class="action-buttons">
        <button class="primary" type="submit" aria-busy=${busy} disabled=${users?.length === 0}>
          ${busy && html`<span class="spinner" aria-hidden="true"></span>`}Start the bot
        </button>
        <${CopyMenu} name="this request" curl=${asCurl("POST", path, body)} cli=${cli} tone="primary" />
      </span>
    </div>
  </form>`;
}

/**
 * The choice of the user: a list, or a field for the id if there are too many users for a list.
 * @param {{users: User[] | null, more: boolean, typed: string, chosen: string, onInput: (event: Event) => void}} props
 */
function UserField({ users, more, typed, chosen, onInput }) {
  if (users?.length === 0) {
    return html`<p class="hint" id="start-user">
      There is no user yet. Create one with <code>POST /admin/users</code>; see <a href="/docs">the documentation</a>.
    </p>`;
  }
  if (more) {
    return html`<input
      id="start-user" type="text" autocomplete="off" spellcheck="false" required placeholder="Id of the user"
      value=${typed} onInput=${onInput}
    />`;
  }
  return html`<select id="start-user" required=${users !== null} disabled=${!users} value=${chosen} onChange=${onInput}>
    ${users
      ? users.map(({ id, name, email }) => html`<option key=${id} value=${id}>${name ? `${name} (${email})` : email}</option>`)
      : html`<option value="">Loading</option>`}
  </select>`;
}

/**
 * Opens the form in a dialog.
 * @param {string} [meetingUrl]
 */
export function openStartDialog(meetingUrl) {
  if (document.querySelector("dialog[open]")) return;
  const place = document.createElement("div");
  document.body.append(place);
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const close = () => {
    render(null, place);
    place.remove();
    before?.focus();
  };
  render(
    html`<${Dialog} title="Start a bot" wide onClose=${close}>
      <${StartForm} meetingUrl=${meetingUrl} onStarted=${close} onCancel=${close} />
    <//>`,
    place,
  );
}
