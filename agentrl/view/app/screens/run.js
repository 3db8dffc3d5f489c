/** A run: is it alive, does it learn, how is its reward spread, what fails. */

import { h } from "preact";
import { useState } from "preact/hooks";
import { get } from "app/data";
import { Chart, ofEvaluations, smoothed } from "app/chart";
import { duration, isNumber, moment, number, plural, pretty, signed, visible } from "app/format";
import { link, replace } from "app/place";
import { Chip, Copy, Details, Facts, Indexing, Missing, pending, Status, Text, tone, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const PHASES = ["var(--c1)", "var(--c5)", "var(--c3)", "var(--c2)", "var(--c6)", "var(--c7)", "var(--c8)", "var(--c4)"];

/** @param {{ value: any, label: any }} props */
const Tile = ({ value, label }) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label));

/** What is being played right now. @param {{ live: import("app/live").Live, head: Json }} props */
function Now({ live, head }) {
  const beat = live.live ?? head.live;
  const running = (live.state || head.state) === "running";
  if (beat && (live.state || head.state) === "ended") return null; // nothing is in flight, and the tiles count what was
  if (!beat) return running ? h("div", { class: "card pad small soft" }, "In flight: ", h(Missing, {}), ". This run writes no heartbeat.") : null;
  const stages = Object.entries(beat.stages ?? {}), all = stages.reduce((sum, [, count]) => sum + count, 0);
  return h("section", { class: "card pad", "aria-label": "in flight", style: { marginBottom: "12px" } },
    h("div", { class: "row" }, h("h2", {}, visible(running ? `Now: ${beat.phase || "starting"}` : "The last heartbeat")),
      beat.total > 0 ? h("span", { class: "soft" }, `${number(beat.done)} of ${number(beat.total)} done`) : null, h("span", { class: "grow" }), h("span", { class: "soft small" }, `heartbeat ${moment(beat.at)}`)),
    beat.total > 0 && running ? h("div", { class: "progress", style: { marginTop: "8px" } }, h("i", { style: { width: `${(100 * (beat.done ?? 0)) / beat.total}%` } })) : null,
    all > 0 ? h("div", { class: "phases", "aria-hidden": "true" }, stages.map(([name, count], k) => h("i", { key: name, style: { flex: count, background: PHASES[k % PHASES.length] } }))) : null,
    h("div", { class: "row small" }, beat.working ? h("span", { class: "soft" }, `${number(all)} in flight`) : null, stages.map(([name, count], k) => h("span", { key: name }, h("i", { class: "swatch", style: { background: PHASES[k % PHASES.length] } }), visible(`${name} ${number(count)}`)))),
    h("div", { class: "small soft" }, [beat.state, ...(beat.parts ?? [])].map((/** @type {string} */ line, /** @type {number} */ k) => h("div", { key: k }, visible(line)))));
}

/** The curves of a panel; those of evaluations are marked at their points. Of a curve and its evaluations the split alone is named.
 * @param {Json} metrics @param {string[]} names @returns {import("app/chart").Line[]} */
function lines(metrics, names) {
  const pair = names.length === 2 && !ofEvaluations(names[0]) && ofEvaluations(names[1]);
  return names.map((name) => ({ name: pair ? (ofEvaluations(name) ? "eval" : "train") : name, points: metrics.series[name] ?? [], dots: ofEvaluations(name) }));
}

/** The chart of some curves. A stage that imitates counts steps, and no evaluation belongs to them.
 * @param {{ title: string, names: string[], metrics: Json, theme: string, weight: number }} props `weight`: of what came before, 0: not smoothed */
function Panel({ title, names, metrics, theme, weight }) {
  const steps = (metrics.supervised ?? []).some((/** @type {string} */ stage) => names[0].startsWith(`${stage}/`));
  return h(Chart, { title: visible(title), theme, lines: lines(metrics, names).map((line) => (weight && !line.dots ? { ...line, raw: line.points, points: smoothed(line.points, weight) } : line)), marks: steps ? [] : metrics.evaluations ?? [], at: steps ? "step" : "iteration" });
}

/** From the first value to the last, of what the run is about: its success or reward, in training and evaluations, and the loss of a
 * warm start. @param {{ metrics: Json }} props */
function Headlines({ metrics }) {
  const main = metrics.shown ? [metrics.shown, metrics.shown.replace(/([^/]+)$/, "eval/$1")] : [];
  const names = [...main, ...(metrics.supervised ?? []).map((/** @type {string} */ stage) => `${stage}/loss`)];
  const known = [...new Set(names)].filter((name) => metrics.series[name]?.length);
  return h("div", { class: "card headlines", title: "first and last value" }, known.map((name) => {
    const points = metrics.series[name], [first, last] = [points[0][1], points[points.length - 1][1]];
    return h("div", { key: name }, h("span", { class: "soft" }, visible(name)), h("b", {}, points.length > 1 ? `${number(first, 2)} → ${number(last, 2)}` : number(first, 2)));
  }));
}

/** The turn of the run with the largest or the smallest advantage, as a tile that leads to it.
 * @param {{ run: string, turn: Json | null | undefined, label: string }} props */
const ExtremeTurn = ({ run, turn, label }) => (turn ? h(Tile, { value: h("span", { class: tone(turn.advantage) }, signed(turn.advantage)),
  label: h("a", { href: link(["run", run, "episode", turn.id], { turn: turn.turn }), title: visible(`turn ${turn.turn} of ${turn.id}`) }, label) }) : null);

/** @param {{ title: string, bins: [number, number, number][] | undefined, href: (low: number, high: number) => string, empty: string }} props */
function Histogram({ title, bins, href, empty }) {
  if (!bins?.length) return h("section", { class: "card chart missing" }, h("header", {}, h("h2", { class: "minor" }, title)), h("div", { class: "plot" }, empty));
  const tallest = Math.max(...bins.map(([, , n]) => n)), width = 1000 / bins.length;
  return h("section", { class: "card chart" }, h("header", {}, h("h2", { class: "minor" }, title), h("span", { class: "value" }, `${number(bins[0][0])} to ${number(bins[bins.length - 1][1])}`)),
    h("svg", { viewBox: "0 0 1000 132", preserveAspectRatio: "none", style: { width: "100%", height: "132px", display: "block" }, role: "group", "aria-label": `${title}: ${bins.map(([low, high, n]) => `${number(low)} to ${number(high)}: ${n}`).join(", ")}` },
      bins.map(([low, high, n], k) => (n ? h("a", { key: k, href: href(low, high), "aria-label": `${number(low)} to ${number(high)}: ${plural(n, "episode")}` }, h("title", {}, `${number(low)} to ${number(high)}: ${plural(n, "episode")}`),
        h("rect", { x: k * width + 3, width: Math.max(1, width - 6), y: 128 - (n / tallest) * 118, height: (n / tallest) * 118, style: { fill: "var(--c1)", opacity: 0.8 } })) : null))));
}

/** @param {{ title: string, counts: Record<string, number>, href?: (name: string) => string, tone?: string }} props */
function Bars({ title, counts, href, tone = "" }) {
  const rows = Object.entries(counts ?? {}), largest = Math.max(1, ...rows.map(([, n]) => n));
  if (!rows.length) return null;
  return h("section", { class: "card pad" }, h("h2", { class: "minor", style: { marginBottom: "6px" } }, title), h("div", { class: "bars" }, rows.map(([name, n]) => [
    h("span", { key: name, class: "cut" }, href ? h("a", { href: href(name) }, visible(name)) : visible(name)), h("div", { class: `bar ${tone}`, style: { width: `${(100 * n) / largest}%` } }), h("span", { class: "num" }, number(n))])));
}

/** Weights of the moving average that curves are smoothed with. */
const SMOOTHING = [["", "no smoothing"], ["0.6", "light smoothing"], ["0.9", "strong smoothing"]];

/** @param {{ run: string, head: Json, live: import("app/live").Live, theme: string, query: URLSearchParams }} props */
export function RunScreen({ run, head, live, theme, query }) {
  const stage = query.get("stage") ?? "", smooth = query.get("smooth") ?? "", weight = Math.min(0.99, Math.max(0, Number(smooth) || 0));
  const [words, setWords] = useState("");
  const turnTo = (/** @type {Json} */ changes) => replace(link(["run", run, "overview"], { stage, smooth, ...changes }));
  const state = useLoaded(() => get("metrics", { run, stage, points: 1000 }), [run, stage, live.ticks.metrics]);
  const facets = useLoaded(() => get("facets", { run }), [run, live.ticks.episodes, live.ticks.index]).value;
  const metrics = state.value, s = head.summary;
  const list = (/** @type {Json} */ filter) => link(["run", run, "episodes"], filter);
  const screen = metrics?.screen ?? {};
  const drawn = new Set(/** @type {string[]} */ (Object.values(screen).flat()));
  const lacking = (head.not_recorded ?? []).filter((/** @type {string} */ name) => name !== "live"); // its place says so
  const rest = metrics ? Object.keys(metrics.series).filter((name) => !drawn.has(name)).sort() : [];
  const asked = (/** @type {[string, string[]]} */ [title, names]) => [title, ...names].some((name) => name.toLowerCase().includes(words.trim().toLowerCase()));
  const found = /** @type {[string, string[]][]} */ ([...Object.entries(screen), ...(words ? rest.map((name) => [name, [name]]) : [])]);
  const panels = words ? found.filter(asked) : found;
  const any = metrics && Object.keys(metrics.series).length > 0;
  const failed = Object.values(s.failures).reduce((/** @type {number} */ sum, /** @type {any} */ n) => sum + n, 0);
  const { recipe, planned, tools, ...circumstances } = head.info ?? {};
  if (!s.episodes && !any) return h("div", {}, h(Now, { live, head }), h("div", { class: "empty" }, h("h2", {}, "No episode yet"), h("p", {}, "Episodes appear here when the first one ends. "), head.command ? h("p", { class: "mono small" }, visible(head.command)) : null));
  return h("div", {},
    h(Now, { live, head }),
    any ? h(Headlines, { metrics }) : null,
    h("div", { class: "tiles" },
      h(Tile, { value: number(s.episodes), label: h("a", { href: list({}) }, `episodes in ${number(s.groups)} groups`) }),
      any && isNumber(metrics.iteration) ? h(Tile, { value: number(metrics.iteration), label: metrics.iteration === 1 ? "iteration" : "iterations" }) : null,
      Object.entries(s.splits).map(([name, split]) => h(Tile, { key: name, value: split.reward ? number(split.reward[0]) : h("span", { class: "none" }, "not scored"),
        label: h("a", { href: list({ split: name.split("/").pop() }), title: split.reward ? `minimum ${number(split.reward[1])}, maximum ${number(split.reward[2])}` : undefined }, visible(`mean reward, ${name} (${number(split.episodes)})`)) })),
      h(Tile, { value: number(s.calls), label: "tool calls" }), h(Tile, { value: number(s.sampled_tokens), label: "sampled tokens" }), h(Tile, { value: duration(s.duration_s), label: "an episode" }),
      h(ExtremeTurn, { run, turn: facets?.best_turn, label: "best turn" }), h(ExtremeTurn, { run, turn: facets?.worst_turn, label: "worst turn" }),
      h(Tile, { value: h("span", { class: failed ? "down" : "" }, number(failed)), label: h("a", { href: link(["run", run, "failures"]) }, "failures") }),
      s.drift ? h(Tile, { value: h("span", { class: "warn" }, number(s.drift)), label: "episodes with token drift" }) : null),
    h("div", { class: "row", style: { marginBottom: "12px" } }, Object.entries(s.statuses).map(([name, n]) => h("a", { key: name, class: "chip", href: list({ status: name }) }, h(Status, { status: name }), visible(`${number(n)} ${name}`))),
      Object.entries(s.stops).map(([name, n]) => h("a", { key: name, class: "chip", href: list({ stop: name }) }, visible(`${number(n)} ended by ${name}`))),
      s.mixed_groups ? h(Chip, { tone: "warn" }, `${number(s.mixed_groups)} groups began with different prompts`) : null,
      h("span", { class: "grow" }),
      head.stages?.length > 1 ? h("label", { class: "row small soft" }, "stage ", h("select", { value: stage, onChange: (/** @type {any} */ event) => turnTo({ stage: event.currentTarget.value }) }, h("option", { value: "" }, "all"), head.stages.map((/** @type {string} */ name) => h("option", { key: name, value: name }, visible(name))))) : null),
    metrics ? null : pending(state),
    any ? h("div", {},
        h("div", { class: "row", style: { marginBottom: "12px" } }, h("h2", {}, "Curves"), h("span", { class: "grow" }), h("input", { type: "search", placeholder: "find a metric", "aria-label": "find a metric", value: words, onInput: (/** @type {any} */ event) => setWords(event.currentTarget.value) }),
          h("select", { "aria-label": "smoothing", value: smooth, onChange: (/** @type {any} */ event) => turnTo({ smooth: event.currentTarget.value }) }, SMOOTHING.map(([value, label]) => h("option", { key: value, value }, label)))),
        h("div", { class: "charts" }, panels.map(([title, names]) => h(Panel, { key: title, title, names, metrics, theme, weight }))),
        words && !panels.length ? h("p", { class: "soft" }, "No metric is called so.") : null,
        lacking.length ? h("p", { class: "row small soft", style: { marginTop: "8px" } }, h(Missing, {}), lacking.map((/** @type {string} */ name) => h(Chip, { key: name }, visible(name)))) : null)
      : metrics ? h("div", { class: "card pad soft", style: { marginBottom: "12px" } }, "Curves: ", h(Missing, {}), ". Curves come from a training (agentrl train); this run has no metrics.") : null,
    h("h2", { class: "section" }, "Distribution"),
    h("div", { class: "charts" },
      h(Histogram, { title: "reward", bins: facets?.histogram?.reward, empty: facets ? "not recorded" : "…", href: (low, high) => list({ reward_min: low, reward_max: high, sort: "reward" }) }),
      h(Histogram, { title: "turns", bins: facets?.histogram?.turns, empty: facets ? "not recorded" : "…", href: (low, high) => list({ turns_min: Math.ceil(low), turns_max: Math.floor(high), sort: "turns" }) }),
      h(Histogram, { title: "seconds of an episode", bins: facets?.histogram?.duration_s, empty: facets ? "not recorded" : "…", href: (low, high) => list({ duration_min: low, duration_max: high, sort: "duration_s" }) })),
    h(Indexing, { index: facets?.index, what: "tools and reward components are of" }),
    h("div", { class: "two", style: { marginTop: "12px" } }, h(Bars, { title: "Failures by class", counts: s.failures, tone: "down", href: (name) => list({ error: name }) }), h(Bars, { title: "Reasons for a reward of 0", counts: s.notes, tone: "warn" }),
      h(Bars, { title: "Calls that failed", counts: Object.fromEntries(Object.entries(s.bad_calls ?? {}).filter(([, n]) => n)), tone: "warn" }), h(Bars, { title: "Calls by tool (episodes)", counts: facets?.tools, href: (name) => list({ tool: name }) }),
      facets?.components && Object.keys(facets.components).length ? h("section", { class: "card pad" }, h("h2", { class: "minor" }, "Reward components"), h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["component", "mean", "least", "most", "scored"].map((name, k) => h("th", { key: name, class: k ? "num" : "" }, name)))),
        h("tbody", {}, Object.entries(facets.components).map(([name, c]) => h("tr", { key: name }, h("td", {}, h("a", { href: list({ component: name, sort: `components.${name}` }) }, visible(name))), [c.mean, c.min, c.max, c.count].map((value, k) => h("td", { key: k, class: "num" }, number(value)))))))) : null),
    rest.length && !words ? h(Details, { title: `${rest.length} more metrics`, children: () => h("div", { class: "charts" }, rest.map((name) => h(Panel, { key: name, title: name, names: [name], metrics, theme, weight }))) }) : null,
    h("h2", { class: "section" }, "Circumstances"),
    h("div", { class: "card pad stack" }, h(Facts, { facts: [["path", h("span", { class: "mono" }, visible(head.path))], ["command", head.command ? h(Copy, { command: head.command }) : h(Missing, {})], ["began", moment(head.created_at)], ["state", visible(live.state || head.state)],
      ["versions", visible(Object.entries(head.info?.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ")) || h(Missing, {})], ["estimator", head.estimator ? visible(head.estimator) : h(Missing, {})],] }),
      h(Details, { title: "recipe", children: () => h(Text, { text: recipe ? pretty(recipe) : "not recorded", limit: 20_000 }) }), h(Details, { title: "everything else in run.json", children: () => h(Text, { text: pretty({ planned, tools, ...circumstances }), limit: 20_000 }) })));
}

