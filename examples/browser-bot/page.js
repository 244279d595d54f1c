// Runs in every page that bot.py opens. It reports what the page shows, and operates the page for bot.py. Only this file
// knows the page of the meeting, so it is the one to write again for a real meeting. A real Meet, Teams or Zoom needs:
//
// - Selectors. Their pages have no `data-state`. Recognise each state by its own element, such as the button that leaves
//   the call. Prefer roles and labels, and test them often, because the pages change.
// - Real input. Some pages ignore clicks of a script. Send those with Input.dispatchMouseEvent and Input.insertText.
// - A signed-in profile. Copy a profile folder that a person has signed in, to --user-data-dir, for each bot; or sign in
//   on the sign-in page before `ready`. Guests can join some meetings without it.
// - Sound and video. Start Chromium without --mute-audio, with a virtual sound device to record from, and with
//   --use-fake-ui-for-media-stream --use-fake-device-for-media-stream, so that no question for the camera appears.
// - The captions switched on, in the language of the speakers. They change while somebody speaks: report them when they
//   are final.
// - Consent. Tell the people in the meeting that a bot records it, by its name and in the chat, and obey the terms of the
//   service and the law.
const find = id => document.getElementById(id)
const report = message => greenroomReport(JSON.stringify(message))
const captionStart = new WeakMap()
let settings // bot.py sets it in the page of the meeting
let state, joinedAt

function secondsSinceJoined() {
  return Math.round(performance.now() - joinedAt) / 1000
}

function join({display_name}) {
  find('name').value = display_name
  find('join').click()
}

function configure({display_name, language}) {
  if (display_name != find('self').textContent) {
    find('new-name').value = display_name
    find('rename').click()
  }
  if (language && language != find('languages').value) {
    find('languages').value = language
    find('languages').dispatchEvent(new Event('change'))
  }
}

function leave() {
  find('leave').click()
}

function readState() {
  const shown = document.body?.dataset.state
  if (!shown || shown == state) return
  state = shown
  if (state == 'prejoin') join(settings)
  if (state == 'in') joinedAt = performance.now()
  report({state})
}

function readCaption(line) {
  if (!captionStart.has(line)) captionStart.set(line, secondsSinceJoined())
  const start_time = captionStart.get(line)
  if (start_time == 'reported' || !line.matches('.final')) return
  captionStart.set(line, 'reported')
  const [speaker, words] = line.children
  report({segment: {start_time, end_time: secondsSinceJoined(), text: words.textContent, speaker: speaker.textContent}})
}

function readPage(changes) {
  readState()
  for (const {target, addedNodes} of changes)
    for (const node of [target, ...addedNodes]) if (node.matches?.('.caption')) readCaption(node)
}

new MutationObserver(readPage).observe(document, {subtree: true, childList: true, attributes: true})
