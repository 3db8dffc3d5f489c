/** A list of which only the lines in view are elements: it holds a million lines as easily as ten. */

import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const LINE = 30;
const SPARE = 12;
const TALLEST = 15_000_000; // a browser's elements may not be taller than about 17 million pixels

/** @typedef {Record<string, any>} Json */

/**
 * @typedef {Object} Column
 * @property {string} name
 * @property {string} label
 * @property {string} width a track of CSS grid
 * @property {boolean} [number]
 * @property {string} sort the field that a click sorts by
 * @property {string} [title]
 * @property {(row: Json) => any} cell
 */

/**
 * @param {{ columns: Column[], total: number, at: (index: number) => Json | undefined, need: (from: number, to: number) => void,
 *   chosen: number, onChoose: (index: number) => void, href: (row: Json) => string, sort: string, down: boolean,
 *   onSort: (name: string) => void, label: string, height: number }} props
 */
export function Grid({ columns, total, at, need, chosen, onChoose, href, sort, down, onSort, label, height }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [top, setTop] = useState(0);
  const lines = Math.min(total, Math.floor(TALLEST / LINE));
  const from = Math.max(0, Math.floor(top / LINE) - SPARE);
  const to = Math.min(lines, Math.ceil((top + height) / LINE) + SPARE);
  useEffect(() => need(from, to), [from, to, total, need]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || chosen < 0) return;
    const head = 32, y = chosen * LINE;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + LINE + head > element.scrollTop + element.clientHeight) element.scrollTop = y + LINE + head - element.clientHeight;
  }, [chosen]);
  const tracks = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  const visible = [];
  for (let index = from; index < to; index += 1) {
    const row = at(index);
    visible.push(h("div", { key: index, class: `line ${index === chosen ? "on" : ""}`, role: "row", "aria-rowindex": index + 2, onClick: row ? () => onChoose(index) : undefined, style: { ...tracks, top: `${index * LINE}px` } },
      columns.map((column, k) => h("span", { key: column.name, role: "gridcell", class: column.number ? "num" : "" }, row ? (k ? column.cell(row) : h("a", { href: href(row), tabIndex: -1 }, column.cell(row))) : "…"))));
  }
  return h("div", { class: "window", ref: box, role: "grid", "aria-label": label, "aria-rowcount": total + 1, tabIndex: 0,
      style: { height: `${height}px` }, onScroll: (/** @type {any} */ event) => setTop(event.currentTarget.scrollTop) },
    h("div", { class: "head", role: "row", "aria-rowindex": 1, style: tracks }, columns.map((column) => h("span", { key: column.name, role: "columnheader", class: column.number ? "num" : "", style: { overflow: "hidden" },
      "aria-sort": column.sort === sort ? (down ? "descending" : "ascending") : undefined },
      h("button", { class: column.number ? "num" : "", title: column.title ?? `sort by ${column.label}`, onClick: () => onSort(column.sort) },
        column.label, column.sort === sort ? (down ? " ↓" : " ↑") : "")))),
    h("div", { role: "rowgroup", style: { position: "relative", height: `${lines * LINE}px` } }, visible));
}
