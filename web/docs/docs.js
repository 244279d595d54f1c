// The API reference: reads /openapi.json and builds the whole page from it. There are
// no dependencies and nothing is loaded from elsewhere, so that it works offline and
// under the server's strict Content-Security-Policy.

import { deref, exampleText, field, h, inline, markdown, mediaExamples, schemaTree, useDocument } from './schema.js';
import { codePanel, requestPanel } from './tryit.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete', 'head', 'options', 'trace'];
// The order for a document that does not list its tags itself.
const AUDIENCES = ['For users', 'For bots', 'For operators', 'For everyone'];

const content = document.getElementById('content');
const notice = document.getElementById('notice');
const sidebar = document.getElementById('sidebar');
const menu = document.getElementById('menu');
const filter = document.getElementById('filter');

let title = document.title;
let operations = [];

// ---- reading the document ---------------------------------------------------

function readOperations(api) {
  const found = [];
  for (const [path, entry] of Object.entries(api.paths ?? {})) {
    const item = deref(entry);
    for (const method of METHODS) {
      if (item[method]) found.push(readOperation(api, path, method, item));
    }
  }
  return found;
}

function readOperation(api, path, method, item) {
  const raw = item[method];
  // The operation's own parameter wins over the path's one of the same name and place.
  const parameters = new Map();
  for (const parameter of [...(item.parameters ?? []), ...(raw.parameters ?? [])].map(deref)) {
    parameters.set(`${parameter.in} ${parameter.name}`, parameter);
  }
  const responses = Object.entries(raw.responses ?? {}).map(([status, response]) => ({ status, ...deref(response) }));
  return {
    id: `${method}-${path}`, method: method.toUpperCase(), path, base: baseAddress(api),
    tag: raw.tags?.[0] ?? 'Other', summary: raw.summary ?? '', description: raw.description ?? '',
    name: raw.operationId ?? '', deprecated: raw.deprecated ?? false,
    parameters: [...parameters.values()],
    body: raw.requestBody && deref(raw.requestBody),
    responses,
    security: readSecurity(api, raw.security ?? api.security ?? []),
    streams: responses.some((response) => 'text/event-stream' in (response.content ?? {})),
  };
}

// A list of alternatives, each a list of schemes that are needed together. An empty
// alternative means that the operation also answers without any token.
function readSecurity(api, requirements) {
  const schemes = api.components?.securitySchemes ?? {};
  return requirements.map((requirement) => Object.entries(requirement).map(([key, scopes]) => ({ key, scopes, ...deref(schemes[key]) })));
}

// Requests go to where the page came from: the page's policy allows nothing else. A
// server entry can only add a path in front.
function baseAddress(api) {
  const server = new URL(api.servers?.[0]?.url ?? '/', location.origin);
  return location.origin + server.pathname.replace(/\/$/, '');
}

function groups(api) {
  const declared = new Map((api.tags ?? []).map((tag) => [tag.name, tag.description ?? '']));
  const order = [...new Set([...declared.keys(), ...AUDIENCES, ...operations.map((operation) => operation.tag)])];
  return order
    .map((tag) => ({ tag, id: `tag-${tag.toLowerCase().replace(/\W+/g, '-')}`, description: declared.get(tag) ?? '', members: operations.filter((operation) => operation.tag === tag) }))
    .filter((group) => group.members.length > 0);
}

// ---- drawing ----------------------------------------------------------------

const badge = (method) => h('span', { class: `method m-${method.toLowerCase()}` }, method);

// Lets a long path break after its slashes and nowhere else.
const breakable = (path) => path.split(/(?<=\/)/).flatMap((part) => [part, h('wbr')]);

function drawIntro(api) {
  const { info = {} } = api;
  const link = (href, text) => (/^(https?|mailto):/.test(href ?? '') ? h('a', { href, rel: 'noreferrer' }, text) : text);
  return h('header', { class: 'intro' },
    h('h1', null, info.title ?? 'API', ' ', info.version && h('span', { class: 'version' }, info.version)),
    info.summary && h('p', null, inline(info.summary)),
    info.description && markdown(info.description),
    h('p', { class: 'quiet meta' },
      h('span', null, 'Base address ', h('code', null, baseAddress(api))),
      h('a', { href: '/openapi.json' }, `OpenAPI ${api.openapi ?? ''} document`),
      info.license && h('span', null, 'License ', link(info.license.url, info.license.name)),
      info.contact && h('span', null, 'Contact ', link(info.contact.url ?? (info.contact.email && `mailto:${info.contact.email}`), info.contact.name ?? info.contact.email ?? info.contact.url))));
}

const schemeKind = (scheme) => {
  if (scheme.type === 'apiKey') return `${scheme.in} ${scheme.name}`;
  if (scheme.type === 'http') return `Authorization: ${scheme.scheme?.replace(/^./, (first) => first.toUpperCase())} …`;
  return scheme.type ?? 'unknown';
};

function drawSchemes(api) {
  const schemes = Object.entries(api.components?.securitySchemes ?? {});
  if (schemes.length === 0) return null;
  return h('section', { class: 'schemes', id: 'authentication', 'aria-labelledby': 'authentication-title' },
    h('h2', { id: 'authentication-title' }, 'Authentication'),
    h('dl', null, schemes.map(([key, raw]) => {
      const scheme = deref(raw);
      return [h('dt', null, h('strong', null, key), ' ', h('code', null, schemeKind(scheme))), h('dd', null, scheme.description && markdown(scheme.description))];
    })));
}

function drawSecurity(security) {
  const alternatives = security.filter((schemes) => schemes.length > 0);
  if (alternatives.length === 0) return h('p', { class: 'security' }, 'Needs no token.');
  const names = alternatives.map((schemes, index) => [
    index > 0 && ' or ',
    schemes.map((scheme, place) => [
      place > 0 && ' and ', h('a', { href: '#authentication' }, scheme.key),
      scheme.scopes?.length > 0 && [' (', scheme.scopes.join(', '), ')'],
    ]),
  ]);
  const open = alternatives.length < security.length;
  return h('p', { class: 'security' }, 'Takes ', names, open ? ', or no token at all.' : '.');
}

function drawParameters(parameters) {
  if (parameters.length === 0) return null;
  return [h('h4', null, 'Parameters'), h('ul', { class: 'fields' }, parameters.map((parameter) =>
    field(parameter.name, parameter.schema ?? Object.values(parameter.content ?? {})[0]?.schema ?? {}, {
      required: parameter.required, description: parameter.description, where: parameter.in,
    })))];
}

function drawContent(types) {
  return Object.entries(types ?? {}).map(([type, media]) => [
    h('p', { class: 'media' }, h('code', null, type)), media.schema && schemaTree(media.schema)]);
}

function drawBody(body) {
  if (!body) return null;
  return [
    h('h4', null, 'Request body', ' ', h('span', { class: body.required ? 'tag required' : 'tag' }, body.required ? 'required' : 'optional')),
    body.description && markdown(body.description), drawContent(body.content)];
}

function responseExamples(response) {
  const texts = Object.entries(response.content ?? {}).filter(([type]) => !type.startsWith('image/'));
  return texts.flatMap(([type, media]) => mediaExamples(media).map(({ name, value }) => {
    const label = name === 'Generated' || name === 'Example' ? '' : `: ${name}`;
    return codePanel(`${response.status} example${label}`, exampleText(value, type));
  }));
}

function drawResponse(response, main) {
  const headers = Object.entries(response.headers ?? {});
  // The success example stands beside the request; here are only the others.
  const examples = response === main ? [] : responseExamples(response);
  return h('details', { class: 'response', open: response === main },
    h('summary', null, h('strong', { class: `status s${response.status[0]}` }, response.status), ' ', h('span', null, inline(response.description || 'No description'))),
    headers.length > 0 && [h('p', { class: 'media' }, 'Headers'), h('ul', { class: 'fields' }, headers.map(([name, raw]) => {
      const header = deref(raw);
      return field(name, header.schema ?? {}, { required: header.required, description: header.description });
    }))],
    response.content && Object.keys(response.content).length > 0 ? drawContent(response.content) : h('p', { class: 'quiet' }, 'No body.'),
    examples.length > 0 && h('details', { class: 'nested' }, h('summary', null, 'Example'), examples));
}

function drawOperation(operation) {
  const main = operation.responses.find(({ status }) => status.startsWith('2'));
  const heading = `title-${operation.id}`;
  return h('section', { class: 'operation', id: operation.id, 'aria-labelledby': heading },
    h('h3', { id: heading },
      h('a', { class: 'anchor', href: `#${operation.id}` }, badge(operation.method), ' ', h('code', { class: 'path' }, breakable(operation.path))),
      operation.deprecated && h('span', { class: 'tag warn' }, 'deprecated')),
    h('div', { class: 'columns' },
      h('div', { class: 'about' },
        operation.summary && h('p', { class: 'summary' }, inline(operation.summary)),
        // A doc comment of one paragraph becomes both; saying it twice helps nobody.
        operation.description.trim() !== operation.summary.trim() && markdown(operation.description),
        drawSecurity(operation.security), drawParameters(operation.parameters), drawBody(operation.body),
        h('h4', null, 'Responses'), operation.responses.map((response) => drawResponse(response, main))),
      h('div', { class: 'aside' }, requestPanel(operation), main && responseExamples(main))));
}

function drawNav(grouped, hasSchemes) {
  return [
    hasSchemes && h('a', { class: 'nav-top', href: '#authentication' }, 'Authentication'),
    grouped.map((group) => h('div', { class: 'nav-group', 'data-tag': group.tag },
      h('h2', { id: `nav-${group.id}` }, h('a', { href: `#${group.id}` }, group.tag)),
      h('ul', { 'aria-labelledby': `nav-${group.id}` }, group.members.map((operation) => {
        operation.link = h('a', { href: `#${operation.id}`, title: operation.summary || undefined }, badge(operation.method), h('span', { class: 'path' }, breakable(operation.path)));
        operation.entry = h('li', null, operation.link);
        return operation.entry;
      })))),
  ].flat().filter(Boolean);
}

function draw(api) {
  useDocument(api);
  operations = readOperations(api);
  const grouped = groups(api);
  const schemes = drawSchemes(api);
  title = `${api.info?.title ?? 'API'} reference`;
  document.title = title;
  document.getElementById('brand').textContent = api.info?.title ?? 'API reference';
  document.getElementById('nav').replaceChildren(...drawNav(grouped, Boolean(schemes)));
  const sections = grouped.map((group) => h('section', { class: 'group', id: group.id, 'aria-labelledby': `${group.id}-title` },
    h('h2', { id: `${group.id}-title` }, group.tag), group.description && markdown(group.description),
    group.members.map((operation) => { operation.section = drawOperation(operation); return operation.section; })));
  const nothing = h('p', { class: 'notice', id: 'no-match', hidden: true }, 'No operation matches the filter.');
  content.replaceChildren(drawIntro(api), ...(schemes ? [schemes] : []), nothing, ...sections);
  sidebar.hidden = menu.hidden = false;
  applyFilter();
  watchScroll();
  goToHash();
}

// ---- moving about -----------------------------------------------------------

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const operation of operations) {
    operation.words ??= [operation.method, operation.path, operation.summary, operation.name, operation.tag, operation.description].join(' ').toLowerCase();
    const hit = words.every((word) => operation.words.includes(word));
    operation.section.hidden = operation.entry.hidden = !hit;
    if (hit) shown += 1;
  }
  for (const group of document.querySelectorAll('.nav-group')) group.hidden = !group.querySelector('li:not([hidden])');
  for (const group of document.querySelectorAll('section.group')) group.hidden = !group.querySelector('.operation:not([hidden])');
  document.getElementById('no-match').hidden = shown > 0;
  document.getElementById('filter-count').textContent = words.length ? `${shown} of ${operations.length} operations` : `${operations.length} operations`;
}

function hashTarget() {
  const raw = location.hash.slice(1);
  try {
    return raw && (document.getElementById(raw) ?? document.getElementById(decodeURIComponent(raw)));
  } catch {
    return null;
  }
}

// The browser scrolls to a hash by itself and restores positions on back and forward.
// What it cannot do: scroll to what is drawn after loading or hidden by the filter.
function goToHash(event) {
  const target = hashTarget();
  const operation = operations.find(({ section }) => section === target);
  document.title = operation ? `${operation.method} ${operation.path} · ${title}` : title;
  if (target && (!event || target.closest('[hidden]'))) {
    if (target.closest('[hidden]')) {
      filter.value = '';
      applyFilter();
    }
    target.scrollIntoView();
  }
  if (operation) mark(operation);
}

function mark(operation) {
  for (const other of operations) other.link.removeAttribute('aria-current');
  operation.link.setAttribute('aria-current', 'location');
  // Moves the navigation only; scrollIntoView could move the page as well.
  const [link, frame] = [operation.link.getBoundingClientRect(), sidebar.getBoundingClientRect()];
  if (link.top < frame.top + 120) sidebar.scrollTop -= frame.top + 120 - link.top;
  else if (link.bottom > frame.bottom - 20) sidebar.scrollTop += link.bottom - frame.bottom + 20;
}

let observer;

function watchScroll() {
  observer?.disconnect();
  observer = new IntersectionObserver((entries) => {
    const entry = entries.find(({ isIntersecting }) => isIntersecting);
    const operation = entry && operations.find(({ section }) => section === entry.target);
    if (operation) mark(operation);
  }, { rootMargin: '-15% 0px -80% 0px' });
  for (const { section } of operations) observer.observe(section);
}

function setMenu(open) {
  menu.setAttribute('aria-expanded', String(open));
  sidebar.classList.toggle('open', open);
}

menu.addEventListener('click', () => setMenu(menu.getAttribute('aria-expanded') !== 'true'));
sidebar.addEventListener('click', (event) => { if (event.target.closest('a')) setMenu(false); });
filter.addEventListener('input', () => {
  applyFilter();
  // Otherwise a shorter page could leave the reader below all that is still shown.
  if (filter.value.trim()) operations.find(({ section }) => !section.hidden)?.section.scrollIntoView();
});
filter.addEventListener('keydown', (event) => {
  if (event.key === 'Enter') operations.find(({ entry }) => !entry.hidden)?.link.click();
  if (event.key === 'Escape') {
    filter.value = '';
    applyFilter();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (sidebar.hidden || event.target.closest('input, textarea, select')) return;
  event.preventDefault();
  setMenu(true);
  filter.focus();
  filter.select();
});
window.addEventListener('hashchange', goToHash);

// ---- loading ----------------------------------------------------------------

async function load() {
  delete document.body.dataset.ready;
  notice.className = 'notice';
  notice.replaceChildren('Loading the API document…');
  content.replaceChildren(notice);
  try {
    const response = await fetch('/openapi.json', { headers: { accept: 'application/json' }, signal: AbortSignal.timeout(20_000) });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const api = await response.json();
    if (!api || typeof api.paths !== 'object') throw new Error('the answer is not an OpenAPI document');
    draw(api);
    document.body.dataset.ready = 'true';
  } catch (error) {
    sidebar.hidden = menu.hidden = true;
    notice.className = 'notice problem';
    notice.replaceChildren(
      h('p', null, h('strong', null, 'The API document could not be loaded.')),
      h('p', null, `Reading /openapi.json failed: ${error.message}.`),
      h('button', { type: 'button', class: 'primary', onclick: load }, 'Try again'));
    content.replaceChildren(notice);
    console.error(error);
  }
}

load();
