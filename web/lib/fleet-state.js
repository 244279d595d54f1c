// The decoded live state, and how an entry of the encoding of `GET /admin/live` changes it. A change costs what changed,
// and not the number of slots.

/** @typedef {import("./types.js").LiveSlot} LiveSlot */
/** @typedef {import("./types.js").LiveBot} LiveBot */
/** @typedef {import("./types.js").LiveQueueEntry} LiveQueueEntry */
/** @typedef {import("./types.js").LiveGate} LiveGate */
/** @typedef {import("./types.js").LiveKeeper} LiveKeeper */
/** @typedef {import("./types.js").Changes} Changes */

/** @typedef {{name: string, platform: string}} LivePool */
/** @typedef {Record<string, number>} Counts */

/**
 * Everything that the live stream tells, decoded.
 * @typedef {object} State
 * @property {LivePool[]} pools
 * @property {string[]} slotStatuses
 * @property {string[]} botStatuses
 * @property {Map<string, LiveSlot>} slots
 * @property {Map<string, string[]>} order names of the slots of each pool, by number
 * @property {Map<string, LiveBot>} bots
 * @property {Map<string, string>} botOf the bot of each slot; it may be known before the slot is
 * @property {Map<string, LiveQueueEntry>} waiting
 * @property {LiveGate[]} gates
 * @property {LiveKeeper[]} keepers
 * @property {Counts} slotCounts
 * @property {Map<string, Counts>} poolCounts
 * @property {Counts} botCounts
 * @property {number} hotIdle
 */

/** @returns {State} */
export function emptyState() {
  return {
    pools: [], slotStatuses: [], botStatuses: [], slots: new Map(), order: new Map(), bots: new Map(), botOf: new Map(), waiting: new Map(),
    gates: [], keepers: [], slotCounts: {}, poolCounts: new Map(), botCounts: {}, hotIdle: 0,
  };
}

/** @returns {Changes} */
export function noChanges() {
  return {
    snapshot: false, structure: false, slots: [], slotsGone: [], bots: [], botsGone: [],
    queue: false, gates: false, keepers: false, connection: false,
  };
}

/**
 * The name of a slot, as the server makes it.
 * @param {string} pool
 * @param {number} number
 */
export function slotName(pool, number) {
  return `pool-${pool}-${String(number).padStart(3, "0")}`;
}

/**
 * The queue of a platform is in the order of priority, turn and arrival.
 * @param {LiveQueueEntry} a
 * @param {LiveQueueEntry} b
 */
export function inQueueOrder(a, b) {
  if (a.platform !== b.platform) return a.platform < b.platform ? -1 : 1;
  return a.priority - b.priority || a.turn - b.turn || a.arrival - b.arrival;
}

/**
 * The id of a bot from the encoding.
 * @param {string} sent
 */
export function decodeBotId(sent) {
  return sent;
}

/**
 * @param {State} into
 * @param {[number, number, number, number, number | boolean]} entry
 * @param {Changes} changes
 */
export function putSlot(into, [poolIndex, number, status, since, hot], changes) {
  const pool = into.pools[poolIndex].name;
  const name = slotName(pool, number);
  const earlier = into.slots.get(name);
  if (earlier) countSlot(into, earlier, -1);
  else {
    insertInOrder(into, pool, name, number);
    changes.structure = true;
  }
  const slot = { name, pool, number, status: into.slotStatuses[status], since, hot: Boolean(hot), bot_id: into.botOf.get(name) };
  into.slots.set(name, slot);
  countSlot(into, slot, 1);
  changes.slots.push(slot);
}

/**
 * @param {State} into
 * @param {string} pool
 * @param {string} name
 * @param {number} number
 */
function insertInOrder(into, pool, name, number) {
  const names = /** @type {string[]} */ (into.order.get(pool));
  let at = names.length;
  while (at > 0 && /** @type {LiveSlot} */ (into.slots.get(names[at - 1])).number > number) at -= 1;
  names.splice(at, 0, name);
}

/**
 * @param {State} into
 * @param {string} name
 * @param {Changes} changes
 */
export function removeSlot(into, name, changes) {
  const slot = into.slots.get(name);
  if (!slot) return;
  countSlot(into, slot, -1);
  into.slots.delete(name);
  const names = /** @type {string[]} */ (into.order.get(slot.pool));
  names.splice(names.indexOf(name), 1);
  changes.slotsGone.push(name);
  changes.structure = true;
}

/**
 * @param {State} into
 * @param {LiveSlot} slot
 * @param {1 | -1} by
 */
function countSlot(into, slot, by) {
  add(into.slotCounts, slot.status, by);
  add(/** @type {Counts} */ (into.poolCounts.get(slot.pool)), slot.status, by);
  if (slot.hot && slot.status === "idle") into.hotIdle += by;
}

/**
 * @param {Counts} counts
 * @param {string} status
 * @param {number} by
 */
function add(counts, status, by) {
  counts[status] = (counts[status] ?? 0) + by;
}

/**
 * @param {State} into
 * @param {[string, number, number, number?, number?]} entry
 * @param {Changes} changes
 */
export function putBot(into, [sentId, status, since, pool, number], changes) {
  const id = decodeBotId(sentId);
  const slot = pool === undefined || number === undefined ? undefined : slotName(into.pools[pool].name, number);
  const earlier = into.bots.get(id);
  if (earlier) add(into.botCounts, earlier.status, -1);
  if (earlier?.slot && earlier.slot !== slot) clearBotOf(into, earlier.slot, id, changes);
  const bot = { id, status: into.botStatuses[status], since, slot };
  into.bots.set(id, bot);
  add(into.botCounts, bot.status, 1);
  if (slot && into.botOf.get(slot) !== id) {
    into.botOf.set(slot, id);
    showBotOf(into, slot, changes);
  }
  changes.bots.push(bot);
}

/**
 * @param {State} into
 * @param {string} id
 * @param {Changes} changes
 */
export function removeBot(into, id, changes) {
  const bot = into.bots.get(id);
  if (!bot) return;
  add(into.botCounts, bot.status, -1);
  into.bots.delete(id);
  if (bot.slot) clearBotOf(into, bot.slot, id, changes);
  changes.botsGone.push(id);
}

/**
 * The bot has left the slot. This changes nothing when the slot already has another bot.
 * @param {State} into
 * @param {string} slot
 * @param {string} id
 * @param {Changes} changes
 */
function clearBotOf(into, slot, id, changes) {
  if (into.botOf.get(slot) !== id) return;
  into.botOf.delete(slot);
  showBotOf(into, slot, changes);
}

/**
 * @param {State} into
 * @param {string} name
 * @param {Changes} changes
 */
function showBotOf(into, name, changes) {
  const slot = into.slots.get(name);
  if (!slot) return;
  const changed = { ...slot, bot_id: into.botOf.get(name) };
  into.slots.set(name, changed);
  changes.slots.push(changed);
}

/**
 * @param {State} into
 * @param {[string, string, number, number, number, string, number, number]} entry
 */
export function putWaiting(into, [sentId, platform, priority, turn, arrival, pool, queued_at, timeout_at]) {
  const bot_id = decodeBotId(sentId);
  into.waiting.set(bot_id, { bot_id, platform, priority, turn, arrival, pool, queued_at, timeout_at });
}

/** @param {[string, number, number, number]} entry @returns {LiveGate} */
export function decodeGate([host, active, queued, max_concurrent]) {
  return { host, active, queued, max_concurrent };
}

/** @param {[string, number | null, number | null, string | null, number | null, string | null]} entry @returns {LiveKeeper} */
export function decodeKeeper([name, last_run, took_ms, error, next_run, leader]) {
  return { name, last_run, took_ms, error, next_run, leader };
}

/**
 * The state as a snapshot in the same encoding, for a tab that was just opened.
 * @param {State} state
 */
export function encodeState(state) {
  const pools = new Map(state.pools.map(({ name }, index) => [name, index]));
  const slotStatuses = new Map(state.slotStatuses.map((status, index) => [status, index]));
  const botStatuses = new Map(state.botStatuses.map((status, index) => [status, index]));
  const slots = state.pools.map(({ name }) =>
    (state.order.get(name) ?? []).map((slotKey) => {
      const slot = /** @type {LiveSlot} */ (state.slots.get(slotKey));
      return [slot.number, slotStatuses.get(slot.status), slot.since, slot.hot ? 1 : 0];
    }),
  );
  const bots = [...state.bots.values()].map((bot) => {
    const slot = bot.slot && state.slots.get(bot.slot);
    const start = [bot.id, botStatuses.get(bot.status), bot.since];
    return slot ? [...start, pools.get(slot.pool), slot.number] : start;
  });
  return JSON.stringify({
    slot_statuses: state.slotStatuses,
    bot_statuses: state.botStatuses,
    pools: state.pools.map(({ name, platform }) => [name, platform]),
    slots,
    bots,
    queue: [...state.waiting.values()].map(({ bot_id, platform, priority, turn, arrival, pool, queued_at, timeout_at }) =>
      [bot_id, platform, priority, turn, arrival, pool, queued_at, timeout_at]),
    gates: state.gates.map(({ host, active, queued, max_concurrent }) => [host, active, queued, max_concurrent]),
    keepers: state.keepers.map(({ name, last_run, took_ms, error, next_run, leader }) => [name, last_run, took_ms, error, next_run, leader]),
  });
}
