// Charts of the last hour, day or month, or of a time that was chosen by dragging: requests, waits, starts, slots and ends.

import { html, useMemo } from "../lib/html.js";
import { call } from "../lib/api.js";
import { useFleet } from "../lib/fleet.js";
import { count, duration, number, statusLabel } from "../lib/format.js";
import { go, link, setQuery } from "../lib/router.js";
import { Chart } from "../components/chart.js";
import { useLoad, withQuery } from "../components/load.js";
import { PageHead } from "../components/page-parts.js";
import { Empty, Loading, Panel, ProblemNote } from "../components/ui.js";

/**
 * @typedef {object} Point what the API tells of one step; values are `null` where nothing was recorded
 * @property {string} at
 * @property {number | null} requests
 * @property {{hot: number | null, stopped: number | null, cold: number | null} | null} starts
 * @property {{count: number | null, p50_ms: number | null, p95_ms: number | null} | null} waits
 * @property {Record<string, number | null> | null} slots
 * @property {{by_reason: Record<string, number> | null, by_fault: Record<string, number | null> | null} | null} ends
 * @property {number | null} placed_per_second
 */

/** @typedef {{from: string, to: string, step_ms: number, points: Point[]}} Stats */
/** @typedef {import("../components/chart.js").Series} Series */

const HOUR = 3600;
const RANGES = { hour: HOUR, day: 24 * HOUR, month: 30 * 24 * HOUR };
/** @type {[keyof typeof RANGES, string][]} */
const RANGE_NAMES = [["hour", "Last hour"], ["day", "Last day"], ["month", "Last month"]];
/** The server keeps minutes for so long; before that, hours. */
const MINUTES_KEPT = 48 * HOUR;
/** More bars cannot be told apart. */
const POINTS_MAX = 150;
/** Steps that can be asked for, in seconds. */
const STEPS = [60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR];
const EVERY_MS = 60_000;
const ZOOM_MIN = 300;

/** @param {{query: Record<string, string>}} props */
export function ChartsPage({ query }) {
  const chosen = chosenTime(query);
  const name = query.range in RANGES ? /** @type {keyof typeof RANGES} */ (query.range) : "hour";
  const { pool = "" } = query;
  const loaded = useLoad(() => {
    const [from, to] = chosen ?? lastTime(name);
    return call("GET", withQuery("/admin/stats", { from: iso(from), to: iso(to), step: `${stepOf(from, to) / 60}m`, pool }));
  }, [chosen ? `${chosen[0]}-${chosen[1]}` : name, pool], chosen ? 0 : EVERY_MS);
  /** @type {Stats | undefined} */
  const stats = loaded.data;

  const zoom = (/** @type {number} */ from, /** @type {number} */ to) => {
    const missing = Math.max(0, ZOOM_MIN - (to - from));
    go("/charts", { range: name, pool, from: iso(from - Math.ceil(missing / 2)), to: iso(to + Math.ceil(missing / 2)) });
  };
  const reset = () => { if (chosen) go("/charts", { range: name, pool }); };
  const pools = useFleet((fleet) => fleet.pools.map((one) => one.name));
  const actions = html`
    ${(pools.length > 1 || pool) && html`
      <div class="filters">
        <select aria-label="Pool" value=${pool} onChange=${(/** @type {any} */ event) => setQuery({ pool: event.currentTarget.value })}>
          <option value="">All pools</option>
          ${(pools.includes(pool) || !pool ? pools : [pool, ...pools]).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
        </select>
      </div>`}
    <nav class="tabs" aria-label="Time">
      ${RANGE_NAMES.map(([range, label]) => html`<a key=${range} href=${link("/charts", { range, pool })} aria-current=${!chosen && range === name ? "page" : undefined}>${label}</a>`)}
    </nav>`;
  return html`
    <div class="page">
      <${PageHead} title="Charts" actions=${actions} note=${html`<${TimeNote} span=${chosen ?? lastTime(name)} isChosen=${Boolean(chosen)} zoom=${zoom} reset=${reset} />`} />
      ${loaded.problem && html`<${StatsProblem} problem=${loaded.problem} onRetry=${loaded.reload} />`}
      ${!stats && !loaded.problem && html`<${Loading} />`}
      ${stats && html`<${AllCharts} stats=${stats} zoom=${zoom} reset=${reset} />`}
    </div>`;
}

/** @param {{problem: any, onRetry: () => void}} props */
function StatsProblem({ problem, onRetry }) {
  if (problem.status !== 404) return html`<${ProblemNote} problem=${problem} onRetry=${onRetry} />`;
  return html`<${Empty} title="This server keeps no statistics"><p>Charts need the call <code>GET /admin/stats</code>. Update the server to see them.</p><//>`;
}

/**
 * The time that is shown, and how to change it without a mouse.
 *
 * @param {{span: [number, number], isChosen: boolean, zoom: (from: number, to: number) => void, reset: () => void}} props
 */
function TimeNote({ span: [from, to], isChosen, zoom, reset }) {
  const quarter = Math.round((to - from) / 4);
  const now = Math.floor(Date.now() / 1000);
  return html`
    <span class="quiet">${when(from)} to ${when(to)}</span>
    <span class="chart-tools">
      <button type="button" class="small" onClick=${() => zoom(from - 2 * quarter, to - 2 * quarter)}>Earlier</button>
      <button type="button" class="small" disabled=${to >= now - 60} onClick=${() => zoom(from + 2 * quarter, Math.min(now, to + 2 * quarter))}>Later</button>
      <button type="button" class="small" disabled=${to - from <= ZOOM_MIN} onClick=${() => zoom(from + quarter, to - quarter)}>Zoom in</button>
      ${isChosen && html`<button type="button" class="small" onClick=${reset}>Back to the whole time</button>`}
    </span>
    <span class="quiet chart-hint">Drag to zoom, double click to go back.</span>`;
}

/** @param {{stats: Stats, zoom: (from: number, to: number) => void, reset: () => void}} props */
function AllCharts({ stats, zoom, reset }) {
  const charts = useMemo(() => chartsOf(stats), [stats]);
  const times = useMemo(() => stats.points.map((point) => Date.parse(point.at) / 1000), [stats]);
  if (times.length === 0) {
    return html`<${Empty} title="Nothing was recorded in this time"><p>The server writes its numbers once a minute. Choose another time, or wait a minute.</p><//>`;
  }
  /** @type {[number, number]} */
  const range = [Date.parse(stats.from) / 1000, Date.parse(stats.to) / 1000];
  return html`
    <div class="charts">
      ${charts.map(({ title, unit, total, shape, series, format, isWide }) => html`
        <${Panel} key=${title} class=${isWide ? "is-wide" : ""} title=${html`${title} <span class="chart-unit">${unit}</span>`} actions=${html`<span class="chart-total">${total}</span>`}>
          <${Chart} title=${title} shape=${shape} times=${times} range=${range} series=${series} format=${format} onZoom=${zoom} onReset=${reset} />
        <//>`)}
    </div>`;
}

/**
 * @typedef {object} ChartSpec
 * @property {string} title
 * @property {string} unit
 * @property {string} total the most important number, beside the title
 * @property {import("../components/chart.js").ChartProps["shape"]} shape
 * @property {Series[]} series
 * @property {(value: number) => string} format
 * @property {boolean} [isWide]
 */

/**
 * The charts, in the order in which an operator reads them.
 *
 * @param {Stats} stats
 * @returns {ChartSpec[]}
 */
function chartsOf({ points, step_ms }) {
  /** @type {(label: string, color: string, of: (point: Point) => number | null | undefined) => Series} */
  const line = (label, color, of) => ({ label, color, values: points.map((point) => of(point) ?? null) });
  const unit = `per ${duration(step_ms)}`;
  const requests = [line("Requests", "--chart-1", (point) => point.requests)];
  const waits = [
    line("p50: half wait less", "--chart-1", (point) => point.waits?.p50_ms),
    line("p95: one in 20 waits longer", "--chart-3", (point) => point.waits?.p95_ms),
  ];
  const starts = [
    line("Hot", "--chart-1", (point) => point.starts?.hot),
    line("From stopped", "--chart-2", (point) => point.starts?.stopped),
    line("Cold", "--chart-3", (point) => point.starts?.cold),
  ];
  const ends = [["none", "As planned", "--chart-1"], ["host", "Meeting", "--chart-2"], ["bot", "Bot", "--chart-5"], ["provider", "Provider", "--chart-4"], ["capacity", "No free slot", "--chart-3"]]
    .map(([fault, label, color]) => line(label, color, (point) => point.ends?.by_fault?.[fault]));
  const slots = ["busy", "idle", "creating", "draining", "error"].map((status) => line(statusLabel(status), `--slot-${status}`, (point) => point.slots?.[status]));
  const longest = Math.max(0, ...waits[1].values.map((value) => value ?? 0));
  return [
    { title: "Requests", unit, total: count(sum(requests), "request"), shape: "bars", series: requests, format: whole },
    { title: "Waits for a slot", unit, total: longest > 0 ? `highest p95 ${duration(longest)}` : "no waits", shape: "lines", series: waits, format: duration },
    { title: "Starts", unit, total: count(sum(starts), "start"), shape: "bars", series: starts, format: whole },
    { title: "Ends, by cause", unit, total: count(sum(ends), "end"), shape: "bars", series: ends, format: whole },
    { title: "Slots, by status", unit: "", total: `${count(Math.round(lastSum(slots)), "slot")} at the end`, shape: "areas", series: slots, format: decimal, isWide: true },
  ];
}

/** @param {Series[]} series */
const sum = (series) => series.flatMap((one) => one.values).reduce((/** @type {number} */ all, value) => all + (value ?? 0), 0);
/** @param {Series[]} series */
const lastSum = (series) => series.reduce((all, one) => all + (one.values.findLast((value) => value !== null) ?? 0), 0);
/** Ticks between whole numbers have no text: there are no half bots. */
const whole = (/** @type {number} */ value) => (Number.isInteger(value) ? number(value) : "");
/** The mean of a longer step has decimals. */
const decimal = (/** @type {number} */ value) => number(Math.round(value * 10) / 10);

/**
 * The shortest step that gives no more points than can be told apart.
 *
 * @param {number} from
 * @param {number} to
 */
function stepOf(from, to) {
  const shortest = Date.now() / 1000 - from < MINUTES_KEPT ? 60 : HOUR;
  return STEPS.find((step) => step >= shortest && (to - from) / step <= POINTS_MAX) ?? 24 * HOUR;
}

/**
 * The time in the address, if it has one that makes sense.
 *
 * @param {Record<string, string>} query
 * @returns {[number, number] | null}
 */
function chosenTime({ from, to }) {
  const [start, end] = [Date.parse(from ?? "") / 1000, Date.parse(to ?? "") / 1000];
  return start < end ? [start, end] : null;
}

/**
 * @param {keyof typeof RANGES} name
 * @returns {[number, number]}
 */
function lastTime(name) {
  const now = Math.floor(Date.now() / 1000);
  return [now - RANGES[name], now];
}

/** @param {number} seconds */
const iso = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");

const dayAndTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
/** @param {number} seconds */
const when = (seconds) => dayAndTime.format(new Date(seconds * 1000));
