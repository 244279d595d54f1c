// Charts of the last hour, day or month, or of a time that was chosen by dragging: requests, waits, starts, slots and ends.

import { html, useMemo } from "../lib/html.js";
import { call } from "../lib/api.js";
import { count, duration, number, statusLabel } from "../lib/format.js";
import { go, link } from "../lib/router.js";
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

/** @typedef {{step: string, from: string, to: string, points: Point[]}} Stats */
/** @typedef {import("../components/chart.js").Series} Series */

const HOUR = 3600;
const RANGES = { hour: HOUR, day: 24 * HOUR, month: 30 * 24 * HOUR };
/** @type {[keyof typeof RANGES, string][]} */
const RANGE_NAMES = [["hour", "Last hour"], ["day", "Last day"], ["month", "Last month"]];
/** The server keeps minutes for so long; before that, hours. */
const MINUTES_KEPT = 48 * HOUR;
/** More bars cannot be told apart. */
const BARS_MAX = 150;
/** Lengths of the time of one bar, in seconds. */
const BAR_LENGTHS = [60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR];
const EVERY_MS = 60_000;
const ZOOM_MIN = 300;

/** @param {{query: Record<string, string>}} props */
export function ChartsPage({ query }) {
  const chosen = chosenTime(query);
  const name = query.range in RANGES ? /** @type {keyof typeof RANGES} */ (query.range) : "hour";
  const key = chosen ? `${chosen[0]}-${chosen[1]}` : name;
  const loaded = useLoad(() => {
    const [from, to] = chosen ?? lastTime(name);
    const step = to - from <= MINUTES_KEPT && Date.now() / 1000 - from <= MINUTES_KEPT ? "minute" : "hour";
    const path = withQuery("/admin/stats", { from: iso(from), to: iso(to), step });
    return call("GET", path).then((/** @type {Stats} */ stats) => ({ stats, range: /** @type {[number, number]} */ ([from, to]) }));
  }, [key], chosen ? 0 : EVERY_MS);

  const zoom = (/** @type {number} */ from, /** @type {number} */ to) => {
    const missing = Math.max(0, ZOOM_MIN - (to - from));
    go("/charts", { range: name, from: iso(from - Math.ceil(missing / 2)), to: iso(to + Math.ceil(missing / 2)) });
  };
  const reset = () => { if (chosen) go("/charts", { range: name }); };
  const actions = html`
    <nav class="tabs" aria-label="Time">
      ${RANGE_NAMES.map(([range, label]) => html`<a key=${range} href=${link("/charts", { range })} aria-current=${!chosen && range === name ? "page" : undefined}>${label}</a>`)}
    </nav>`;
  const span = loaded.data?.range ?? chosen ?? lastTime(name);
  return html`
    <div class="page">
      <${PageHead} title="Charts" actions=${actions} note=${html`<${TimeNote} span=${span} isChosen=${Boolean(chosen)} zoom=${zoom} reset=${reset} />`} />
      ${loaded.problem && html`<${StatsProblem} problem=${loaded.problem} onRetry=${loaded.reload} />`}
      ${!loaded.data && !loaded.problem && html`<${Loading} />`}
      ${loaded.data && html`<${AllCharts} stats=${loaded.data.stats} range=${loaded.data.range} zoom=${zoom} reset=${reset} />`}
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
    <span class="quiet chart-hint">Drag over a chart to zoom. Double click to go back.</span>`;
}

/** @param {{stats: Stats, range: [number, number], zoom: (from: number, to: number) => void, reset: () => void}} props */
function AllCharts({ stats, range, zoom, reset }) {
  const charts = useMemo(() => chartsOf(stats, range), [stats, range]);
  if (stats.points.length === 0) {
    return html`<${Empty} title="Nothing was recorded in this time"><p>The server writes its numbers once a minute. Choose another time, or wait a minute.</p><//>`;
  }
  return html`
    <div class="charts">
      ${charts.map((chart) => html`
        <${Panel} key=${chart.title} class=${chart.isWide ? "is-wide" : ""} title=${html`${chart.title} <span class="chart-unit">${chart.unit}</span>`} actions=${html`<span class="chart-total">${chart.total}</span>`}>
          <${Chart} title=${chart.title} shape=${chart.shape} times=${chart.times} range=${range} series=${chart.series} format=${chart.format} onZoom=${zoom} onReset=${reset} />
        <//>`)}
    </div>`;
}

/**
 * The charts, in the order in which an operator reads them.
 *
 * @param {Stats} stats
 * @param {[number, number]} range
 */
function chartsOf({ points, step }, range) {
  const times = points.map((point) => Date.parse(point.at) / 1000);
  const stepLength = step === "hour" ? HOUR : 60;
  const wanted = (range[1] - range[0]) / BARS_MAX;
  const bar = BAR_LENGTHS.find((length) => length >= wanted && length >= stepLength) ?? 24 * HOUR;
  const per = `per ${duration(bar * 1000)}`;
  /** @type {(label: string, color: string, values: (number | null | undefined)[]) => Series} */
  const raw = (label, color, values) => ({ label, color, values: values.map((value) => value ?? null) });
  const barTimes = [...new Set(times.map((at) => at - (at % bar)))];
  /** @type {typeof raw} */
  const summed = (label, color, values) => ({ label, color, values: sumUp(times, values, barTimes, bar) });
  const pick = (/** @type {(point: Point) => number | null | undefined} */ of) => points.map(of);
  const total = (/** @type {Series[]} */ series) => series.flatMap((one) => one.values).reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0);

  const requests = [summed("Requests", "--chart-1", pick((point) => point.requests))];
  const waits = [
    raw("p50: half wait less", "--chart-1", pick((point) => point.waits?.p50_ms)),
    raw("p95: one in 20 waits longer", "--chart-3", pick((point) => point.waits?.p95_ms)),
  ];
  const starts = [
    summed("Hot", "--chart-1", pick((point) => point.starts?.hot)),
    summed("From stopped", "--chart-2", pick((point) => point.starts?.stopped)),
    summed("Cold", "--chart-3", pick((point) => point.starts?.cold)),
  ];
  const slots = [["busy", "--slot-busy"], ["idle", "--slot-idle"], ["creating", "--slot-creating"], ["draining", "--slot-draining"], ["error", "--slot-error"]]
    .map(([status, color]) => raw(statusLabel(status), color, pick((point) => point.slots?.[status])));
  const ends = [["none", "As planned", "--chart-1"], ["host", "The meeting", "--chart-2"], ["bot", "The bot", "--chart-5"], ["provider", "The provider", "--chart-4"], ["capacity", "No free slot", "--chart-3"]]
    .map(([fault, label, color]) => summed(label, color, pick((point) => point.ends?.by_fault?.[fault])));
  const highest = Math.max(0, ...waits[1].values.map((value) => value ?? 0));
  const last = (/** @type {Series[]} */ series) => series.reduce((sum, one) => sum + (one.values.findLast((value) => value !== null) ?? 0), 0);
  const whole = (/** @type {number} */ value) => (Number.isInteger(value) ? number(value) : "");

  return [
    { title: "Requests", unit: per, shape: /** @type {const} */ ("bars"), times: barTimes, series: requests, format: whole, total: count(total(requests), "request"), isWide: false },
    { title: "Waits for a slot", unit: `per ${duration(stepLength * 1000)}`, shape: /** @type {const} */ ("lines"), times, series: waits, format: duration, total: highest > 0 ? `highest p95 ${duration(highest)}` : "no waits", isWide: false },
    { title: "Starts", unit: per, shape: /** @type {const} */ ("bars"), times: barTimes, series: starts, format: whole, total: count(total(starts), "start"), isWide: false },
    { title: "Ends, by cause", unit: per, shape: /** @type {const} */ ("bars"), times: barTimes, series: ends, format: whole, total: count(total(ends), "end"), isWide: false },
    { title: "Slots, by status", unit: "", shape: /** @type {const} */ ("areas"), times, series: slots, format: whole, total: `${count(last(slots), "slot")} at the end`, isWide: true },
  ];
}

/**
 * Adds up the values of each bar. A bar without any value stays empty.
 *
 * @param {number[]} times
 * @param {(number | null | undefined)[]} values
 * @param {number[]} barTimes
 * @param {number} bar
 */
function sumUp(times, values, barTimes, bar) {
  /** @type {Map<number, number>} */
  const sums = new Map();
  for (const [row, value] of values.entries()) {
    if (value === null || value === undefined) continue;
    const at = times[row] - (times[row] % bar);
    sums.set(at, (sums.get(at) ?? 0) + value);
  }
  return barTimes.map((at) => sums.get(at) ?? null);
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
