/** The runs of a folder. */

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, isExport } from "app/data";
import { moment, number, visible } from "app/format";
import { useKeys } from "app/keys";
import { go, link } from "app/place";
import { Empty } from "app/ui";

/** @typedef {Record<string, any>} Json */

const EVERY_MS = 5_000;

/** @param {{ points: [number, number][], label: string }} props */
export function Spark({ points, label }) {
  const known = (points ?? []).filter(([, y]) => y != null);
  if (known.length < 2) return h("span", { class: "soft small" }, known.length ? number(known[0][1]) : "–");
  const xs = known.map(([x]) => x), ys = known.map(([, y]) => y);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const path = known.map(([x, y], k) => `${k ? "L" : "M"}${(((x - x0) / (x1 - x0 || 1)) * 96 + 2).toFixed(1)},${(20 - ((y - y0) / (y1 - y0 || 1)) * 18).toFixed(1)}`).join("");
  return h("svg", { class: "spark", viewBox: "0 0 100 22", preserveAspectRatio: "none", role: "img", "aria-label": label, style: { width: "110px" } }, h("path", { d: path, style: { fill: "none", stroke: "var(--c1)", strokeWidth: 1.6 }, "vector-effect": "non-scaling-stroke" }));
}

/** @param {{ first: Json, theme: string, query: URLSearchParams }} props */
export function RunsScreen({ first }) {
  const [answer, setAnswer] = useState(first);
  const [words, setWords] = useState("");
  const [at, setAt] = useState(-1);
  useEffect(() => {
    if (isExport) return undefined;
    const timer = setInterval(() => { if (!document.hidden) get("runs").then(setAnswer, () => {}); }, EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const runs = answer.runs.filter((/** @type {Json} */ run) => words.toLowerCase().split(/\s+/).every((word) => `${run.key} ${run.name} ${run.command}`.toLowerCase().includes(word)));
  const step = (/** @type {number} */ by) => setAt((old) => Math.max(0, Math.min(runs.length - 1, old + by)));
  useKeys({ j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), Enter: () => { if (runs[at]) go(link(["run", runs[at].key, "overview"])); }, "/": () => document.getElementById("find-run")?.focus() });
  if (!answer.runs.length) return h(Empty, { title: "No run in this folder" }, h("p", { class: "mono" }, visible(answer.folder)), h("p", {}, "Make one: agentrl quickstart"));
  const stop = (/** @type {Json} */ run) => (run.state === "running" ? h("span", { class: "up" }, "running") : h("span", { class: "soft" }, visible(run.state ?? "–")));
  return h("div", { class: "card" },
    h("div", { class: "filters" }, h("h2", {}, `${number(runs.length)} runs`), h("span", { class: "soft mono cut grow" }, visible(answer.folder)), h("input", { id: "find-run", type: "search", placeholder: "find a run", "aria-label": "find a run", value: words, onInput: (/** @type {any} */ event) => setWords(event.currentTarget.value) })),
    h("div", { class: "scroll-x", tabIndex: 0, role: "group", "aria-label": "runs" }, h("table", { class: "table runs" }, h("thead", {}, h("tr", {}, ["run", "state", "curve", "first", "last", "iteration", "episodes", "changed", "command"].map((name, k) => h("th", { key: name, class: k > 2 && k < 7 ? "num" : "" }, name)))),
      h("tbody", {}, runs.map((/** @type {Json} */ run, /** @type {number} */ k) => (run.problem
        ? h("tr", { key: run.key }, h("td", {}, visible(run.key)), h("td", { colSpan: 8, class: "down" }, visible([run.problem.what, run.problem.remedy].filter(Boolean).join(" "))))
        : h("tr", { key: run.key, class: k === at ? "on" : "", style: k === at ? { background: "var(--accent-soft)" } : {} }, h("td", {}, h("a", { class: "strong", href: link(["run", run.key, "overview"]) }, visible(run.key)), run.name && run.name !== run.key ? h("div", { class: "soft small" }, visible(run.name)) : null), h("td", {}, stop(run)),
          h("td", {}, h(Spark, { points: run.curve, label: visible(`${run.shown}: ${number(run.first)} to ${number(run.last)}`) }), run.shown ? h("div", { class: "soft small" }, visible(run.shown)) : null), h("td", { class: "num" }, number(run.first)), h("td", { class: "num strong" }, number(run.last)), h("td", { class: "num" }, number(run.iteration)), h("td", { class: "num" }, number(run.episodes)),
          h("td", { class: "nowrap soft" }, moment(run.changed_at)), h("td", { class: "mono small soft" }, visible(run.command)))))))));
}
