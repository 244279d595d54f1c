// The request side of an operation: the curl command and the form that sends the
// same request from the page. Both read one `state`, so they never disagree.

import { codeBlock, deref, example, exampleText, h, highlight, mediaExamples, outline } from './schema.js';

// Tokens live here, for as long as the page does, and are never stored: the page may
// be open on a shared screen and its tokens can act on live bots.
const tokens = new Map();

const LONGEST_SHOWN = 200_000;

/** A button that copies what `text()` returns at the time of the click. */
export function copyButton(text, label) {
  const button = h('button', { type: 'button', class: 'small copy', 'aria-label': label }, 'Copy');
  const said = h('span', { class: 'unseen', role: 'status' });
  button.addEventListener('click', async () => {
    const done = await copy(text());
    button.textContent = done ? 'Copied' : 'Press Ctrl+C';
    said.textContent = done ? 'Copied to the clipboard' : 'Could not copy';
    setTimeout(() => { button.textContent = 'Copy'; said.textContent = ''; }, 1600);
  });
  return [button, said];
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain http away from localhost has no clipboard API; the old way still works there.
    const focused = document.activeElement;
    const area = h('textarea', { class: 'unseen', 'aria-hidden': 'true', tabindex: '-1' });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    focused?.focus();
    return done;
  }
}

/** A code block with a title and a copy button. */
export function codePanel(title, text) {
  return h('div', { class: 'panel' },
    h('div', { class: 'panel-head' }, h('span', null, title), copyButton(() => text, `Copy: ${title}`)), codeBlock(text, title));
}

/** The curl command and the form for one operation. */
export function requestPanel(operation) {
  const media = Object.entries(operation.body?.content ?? {});
  const samples = media.flatMap(([type, one]) => bodies(type, one));
  const state = {
    values: new Map(operation.parameters.filter((p) => p.required).map((p) => [p, placeholder(p)])),
    scheme: operation.security.find((one) => one.length > 0)?.[0],
    type: samples[0]?.type,
    body: samples[0]?.text,
  };
  const curl = codeBlock('', 'curl command');
  const refresh = () => curl.replaceChildren(curlCommand(operation, state));
  const pick = samples.length > 1 && options(samples.map(({ type, name }) => (media.length > 1 ? `${type}: ${name}` : name)), (index) => {
    Object.assign(state, { type: samples[index].type, body: samples[index].text });
    state.onpick();
    refresh();
  });
  if (pick) pick.setAttribute('aria-label', 'Example request body');
  refresh();
  return h('div', { class: 'request' },
    h('div', { class: 'panel' },
      h('div', { class: 'panel-head' }, h('span', null, 'curl'), pick, copyButton(() => curl.textContent, 'Copy the curl command')), curl),
    h('details', { class: 'try' }, h('summary', null, 'Try it'), form(operation, state, media.map(([type]) => type), refresh)));
}

// An image is chosen as a file; everything else can be typed.
const isFile = (type) => /^image\//.test(type ?? '');

function bodies(type, media) {
  if (isFile(type)) return [{ type, name: 'a file', text: '' }];
  const found = mediaExamples(media, { request: true }).map(({ name, value }) => ({ type, name, text: exampleText(value, type) }));
  return found.length ? found : [{ type, name: 'Empty', text: '' }];
}

const schemaOf = (parameter) => parameter.schema ?? Object.values(parameter.content ?? {})[0]?.schema ?? {};

// A made-up path value such as "string" reads like a real one; an upper-case name
// says that something must be put there.
function placeholder(parameter) {
  const given = parameter.example ?? deref(Object.values(parameter.examples ?? {})[0]).value;
  const value = given ?? example(schemaOf(parameter));
  const unknown = given === undefined && (value === 'string' || value === null);
  return unknown ? parameter.name.replace(/\W+/g, '_').toUpperCase() : text(value);
}

const text = (value) => (typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value));

// ---- the request ------------------------------------------------------------

/** What the state asks for. `token` stands in for the real one in the curl command. */
function request(operation, state, token) {
  const headers = new Map();
  const query = new URLSearchParams();
  let path = operation.path;
  for (const parameter of operation.parameters) {
    const value = state.values.get(parameter) ?? '';
    const { listed } = outline(schemaOf(parameter));
    if (parameter.in === 'path') path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value === '') continue;
    else if (parameter.in === 'query' && listed && parameter.explode !== false) value.split(',').forEach((one) => query.append(parameter.name, one.trim()));
    else if (parameter.in === 'query') query.append(parameter.name, value);
    else if (parameter.in === 'header') headers.set(parameter.name, value);
  }
  const scheme = state.scheme;
  if (scheme && token) {
    const kind = scheme.scheme?.toLowerCase();
    if (scheme.type === 'apiKey' && scheme.in === 'query') query.append(scheme.name, token);
    else if (scheme.type === 'apiKey' && scheme.in === 'header') headers.set(scheme.name, token);
    else if (kind === 'basic') headers.set('Authorization', `Basic ${token}`);
    else if (scheme.type !== 'apiKey') headers.set('Authorization', `Bearer ${token}`);
  }
  const body = isFile(state.type) ? state.file : state.body || undefined;
  if (body !== undefined || isFile(state.type)) headers.set('Content-Type', state.type);
  const search = query.size ? `?${query}` : '';
  return { url: operation.base + path + search, headers, body };
}

const single = (value) => `'${value.replaceAll("'", "'\\''")}'`;

function curlCommand(operation, state) {
  const { url, headers, body } = request(operation, state, '$TOKEN');
  // The shell must expand the token's variable and nothing else.
  const quote = (value) => {
    if (!value.includes('$TOKEN')) return single(value);
    if (!/["`\\!]|\$(?!TOKEN)/.test(value)) return `"${value}"`;
    return value.split('$TOKEN').map((part) => (part ? single(part) : '')).join('"$TOKEN"');
  };
  const method = { GET: '', HEAD: ' --head' }[operation.method] ?? ` -X ${operation.method}`;
  // Without -N curl would hold an event stream back until its buffer is full.
  const parts = [`curl${operation.streams ? ' -N' : ''}${method} ${quote(url.replace('%24TOKEN', '$TOKEN'))}`];
  for (const [name, value] of headers) parts.push(`-H ${quote(`${name}: ${value}`)}`);
  if (isFile(state.type)) parts.push(`--data-binary ${single(`@${body?.name ?? 'FILE'}`)}`);
  else if (body !== undefined) parts.push(`--data-raw ${single(body)}`);
  return parts.join(' \\\n  ');
}

// ---- the form ---------------------------------------------------------------

let made = 0;

function labelled(label, control, note) {
  made += 1;
  control.id = `try-${made}`;
  return h('div', { class: 'control' }, h('label', { for: control.id }, label, note && h('span', { class: 'quiet' }, ` ${note}`)), control);
}

function options(labels, onpick) {
  const select = h('select', null, labels.map((label, index) => h('option', { value: index }, label)));
  select.addEventListener('change', () => onpick(Number(select.value)));
  return select;
}

function form(operation, state, types, refresh) {
  const answer = h('div', { class: 'answer', role: 'status' });
  const send = h('button', { type: 'submit', class: 'primary' }, 'Send');
  const stop = h('button', { type: 'button', disabled: true }, 'Stop');
  const box = h('form', { autocomplete: 'off', novalidate: true, 'aria-label': `Try ${operation.method} ${operation.path}` },
    tokenControls(operation, state, refresh),
    operation.parameters.filter((p) => p.in !== 'cookie').map((parameter) => parameterControl(parameter, state, refresh)),
    types.length > 0 && bodyControl(state, types, refresh),
    h('div', { class: 'buttons' }, send, stop), answer);
  box.addEventListener('submit', async (event) => {
    event.preventDefault();
    const abort = new AbortController();
    stop.onclick = () => abort.abort();
    [send.disabled, stop.disabled] = [true, false];
    await perform(operation, state, answer, abort.signal);
    [send.disabled, stop.disabled] = [false, true];
  });
  return box;
}

function tokenControls(operation, state, refresh) {
  const schemes = operation.security.flat();
  if (schemes.length === 0) return null;
  const input = h('input', { type: 'password', class: 'token', autocomplete: 'off', spellcheck: 'false' });
  input.addEventListener('input', () => {
    tokens.set(state.scheme.key, input.value);
    // One token serves every operation of its scheme, so it is typed once.
    for (const other of document.querySelectorAll('input.token')) if (other.dataset.scheme === state.scheme.key) other.value = input.value;
  });
  const pick = (index) => {
    state.scheme = schemes[index];
    input.dataset.scheme = state.scheme.key;
    input.value = tokens.get(state.scheme.key) ?? '';
    refresh();
  };
  pick(0);
  const note = state.scheme.scheme?.toLowerCase() === 'basic' ? '(base64 of name:password)' : '(kept in memory only)';
  return [schemes.length > 1 && labelled('Token kind', options(schemes.map((scheme) => scheme.key), pick)), labelled('Token', input, note)];
}

function parameterControl(parameter, state, refresh) {
  const { choices, fallback } = outline(schemaOf(parameter));
  const input = choices
    ? h('select', null, !parameter.required && h('option', { value: '' }, '(not sent)'), choices.map((value) => h('option', null, String(value))))
    : h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: fallback === undefined || fallback === null ? '' : text(fallback) });
  input.value = state.values.get(parameter) ?? '';
  input.addEventListener('input', () => { state.values.set(parameter, input.value); refresh(); });
  return labelled(h('code', null, parameter.name), input, `(${parameter.in}${parameter.required ? ', required' : ''})`);
}

function bodyControl(state, types, refresh) {
  if (isFile(state.type)) {
    const input = h('input', { type: 'file', accept: types.join(',') });
    input.addEventListener('change', () => { [state.file] = input.files; refresh(); });
    state.onpick = () => {};
    return labelled('Body', input, `(${types.join(' or ')})`);
  }
  const area = h('textarea', { rows: Math.min(18, Math.max(4, state.body.split('\n').length + 1)), spellcheck: 'false', autocomplete: 'off' });
  area.value = state.body;
  area.addEventListener('input', () => { state.body = area.value; refresh(); });
  state.onpick = () => { area.value = state.body; };
  return labelled('Body', area, `(${types.join(' or ')})`);
}

// ---- the answer -------------------------------------------------------------

async function perform(operation, state, answer, signal) {
  const { url, headers, body } = request(operation, state, tokens.get(state.scheme?.key));
  const started = performance.now();
  const elapsed = () => `${Math.round(performance.now() - started)} ms`;
  answer.replaceChildren(h('p', { class: 'quiet' }, 'Sending…'));
  let shown;
  try {
    const response = await fetch(url, { method: operation.method, headers: [...headers], body, signal, cache: 'no-store' });
    const time = h('span', null, elapsed());
    shown = codeBlock('', 'Response body');
    const kind = response.headers.get('content-type') ?? '';
    answer.replaceChildren(
      h('p', { class: 'answer-head' },
        h('strong', { class: `status s${String(response.status)[0]}` }, `${response.status} ${response.statusText}`.trim()), time,
        h('span', null, 'X-Request-Id: ', h('code', null, response.headers.get('x-request-id') ?? 'none'))),
      h('details', { class: 'nested' }, h('summary', null, 'Response headers'),
        codeBlock([...response.headers].map(([name, value]) => `${name}: ${value}`).join('\n'), 'Response headers')),
      shown);
    await show(response, kind, shown);
    time.textContent = elapsed();
  } catch (error) {
    const message = error.name === 'AbortError' ? `Stopped after ${elapsed()}.` : `The request failed: ${error.message}`;
    if (shown) answer.append(h('p', { class: 'problem' }, message));
    else answer.replaceChildren(h('p', { class: 'problem' }, message));
  }
}

// Text is shown as it arrives, so that event streams and long polls are useful too.
async function show(response, kind, block) {
  if (kind && !/json|text|xml|javascript|event-stream|yaml|form/.test(kind)) {
    const size = (await response.arrayBuffer()).byteLength;
    block.textContent = `${size} bytes of ${kind}, not shown`;
    return;
  }
  let body = '';
  if (response.body) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      body += part.value;
      block.textContent = body.slice(-LONGEST_SHOWN);
    }
  }
  if (body === '') block.textContent = '(empty body)';
  else if (/json/.test(kind)) block.replaceChildren(...highlight(pretty(body)));
}

function pretty(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}
