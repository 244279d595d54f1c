// One chart over time, drawn by uPlot: lines, or values stacked as bars or areas. With a legend that follows the pointer, and a
// table of the same numbers.

import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import uPlot from "../vendor/uplot.js";

/**
 * @typedef {object} Series
 * @property {string} label
 * @property {string} color the name of a token, such as `--chart-1`
 * @property {(number | null)[]} values
 */

/**
 * @typedef {object} ChartProps
 * @property {string} title for screen readers
 * @property {"lines" | "bars" | "areas"} shape bars and areas are stacked
 * @property {number[]} times the start of each step, in seconds since 1970
 * @property {[number, number]} range what the axis of time shows, in seconds since 1970
 * @property {Series[]} series from the bottom to the top
 * @property {(value: number) => string} [format]
 * @property {(from: number, to: number) => void} onZoom
 * @property {() => void} onReset
 */

const HEIGHT = 190;
const DAY = 86_400;
/** A shorter drag is a click. */
const DRAG_PX_MIN = 6;

const hours = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const both = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** @param {number} value */
const plain = (value) => String(Math.round(value * 100) / 100);

/** @param {ChartProps} props */
export function Chart(props) {
  const { title, shape, times, range, series, format = plain } = props;
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const latest = useRef(props);
  latest.current = props;
  const [index, setIndex] = useState(/** @type {number | null} */ (null));
  const isDark = useDarkTheme();
  const data = useMemo(() => toData(times, series, shape), [times, series, shape]);
  const labels = series.map((one) => one.label).join("\n");

  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const plot = new uPlot(optionsOf(latest, element.clientWidth, setIndex), /** @type {any} */ (data), element);
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [isDark, data, labels, shape, range[0], range[1]]);

  return html`
    <div class="chart">
      <${Legend} series=${series} index=${index} format=${format} />
      <div class="chart-plot" ref=${place} aria-hidden="true"></div>
      ${index !== null && times[index] !== undefined && html`<p class="chart-at">${both.format(new Date(times[index] * 1000))}</p>`}
      <${NumberTable} title=${title} times=${times} series=${series} format=${format} />
    </div>`;
}

/**
 * What uPlot draws. Stacked values are sums, the highest first, so that each lower one covers it.
 *
 * @param {number[]} times
 * @param {Series[]} series
 * @param {ChartProps["shape"]} shape
 */
function toData(times, series, shape) {
  if (shape === "lines") return [times, ...series.map((one) => one.values)];
  /** @type {(number | null)[]} */
  let below = times.map(() => null);
  const sums = series.map(({ values }) => {
    below = values.map((value, at) => (value === null && below[at] === null ? null : (below[at] ?? 0) + (value ?? 0)));
    return below;
  });
  return [times, ...sums.reverse()];
}

/**
 * @param {{current: ChartProps}} latest
 * @param {number} width
 * @param {(index: number | null) => void} setIndex
 * @returns {uPlot.Options}
 */
function optionsOf(latest, width, setIndex) {
  const { shape, series, range, format = plain } = latest.current;
  const drawn = shape === "lines" ? series : [...series].reverse();
  const axis = { stroke: token("--quiet"), font: `11px ${token("--sans")}`, grid: { stroke: token("--chart-grid"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      points: { show: shape === "lines" },
      sync: { key: "charts", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      bind: { dblclick: () => () => { latest.current.onReset(); return null; } },
    },
    scales: {
      x: { time: true, range: () => range },
      y: { range: (_plot, _min, max) => [0, niceTop(max)] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 64, size: 28, values: (_plot, splits) => splits.map((at) => tick(at, range)) },
      { ...axis, space: 36, size: 56, values: (_plot, splits) => splits.map((value) => (value === null ? "" : format(value))) },
    ],
    series: [{}, ...drawn.map((one) => lineOf(one, shape))],
    hooks: {
      setCursor: [(plot) => setIndex(plot.cursor.idx ?? null)],
      setSelect: [(plot) => {
        const { left, width: dragged } = plot.select;
        if (dragged < DRAG_PX_MIN) return;
        latest.current.onZoom(Math.floor(plot.posToVal(left, "x")), Math.ceil(plot.posToVal(left + dragged, "x")));
      }],
    },
  };
}

/**
 * @param {Series} series
 * @param {ChartProps["shape"]} shape
 * @returns {uPlot.Series}
 */
function lineOf({ color }, shape) {
  const paint = token(color);
  if (shape === "lines") return { stroke: paint, width: 1.5, points: { show: true, size: 4, fill: paint, stroke: paint } };
  const paths = shape === "bars" ? uPlot.paths.bars?.({ size: [0.86, 40], align: 1 }) : uPlot.paths.stepped?.({ align: 1 });
  return { fill: paint, width: 0, paths, points: { show: false } };
}

/** @param {string} name */
function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @param {number | null} max */
function niceTop(max) {
  return max === null || !(max > 0) ? 1 : max * 1.08;
}

/**
 * @param {number} at
 * @param {[number, number]} range
 */
function tick(at, range) {
  const date = new Date(at * 1000);
  if (range[1] - range[0] > 2 * DAY) return days.format(date);
  return date.getHours() === 0 && date.getMinutes() === 0 ? days.format(date) : hours.format(date);
}

function useDarkTheme() {
  const theme = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [isDark, setDark] = useState(theme.matches);
  useEffect(() => {
    const update = () => setDark(theme.matches);
    theme.addEventListener("change", update);
    return () => theme.removeEventListener("change", update);
  }, [theme]);
  return isDark;
}

/**
 * The names of the values, and the values at the pointer. Their place is kept free, so that nothing moves.
 *
 * @param {{series: Series[], index: number | null, format: (value: number) => string}} props
 */
function Legend({ series, index, format }) {
  const value = (/** @type {Series} */ one) => {
    const found = index === null ? null : one.values[index];
    if (index === null) return "";
    return found === null || found === undefined ? "–" : format(found);
  };
  return html`
    <div class="chart-legend">
      ${series.map((one) => html`
        <span key=${one.label} class="chart-key">
          <span class="chart-swatch" style=${{ background: `var(${one.color})` }}></span>
          ${one.label} <b>${value(one)}</b>
        </span>`)}
    </div>`;
}

/**
 * The same numbers as a table. It is made when it is opened: a chart may have hundreds of rows.
 *
 * @param {{title: string, times: number[], series: Series[], format: (value: number) => string}} props
 */
function NumberTable({ title, times, series, format }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <details class="chart-numbers" onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
      <summary>Numbers<span class="unseen"> of ${title}</span></summary>
      ${isOpen && html`
        <div class="table-wrap" tabindex="0" role="region" aria-label=${`Numbers of ${title}`}>
          <table>
            <caption class="unseen">${title}</caption>
            <thead><tr><th scope="col">From</th>${series.map((one) => html`<th scope="col" class="right">${one.label}</th>`)}</tr></thead>
            <tbody>
              ${times.map((at, row) => html`
                <tr key=${at}>
                  <th scope="row" class="nowrap">${both.format(new Date(at * 1000))}</th>
                  ${series.map((one) => html`<td class="right">${one.values[row] === null || one.values[row] === undefined ? "–" : format(/** @type {number} */ (one.values[row]))}</td>`)}
                </tr>`)}
            </tbody>
          </table>
        </div>`}
    </details>`;
}
