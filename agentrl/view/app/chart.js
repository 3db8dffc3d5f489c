/** A curve chart: uPlot with the colours of the page. */

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { number } from "app/format";

/** @typedef {{ name: string, points: [number, number | null][], dots?: boolean }} Line */

const COLOURS = 8;

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

/** @param {number} value @param {number} span */
const tick = (value, span) => (Math.abs(value) < 1e-9 * span ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(4))));

/**
 * @param {{ title: string, lines: Line[], theme: string, marks?: number[], unit?: string, missing?: string, at?: string }} props
 *   `marks`: x of evaluations; `at`: the name of x.
 */
export function Chart({ title, lines, theme, marks = [], unit = "", missing, at = "iteration" }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [cursor, setCursor] = useState(/** @type {number | null} */ (null));
  const known = lines.filter((line) => line.points.length);
  const data = table(known);
  const shape = `${theme} ${known.map((line) => `${line.name}${line.dots ? "." : ""}`).join("|")}`;
  const dense = data[0].length > 12;
  const marked = useRef(marks);
  marked.current = marks;
  useEffect(() => {
    const element = place.current;
    if (!element || !known.length) return undefined;
    const axis = { stroke: css("--soft"), font: `11px ${css("--sans")}`, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const made = new uPlot({
      width: element.clientWidth || 280, height: 132, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false, range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) } },
      axes: [{ ...axis, size: 22, gap: 3, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((x) => (Number.isInteger(x) ? String(x) : "")) },
        { ...axis, size: 46, gap: 4, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((y) => tick(y, splits[splits.length - 1] - splits[0])) }],
      series: [{}, ...known.map((line, index) => ({ label: line.name, stroke: css(`--c${(index % COLOURS) + 1}`), width: 1.75, spanGaps: true,
        points: { show: line.dots || !dense, size: line.dots ? 6 : 4, fill: css(`--c${(index % COLOURS) + 1}`) } }))],
      hooks: { setCursor: [(/** @type {any} */ u) => setCursor(u.cursor.idx ?? null)], drawClear: [(/** @type {any} */ u) => drawMarks(u, marked.current)] },
    }, /** @type {any} */ (data), element);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 132 }));
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
  return h("section", { class: "card chart" }, h("header", {}, h("h2", { class: "minor cut" }, title),
      h("span", { class: "value" }, cursor == null ? "" : `${at} ${number(data[0][index])}: `, known.length === 1 ? h("b", {}, value(1), unit) : null)),
    known.length > 1 ? h("div", { class: "legend" }, known.map((line, k) => h("span", { key: line.name }, h("i", { class: "swatch", style: { background: colour(k) } }), `${line.name} ${value(k + 1)}${unit}`))) : null,
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
