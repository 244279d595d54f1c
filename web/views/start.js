// The page that starts a bot: the same form as the dialog, with an address that can be linked. `?link=` fills in the meeting.

import { html } from "../lib/html.js";
import { PageHead } from "../components/page-parts.js";
import { StartForm } from "../components/start-dialog.js";

/** @param {{query: Record<string, string>}} props */
export function StartPage({ query }) {
  return html`
    <div class="page page-narrow">
      <${PageHead} title="Start a bot" />
      <section class="panel" aria-label="The new bot">
        <div class="panel-body"><${StartForm} meetingUrl=${query.link ?? ""} /></div>
      </section>
    </div>`;
}
