// The parts of the page that turn pieces of the document into elements: the
// element helper, the small markdown, and JSON schemas as trees and examples.
//
// Text from the document only ever becomes text nodes. Nothing here parses HTML,
// so a description cannot put markup or script into the page.

/** Makes an element. `on…` properties are listeners, `class` and the rest attributes. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// ---- markdown ---------------------------------------------------------------

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/g;

/** Inline markdown: code, bold, links. Only web and in-page addresses become links. */
export function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, bold, label, target, bare] = match;
    nodes.push(text.slice(end, match.index));
    end = match.index + whole.length;
    const address = target ?? bare;
    if (code) nodes.push(h('code', null, code));
    else if (bold) nodes.push(h('strong', null, inline(bold)));
    else if (/^(https?:\/\/|\/(?!\/)|#)/.test(address)) nodes.push(h('a', { href: address, rel: 'noreferrer' }, label ?? address));
    else nodes.push(label);
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== '');
}

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^#{1,6}\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

/** Block markdown: paragraphs, headings, flat lists and fenced code. */
export function markdown(text) {
  const box = h('div', { class: 'prose' });
  const lines = (text ?? '').replaceAll('\r', '').split('\n');
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === '') {
      at += 1;
    } else if (FENCE.test(line)) {
      const code = [];
      for (at += 1; at < lines.length && !FENCE.test(lines[at]); at += 1) code.push(lines[at]);
      at += 1;
      box.append(codeBlock(code.join('\n'), 'Code'));
    } else if (HEADING.test(line)) {
      // One level for all: the page's own headings give the outline.
      box.append(h('p', { class: 'prose-heading' }, inline(HEADING.exec(line)[1])));
      at += 1;
    } else if (ITEM.test(line)) {
      const list = h(/\d/.test(ITEM.exec(line)[2]) ? 'ol' : 'ul');
      while (at < lines.length && ITEM.test(lines[at])) {
        const words = [ITEM.exec(lines[at])[3]];
        // Doc comments wrap, so a following plain line belongs to the same item.
        for (at += 1; continues(lines[at]); at += 1) words.push(lines[at].trim());
        list.append(h('li', null, inline(words.join(' '))));
      }
      box.append(list);
    } else {
      const words = [line.trim()];
      for (at += 1; continues(lines[at]); at += 1) words.push(lines[at].trim());
      box.append(h('p', null, inline(words.join(' '))));
    }
  }
  return box;
}

function continues(line) {
  return line !== undefined && line.trim() !== '' && !ITEM.test(line) && !FENCE.test(line) && !HEADING.test(line);
}

// ---- code -------------------------------------------------------------------

// A scrolling block must be reachable by keyboard, hence the tab stop and the name.
export function codeBlock(text, label) {
  const block = h('pre', { tabindex: '0', role: 'group', 'aria-label': label });
  block.append(...highlight(text));
  return block;
}

const JSON_TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b/g;

/** Colours JSON; any other text stays as it is. */
export function highlight(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 100_000) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(JSON_TOKEN)) {
    const [whole, string, colon, word] = match;
    nodes.push(text.slice(end, match.index));
    const kind = string ? (colon ? 'key' : 'string') : word ? 'word' : 'number';
    nodes.push(h('span', { class: `tok-${kind}` }, string ?? whole), colon ?? '');
    end = match.index + whole.length;
  }
  nodes.push(text.slice(end));
  return nodes;
}

/** A value as shown in an example: strings of non-JSON types stay bare. */
export function exampleText(value, type = 'application/json') {
  return typeof value === 'string' && !/json/.test(type) ? value : JSON.stringify(value, null, 2);
}

// ---- schemas ----------------------------------------------------------------

let root = {};

/** Says which document `$ref`s point into. */
export function useDocument(openapi) {
  root = openapi;
}

function lookup(ref) {
  if (!ref.startsWith('#/')) return undefined;
  const steps = ref.slice(2).split('/').map((step) => decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~'));
  return steps.reduce((node, step) => node?.[step], root);
}

/** Follows a reference to anything that is not a schema (a parameter, a response …). */
export function deref(node) {
  for (let hops = 0; node?.$ref && hops < 10; hops += 1) node = lookup(node.$ref);
  return node ?? {};
}

const isNull = (schema) => schema?.type === 'null' || schema?.const === null;
const COPIED = ['format', 'description', 'deprecated', 'enum', 'const', 'default', 'readOnly', 'writeOnly', 'minimum'];
const LIMITS = [
  ['minimum', '≥'], ['exclusiveMinimum', '>'], ['maximum', '≤'], ['exclusiveMaximum', '<'], ['multipleOf', 'multiple of'],
  ['minLength', 'length ≥'], ['maxLength', 'length ≤'], ['pattern', 'matches'],
  ['minItems', 'items ≥'], ['maxItems', 'items ≤'], ['minProperties', 'entries ≥'], ['maxProperties', 'entries ≤'],
];

// Flattens references, allOf and "or null" into one description of a value. `seen`
// holds the references on the way down; a reference met again is a cycle and is
// named but not entered. Each child keeps its own `seen`, so that two siblings may
// use the same schema without looking like a cycle.
function model(schema, seen = []) {
  const result = { types: [], limits: [], properties: new Map(), choices: [] };
  absorb(result, schema, seen);
  return result;
}

function absorb(into, schema, seen) {
  if (!schema || typeof schema !== 'object') return;
  if (schema.$ref) {
    const name = schema.$ref.split('/').at(-1);
    if (seen.includes(schema.$ref)) into.recursive = true;
    else absorb(into, lookup(schema.$ref), [...seen, schema.$ref]);
    into.name = name;
    seen = [...seen, schema.$ref];
  }
  for (const part of schema.allOf ?? []) {
    absorb(into, part, seen);
    // Several parts make a new thing, which what one part says of itself does not describe.
    if (schema.allOf.length > 1) into.name = into.description = into.example = into.default = undefined;
  }
  for (const [keyword, label] of [['oneOf', 'One of'], ['anyOf', 'Any of']]) {
    const all = schema[keyword] ?? [];
    const variants = all.filter((variant) => !isNull(variant));
    if (variants.length < all.length) into.nullable = true;
    if (variants.length === 1) absorb(into, variants[0], seen);
    else if (variants.length) into.choices.push({ label, variants: variants.map((variant) => ({ schema: variant, seen })) });
  }
  for (const type of [schema.type ?? []].flat()) {
    if (type === 'null' || into.types.includes(type)) into.nullable ||= type === 'null';
    else into.types.push(type);
  }
  if (schema.nullable) into.nullable = true;
  for (const key of COPIED) if (schema[key] !== undefined) into[key] = schema[key];
  // JSON null in an enum says the same as "or null".
  if (into.enum?.includes(null)) [into.enum, into.nullable] = [into.enum.filter((value) => value !== null), true];
  if (schema.title) into.name ??= schema.title;
  const example = schema.examples?.[0] ?? schema.example;
  if (example !== undefined) into.example = example;
  for (const [key, text] of LIMITS) if (schema[key] !== undefined) into.limits.push(`${text} ${schema[key]}`);
  if (schema.uniqueItems) into.limits.push('no duplicates');
  for (const [name, child] of Object.entries(schema.properties ?? {})) into.properties.set(name, { schema: child, seen });
  into.required = [...(into.required ?? []), ...(schema.required ?? [])];
  if (schema.items) into.items = { schema: schema.items, seen };
  if (schema.prefixItems) into.tuple = schema.prefixItems.map((item) => ({ schema: item, seen }));
  if (schema.additionalProperties === false) into.closed = true;
  else if (schema.additionalProperties !== undefined) into.values = { schema: schema.additionalProperties, seen };
}

const enter = (child) => model(child.schema, child.seen);

function typeLabel(m) {
  const base = baseLabel(m);
  return m.nullable ? `${base} or null` : base;
}

function baseLabel(m) {
  if (m.recursive) return m.name;
  if (m.tuple) return `tuple of ${m.tuple.map((item) => typeLabel(enter(item))).join(', ')}`;
  if (m.items) return `array of ${typeLabel(enter(m.items))}`;
  if (m.properties.size || m.choices.length) return m.name ?? (m.choices.length && !m.properties.size ? m.choices[0].label.toLowerCase() : 'object');
  if (m.values) return `map of string to ${typeLabel(enter(m.values))}`;
  const types = m.types.length ? m.types.join(' or ') : m.enum || m.const !== undefined ? typeof (m.enum?.[0] ?? m.const) : 'any value';
  return m.format ? `${types} (${m.format})` : types;
}

// What one line can say of a value: its choices, default, limits and a sample.
function facts(m, prefix = '') {
  const rows = [];
  const add = (label, ...values) => rows.push(h('div', { class: 'fact' }, h('span', { class: 'fact-label' }, prefix + label), ' ', values));
  const codes = (values) => values.map((value) => [h('code', null, JSON.stringify(value)), ' ']);
  if (m.const !== undefined) add('always', codes([m.const]));
  else if (m.enum?.length === 1) add('always', codes(m.enum));
  else if (m.enum) add('one of', codes(m.enum));
  if (m.default !== undefined) add('default', codes([m.default]));
  if (m.limits.length) add('limits', m.limits.join(', '));
  if (m.example !== undefined && (typeof m.example !== 'object' || m.example === null)) add('example', codes([m.example]));
  const inner = m.items ?? m.values;
  if (inner) rows.push(...facts(enter(inner), m.items ? 'each item: ' : 'each value: '));
  return rows;
}

/** One named value: a property of an object, or a parameter. */
export function field(name, schema, { seen = [], required = false, description, where } = {}) {
  const m = model(schema, seen);
  const text = description ?? m.description;
  const nested = children(m);
  const inner = m.items ?? m.values;
  const recursive = m.recursive || (inner && enter(inner).recursive);
  return h('li', { class: 'field' },
    h('div', { class: 'field-head' },
      h('code', { class: 'field-name' }, name),
      h('span', { class: 'type' }, typeLabel(m)),
      where && h('span', { class: 'tag' }, where),
      required && h('span', { class: 'tag required' }, 'required'),
      m.deprecated && h('span', { class: 'tag warn' }, 'deprecated'),
      m.readOnly && h('span', { class: 'tag' }, 'read only'),
      m.writeOnly && h('span', { class: 'tag' }, 'write only'),
      recursive && h('span', { class: 'tag' }, 'recursive, see above')),
    text && markdown(text),
    facts(m),
    nested.length > 0 && h('details', { class: 'nested' }, h('summary', null, nestedTitle(m)), nested));
}

function nestedTitle(m) {
  const inner = m.items ?? m.values;
  if (inner && !m.properties.size) return `${m.items ? 'Each item' : 'Each value'}: ${nestedTitle(enter(inner))}`;
  const parts = [];
  if (m.properties.size) parts.push(`${m.properties.size} ${m.properties.size === 1 ? 'field' : 'fields'}`);
  for (const choice of m.choices) parts.push(`${choice.label.toLowerCase()} ${choice.variants.length} shapes`);
  if (m.tuple) parts.push(`${m.tuple.length} items`);
  return [m.name, parts.join(', ')].filter(Boolean).join(' · ');
}

// Everything below a value: fields, items, map values and alternatives.
function children(m) {
  const nodes = [];
  if (m.recursive) return nodes;
  if (m.properties.size) {
    nodes.push(h('ul', { class: 'fields' }, [...m.properties].map(([name, child]) =>
      field(name, child.schema, { seen: child.seen, required: m.required.includes(name) }))));
    if (m.values) nodes.push(h('p', { class: 'quiet' }, `Other names may follow, each with ${typeLabel(enter(m.values))}.`));
  }
  if (m.tuple) nodes.push(h('ul', { class: 'fields' }, m.tuple.map((item, index) => field(`[${index}]`, item.schema, { seen: item.seen }))));
  for (const inner of [m.items, m.values]) if (inner) nodes.push(...children(enter(inner)));
  for (const choice of m.choices) {
    nodes.push(h('p', { class: 'choice-label' }, `${choice.label}:`), h('ul', { class: 'fields' }, choice.variants.map((variant) =>
      field(variantName(enter(variant)), variant.schema, { seen: variant.seen }))));
  }
  return nodes;
}

// Tagged enums tell their variants apart by one fixed property; that is the name a
// reader looks for.
function variantName(m) {
  for (const [name, child] of m.properties) {
    const value = enter(child);
    const fixed = value.const ?? (value.enum?.length === 1 ? value.enum[0] : undefined);
    if (fixed !== undefined) return `${name}: ${JSON.stringify(fixed)}`;
  }
  if (m.enum?.length === 1) return JSON.stringify(m.enum[0]);
  if (!m.name && m.properties.size === 1) return [...m.properties.keys()][0];
  return m.name ?? baseLabel(m);
}

/** A whole schema: what it is, then its first level open and deeper ones folded. */
export function schemaTree(schema) {
  const m = model(schema);
  const below = children(m);
  const box = h('div', { class: 'schema' },
    h('p', { class: 'schema-head' }, h('span', { class: 'type' }, typeLabel(m))),
    m.description && markdown(m.description), facts(m), below);
  const folds = box.querySelectorAll('details');
  if (folds.length > 0) {
    const toggle = h('button', { type: 'button', class: 'small', onclick: () => {
      const open = [...folds].some((fold) => !fold.open);
      for (const fold of folds) fold.open = open;
    } }, 'Expand or fold all');
    box.querySelector('.schema-head').append(toggle);
  }
  return box;
}

/** What a form control has to know of a simple value. */
export function outline(schema) {
  const m = model(schema);
  const choices = m.enum ?? (m.types.includes('boolean') ? [true, false] : undefined);
  return { choices, fallback: m.default, listed: m.types.includes('array') };
}

// ---- examples ---------------------------------------------------------------

const SAMPLES = {
  'date-time': '2026-01-31T09:30:00Z', date: '2026-01-31', time: '09:30:00', duration: 'PT30S',
  uuid: '6f1d2c3b-4a59-4e87-9c10-2b7d5e8f0a31', email: 'someone@example.com', hostname: 'host.example.com',
  uri: 'https://example.com/', url: 'https://example.com/', ipv4: '192.0.2.1', ipv6: '2001:db8::1', password: 'secret',
};

/**
 * An example value. A request carries what is required and what has a known value, so
 * that sending it unchanged is likely to be accepted; a response shows every field.
 */
export function example(schema, { request = false, seen = [] } = {}) {
  const m = model(schema, seen);
  const below = (child) => example(child.schema, { request, seen: child.seen });
  const known = [m.example, m.const, m.default, m.enum?.[0]].find((value) => value !== undefined);
  if (known !== undefined) return known;
  if (m.recursive) return m.nullable ? null : {};
  if (m.tuple) return m.tuple.map(below);
  if (m.items) return enter(m.items).recursive ? [] : [below(m.items)];
  if (m.properties.size || m.choices.length || m.values) return exampleObject(m, request, below);
  const type = m.types[0];
  if (type === 'integer' || type === 'number') return Math.max(0, m.minimum ?? 0);
  if (type === 'boolean') return false;
  if (type === 'array') return [];
  if (type === 'object') return {};
  return type === 'string' ? SAMPLES[m.format] ?? 'string' : null;
}

function exampleObject(m, request, below) {
  const first = m.choices.length ? below(m.choices[0].variants[0]) : {};
  if (typeof first !== 'object' || first === null) return first;
  const wanted = [...m.properties].filter(([name, child]) => {
    const value = enter(child);
    if (request ? value.readOnly : value.writeOnly) return false;
    return !request || m.required.includes(name) || value.example !== undefined || (value.default !== undefined && value.default !== null);
  });
  // A request with nothing required would be `{}`, which teaches nothing.
  const shown = wanted.length || m.choices.length ? wanted : [...m.properties];
  const object = Object.fromEntries(shown.map(([name, child]) => [name, below(child)]));
  if (m.values && shown.length === 0) object.key = below(m.values);
  return Array.isArray(first) ? first : { ...object, ...first };
}

/** The examples of a media type, given ones first: `[{ name, value }]`. */
export function mediaExamples(media, options) {
  const named = Object.entries(media.examples ?? {}).map(([name, entry]) => ({ name: deref(entry).summary ?? name, value: deref(entry).value }));
  const given = named.filter((entry) => entry.value !== undefined);
  if (media.example !== undefined) given.unshift({ name: 'Example', value: media.example });
  if (given.length || !media.schema) return given;
  return [{ name: 'Generated', value: example(media.schema, options) }];
}
