/** A curve chart: uPlot with the colours of the page. */

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { number } from "app/format";

/** @typedef {[number, number | null][]} Points */
/** @typedef {{ name: string, points: Points, dots?: boolean, raw?: Points }} Line `dots`: its points are marked; `raw`: a faint line below it */

/** A curve as an exponential moving average that is not drawn to 0 at its beginning. @param {Points} points @param {number} weight @returns {Points} */
export function smoothed(points, weight) {
  let sum = 0, share = 0;
  return points.map(([x, y]) => {
    if (y == null) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    share = weight * share + (1 - weight);
    return [x, sum / share];
  });
}

/** True of a curve of evaluations, which has few points. @param {string} name */
export const ofEvaluations = (name) => /(^|\/)eval\//.test(name);

const COLOURS = 8;
const HEIGHT = 136, LARGE = 340;

/** Steps of the axis of iterations: whole numbers. */
const STEPS = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

/** The colour of the nth line. @param {number} index */
export const colour = (index) => `var(--c${(index % COLOURS) + 1})`;

/** @param {string} name */
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines as columns over the same x. @param {Line[]} lines @returns {(number | null)[][]} */
function table(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  return [xs, ...lines.map((line) => {
    /** @type {(number | null)[]} */
    const column = new Array(xs.length).fill(null);
    for (const [x, y] of line.points) column[/** @type {number} */ (place.get(x))] = y;
    return column;
  })];
}

/** Labels of an axis, with as many digits as its step needs; thousands and millions are shortened.
 * @param {number[]} splits @param {number} step */
export function ticks(splits, step) {
  const largest = Math.max(...splits.map(Math.abs));
  const [unit, per] = largest >= 1e6 ? ["M", 1e6] : largest >= 1e4 ? ["k", 1e3] : ["", 1];
  const digits = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step / per))));
  return splits.map((value) => (Math.abs(value) < step * 1e-6 ? "0" : largest < 1e-3 ? value.toExponential(1).replace(".0e", "e") : `${Number((value / per).toFixed(digits))}${unit}`));
}

/** Ends of an axis for values from `low` to `high`. Around a constant there is room; a constant 0 is the lower end.
 * @param {number | null} low @param {number | null} high @returns {[number, number]} */
export function ends(low, high) {
  if (low == null || high == null) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (size === 0) return [0, 1];
  return high - low > 1e-9 * size ? /** @type {[number, number]} */ (uPlot.rangeNum(low, high, 0.1, true)) : [low - 0.1 * size, high + 0.1 * size];
}

/**
 * @param {{ title: string, lines: Line[], theme: string, marks?: number[], unit?: string, missing?: string, at?: string }} props
 *   `marks`: x of evaluations; `at`: the name of x.
 */
export function Chart({ title, lines, theme, marks = [], unit = "", missing, at = "iteration" }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [cursor, setCursor] = useState(/** @type {number | null} */ (null));
  const [large, setLarge] = useState(false);
  const known = lines.map((line, place) => ({ ...line, colour: place })).filter((line) => line.points.length);
  const faint = known.flatMap((line) => (line.raw ? [{ ...line, points: line.raw }] : []));
  const data = table([...known, ...faint]), height = large ? LARGE : HEIGHT;
  const shape = `${theme} ${height} ${faint.length} ${known.map((line) => `${line.name}${line.dots ? "." : ""}`).join("|")}`;
  const dense = data[0].length > 12;
  const marked = useRef(marks);
  marked.current = marks;
  useEffect(() => {
    const element = place.current;
    if (!element || !known.length) return undefined;
    const axis = { stroke: css("--soft"), font: `11px ${css("--sans")}`, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const made = new uPlot({
      width: element.clientWidth || 280, height, legend: { show: false }, padding: [8, 16, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false, range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) }, y: { range: (/** @type {any} */ _, /** @type {number | null} */ low, /** @type {number | null} */ high) => ends(low, high) } },
      axes: [{ ...axis, size: 22, gap: 5, label: at, labelFont: axis.font, labelSize: 14, labelGap: 0, incrs: STEPS, values: (/** @type {any} */ _, /** @type {number[]} */ splits, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ step) => ticks(splits, step) },
        { ...axis, gap: 4, size: (/** @type {any} */ _, /** @type {string[] | null} */ labels) => Math.max(34, 14 + 6.5 * Math.max(...(labels ?? [""]).map((label) => label.length))),
          values: (/** @type {any} */ _, /** @type {number[]} */ splits, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ step) => ticks(splits, step) }],
      series: [{}, ...known.map((line) => ({ label: line.name, stroke: css(`--c${(line.colour % COLOURS) + 1}`), width: 1.75, spanGaps: true,
        points: { show: line.dots || !dense, size: line.dots ? 7 : 4, fill: css(`--c${(line.colour % COLOURS) + 1}`) } })),
        ...faint.map((line) => ({ label: line.name, stroke: css(`--c${(line.colour % COLOURS) + 1}`), width: 1, alpha: 0.3, spanGaps: true, points: { show: false } }))],
      hooks: { setCursor: [(/** @type {any} */ u) => setCursor(u.cursor.idx ?? null)], drawClear: [(/** @type {any} */ u) => drawMarks(u, marked.current)] },
    }, /** @type {any} */ (data), element);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => { watch.disconnect(); made.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); }, [JSON.stringify(data)]);
  if (!known.length) return h("section", { class: "card chart missing" }, h("header", {}, h("h2", { class: "minor" }, title)), h("div", { class: "plot" }, missing ?? "not recorded"));
  const index = cursor ?? data[0].length - 1;
  const value = (/** @type {number} */ column) => {
    for (let row = index; row >= 0; row -= 1) if (data[column][row] != null) return number(data[column][row]);
    return "–";
  };
  const label = known.map((line, k) => `${line.name}: ${value(k + 1)}`).join(", ");
  return h("section", { class: `card chart ${large ? "large" : ""}` }, h("header", {}, h("h2", { class: "minor cut" }, title),
      h("span", { class: "value" }, cursor == null ? "" : `${at} ${number(data[0][index])}: `, lines.length === 1 ? h("b", {}, value(1), unit) : null),
      h("button", { class: "icon", "aria-pressed": large, "aria-label": `enlarge ${title}`, title: large ? "smaller" : "larger", onClick: () => setLarge(!large) }, large ? "−" : "+")),
    lines.length > 1 ? h("div", { class: "legend" }, lines.map((line, k) => h("span", { key: line.name }, h("i", { class: "swatch", style: { background: colour(k) } }), `${line.name} `, line.points.length ? `${value(known.findIndex((one) => one.colour === k) + 1)}${unit}` : h("span", { class: "none" }, "not recorded")))) : null,
    h("div", { class: "plot", ref: place, role: "img", "aria-label": `${title}; ${label}` }));
}

/** Lines at the iterations of evaluations. @param {any} u @param {number[]} marks */
function drawMarks(u, marks) {
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = css("--c2");
  ctx.globalAlpha = 0.55;
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark, "x", true));
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
