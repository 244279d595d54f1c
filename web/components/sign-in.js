// The page for signing in, with the admin token or with the API key of a user.

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { asProblem } from "../lib/api.js";
import { sessionEnded, signIn } from "../lib/session.js";
import { ProblemNote } from "./ui.js";

export function SignIn() {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {import("../lib/api.js").Problem | null} */ (null));
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    document.title = "Sign in · Greenroom";
    field.current?.focus();
  }, []);

  /** @param {Event} event */
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      await signIn(token.trim());
    } catch (error) {
      setProblem(asProblem(error));
      setBusy(false);
      field.current?.select();
    }
  };

  return html`<main class="alone">
    <form class="sign-in panel" onSubmit=${onSubmit}>
      <h1 class="brand">Greenroom</h1>
      ${sessionEnded() && !problem && html`<p class="sign-in-note" role="status">${sessionEnded()}</p>`}
      <div class="field">
        <label for="token">Admin token or API key</label>
        <input
          id="token" ref=${field} type="password" name="token" autocomplete="current-password" spellcheck="false" required
          value=${token} aria-describedby="token-hint" onInput=${(/** @type {any} */ event) => setToken(event.target.value)}
        />
        <p class="hint" id="token-hint">With the admin token you see the whole fleet. With an API key you see your own bots.</p>
      </div>
      <${ProblemNote} problem=${problem} />
      <button class="primary" type="submit" aria-busy=${busy}>${busy && html`<span class="spinner" aria-hidden="true"></span>`}Sign in</button>
      <p class="hint">The server printed both at its first start. The session lasts 12 hours. <a href="/docs">API documentation</a></p>
    </form>
  </main>`;
}
