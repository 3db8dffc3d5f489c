/** Two runs side by side, or two estimators on one group of this run. */

import { h } from "preact";
import { useState } from "preact/hooks";
import { get, isExport } from "app/data";
import { Chart, ofEvaluations } from "app/chart";
import { most } from "app/credit";
import { flat, isNumber, number, signed, visible } from "app/format";
import { link, replace } from "app/place";
import { actionOf, EstimatorMenu } from "app/screens/group";
import { Axis, Chip, Details, Empty, Failed, pending, tone, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const MOST = 200;
const CHARTS = 12;
/** Metrics that are drawn first. */
const PANELS = ["success", "eval/success", "reward", "eval/reward", "turns", "entropy", "kl_old", "grad_norm"];

/** @param {{ won: Json }} props */
function Share({ won }) {
  const parts = [["a", won.a, "--c1"], ["tie", won.tie, "--line-strong"], ["b", won.b, "--c2"]], all = parts.reduce((sum, [, n]) => sum + Number(n), 0);
  if (!all) return h("p", { class: "soft" }, "No task was played in both.");
  return h("div", {}, h("div", { class: "phases", "aria-hidden": "true" }, parts.map(([name, n, colour]) => (n ? h("i", { key: String(name), style: { flex: Number(n), background: `var(${colour})` } }) : null))),
    h("div", { class: "row small" }, h("span", {}, h("i", { class: "swatch", style: { background: "var(--c1)" } }), `A better: ${number(won.a)}`), h("span", { class: "soft" }, `equal: ${number(won.tie)}`), h("span", {}, h("i", { class: "swatch", style: { background: "var(--c2)" } }), `B better: ${number(won.b)}`),
      won.only_a || won.only_b ? h("span", { class: "soft" }, `only in A: ${number(won.only_a)}, only in B: ${number(won.only_b)}`) : null));
}

/** @param {Json | null} side @param {string} by */
const figure = (side, by) => (side === null ? h("span", { class: "none" }, "not played") : isNumber(side[by]) ? `${number(side[by])} (${number(side.n)})` : h("span", { class: "none" }, "not scored"));

/** @param {{ run: string, other: string, split: string, theme: string, place: (changes: Json) => void }} props */
function Runs({ run, other, split, theme, place }) {
  const state = useLoaded(() => get("compare", { run, with: other, split }), [run, other, split]);
  const [words, setWords] = useState("");
  const answer = state.value;
  if (!answer) return h("div", {}, pending(state));
  const inBoth = (/** @type {string} */ name) => answer.metrics[name].a.length > 0 && answer.metrics[name].b.length > 0;
  const others = Object.keys(answer.metrics).filter((name) => !PANELS.includes(name));
  const drawn = (/** @type {string} */ name) => ["a", "b"].some((side) => answer.metrics[name][side].length > 1);
  const all = [...PANELS.filter((name) => answer.metrics[name]), ...others.filter(inBoth), ...others.filter((name) => !inBoth(name))];
  const names = all.filter(drawn), figures = all.filter((name) => !drawn(name)); // a rollout has one value of each metric
  const chart = (/** @type {string} */ name) => h(Chart, { key: name, title: visible(name), theme, lines: ["a", "b"].map((side) => ({ name: side.toUpperCase(), points: answer.metrics[name][side], dots: ofEvaluations(name) })) });
  const tasks = answer.tasks.filter((/** @type {Json} */ task) => task.task_id.toLowerCase().includes(words.toLowerCase()));
  return h("div", { class: "stack" }, state.error ? h(Failed, { error: state.error }) : null,
    h("div", { class: "card pad stack" }, h("div", { class: "row" }, h(Chip, { tone: "accent" }, visible(`A  ${answer.a.key}: ${number(answer.a.episodes)} episodes`)), h(Chip, { tone: "warn" }, visible(`B  ${answer.b.key}: ${number(answer.b.episodes)} episodes`)), h("span", { class: "soft small" }, visible(`better by mean ${answer.by} of a task`)), h("span", { class: "grow" }),
      h("label", { class: "row small soft" }, "split ", h("select", { value: split, onChange: (/** @type {any} */ event) => place({ split: event.currentTarget.value }) }, h("option", { value: "" }, "all"), answer.splits.map((/** @type {string} */ name) => h("option", { key: name, value: name }, visible(name)))))), h(Share, { won: answer.won })),
    h("div", { class: "charts" }, names.slice(0, CHARTS).map(chart)),
    names.length > CHARTS ? h(Details, { title: `${names.length - CHARTS} more metrics`, children: () => h("div", { class: "charts" }, names.slice(CHARTS).map(chart)) }) : null,
    figures.length ? h("section", { class: "card pad" }, h("h2", {}, "Metrics with one value"), h("div", { class: "scroll-x" }, h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["metric", "A", "B"].map((name, k) => h("th", { key: name, class: k ? "num" : "" }, name)))),
      h("tbody", {}, figures.map((name) => h("tr", { key: name }, h("td", { class: "mono" }, visible(name)), ["a", "b"].map((side) => h("td", { key: side, class: "num" }, answer.metrics[name][side].length ? number(answer.metrics[name][side][0][1]) : h("span", { class: "none" }, "not recorded"))))))))) : null,
    h("section", { class: "card pad" }, h("h2", {}, "Configuration"), answer.config.length ? h("div", { class: "scroll-x" }, h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["key", "A", "B"].map((name) => h("th", { key: name }, name)))), h("tbody", {}, answer.config.map((/** @type {Json} */ row) => h("tr", { key: row.path }, h("td", { class: "mono" }, visible(row.path)), [row.a, row.b].map((value, k) => h("td", { key: k, class: "mono" }, value == null ? h("span", { class: "soft" }, "–") : visible(flat(value))))))))) : h("p", { class: "soft" }, "The recipes are equal.")),
    h("section", { class: "card" }, h("div", { class: "filters" }, h("h2", { class: "grow" }, `Tasks (${number(tasks.length)})`), h("input", { type: "search", placeholder: "find a task", "aria-label": "find a task", onInput: (/** @type {any} */ event) => setWords(event.currentTarget.value) })),
      h("div", { class: "scroll-x" }, h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["task", "A", "B", "difference", "better"].map((name, k) => h("th", { key: name, class: k && k < 4 ? "num" : "" }, name)))),
        h("tbody", {}, tasks.slice(0, MOST).map((/** @type {Json} */ task) => h("tr", { key: task.task_id }, h("td", {}, h("a", { href: link(["run", run, "episodes"], { task: task.task_id }) }, visible(task.task_id)), " ", h("a", { class: "small", href: link(["run", other, "episodes"], { task: task.task_id }) }, "in B")), h("td", { class: "num" }, figure(task.a, answer.by)), h("td", { class: "num" }, figure(task.b, answer.by)),
          h("td", { class: `num ${tone(difference(task, answer.by))}` }, signed(difference(task, answer.by))), h("td", {}, task.won === "tie" ? h("span", { class: "soft" }, "equal") : task.won ? task.won.toUpperCase() : "–"))))),
        tasks.length > MOST ? h("p", { class: "soft small pad" }, `${MOST} of ${number(tasks.length)}: search for the others.`) : null)));
}

/** @param {Json} task @param {string} by */
const difference = (task, by) => (isNumber(task.a?.[by]) && isNumber(task.b?.[by]) ? task.b[by] - task.a[by] : null);

/** @param {{ run: string, head: Json, group: string, a: string, b: string, place: (changes: Json) => void }} props */
function Estimators({ run, head, group, a, b, place }) {
  const state = useLoaded(() => get("group", { run, id: group }), [run, group]);
  const side = (/** @type {string} */ name) => async () => (name ? (await get("credit", { run, group, estimator: name })).credits : null);
  const first = useLoaded(side(a), [run, group, a]), second = useLoaded(side(b), [run, group, b]);
  const answer = state.value;
  const menus = h("div", { class: "row" }, h(EstimatorMenu, { head, chosen: a, onChange: (name) => place({ a: name }), label: "A" }), h(EstimatorMenu, { head, chosen: b, onChange: (name) => place({ b: name }), label: "B" }));
  if (!answer) return h("div", {}, menus, pending(state));
  const values = (/** @type {Json | null | undefined} */ credits, /** @type {Json} */ member) => (credits ? credits[member.id]?.turn_advantages ?? [] : member.turns.map((/** @type {Json} */ turn) => turn.advantage));
  const sides = [first, second].map((one, k) => ({ name: [a, b][k] || "as recorded", error: [a, b][k] ? one.error : null, waits: Boolean([a, b][k]) && one.loading, of: (/** @type {Json} */ member) => values([a, b][k] ? one.value ?? {} : null, member) }));
  const scales = sides.map((one) => most(answer.members.flatMap(one.of)));
  return h("div", { class: "stack" }, menus, sides.map((one, k) => (one.error ? h(Failed, { key: k, error: one.error }) : null)),
    answer.members.map((/** @type {Json} */ member) => h("section", { class: "card pad", key: member.id }, h("div", { class: "row" }, h("h2", { class: "minor" }, h("a", { href: link(["run", run, "episode", member.id]) }, visible(member.id))), h(Chip, {}, isNumber(member.reward) ? `reward ${number(member.reward)}` : "not scored")),
      h("div", { class: "scroll-x" }, h("table", { class: "table" }, h("thead", {}, h("tr", {}, h("th", {}, "turn"), h("th", {}, "action"), sides.map((one, k) => h("th", { key: k, style: { minWidth: "170px" } }, visible(`${"AB"[k]}  ${one.name}`))))),
        h("tbody", {}, member.turns.map((/** @type {Json} */ turn) => h("tr", { key: turn.index }, h("td", {}, turn.index), h("td", { class: "mono small" }, visible(actionOf(turn).slice(0, 160))), sides.map((one, k) => { const value = one.of(member)[turn.index]; return h("td", { key: k }, isNumber(value) ? h("span", { class: "row" }, h(Axis, { value, most: scales[k], size: "narrow" }), h("span", { class: tone(value) }, signed(value))) : h("span", { class: "none" }, one.waits ? "computing …" : "not recorded")); })))))))));
}

/** @param {{ run: string, head: Json, theme: string, query: URLSearchParams }} props */
export function CompareScreen({ run, head, theme, query }) {
  const other = query.get("with") ?? "", group = query.get("group") ?? "", split = query.get("split") ?? "", a = query.get("a") ?? "", b = query.get("b") ?? "";
  const runs = useLoaded(() => get("runs"), []).value;
  const groups = useLoaded(async () => [...new Set((await get("episodes", { run, limit: 200, sort: "created_at", desc: 1 })).rows.map((/** @type {Json} */ row) => row.group_id))], [run]).value ?? [];
  const place = (/** @type {Json} */ changes) => replace(link(["run", run, "compare"], { with: other, group, split, a, b, ...changes }));
  const others = (runs?.runs ?? []).filter((/** @type {Json} */ one) => one.key !== run && !one.problem);
  if (isExport) return h(Empty, { title: "An export cannot compare" }, h("p", {}, "In the live viewer: agentrl view FOLDER"));
  return h("div", { class: "stack" },
    h("div", { class: "card filters" }, h("label", {}, "with the run ", h("select", { value: other, disabled: !others.length, onChange: (/** @type {any} */ event) => place({ with: event.currentTarget.value, group: "" }) }, h("option", { value: "" }, others.length ? "choose" : "the folder has no other"), others.map((/** @type {Json} */ one) => h("option", { key: one.key, value: one.key }, visible(one.key))))),
      head.can?.recompute === false ? null : h("label", {}, "or two estimators on the group ", h("select", { class: "long", value: group, onChange: (/** @type {any} */ event) => place({ group: event.currentTarget.value, with: "" }) }, h("option", { value: "" }, "choose"), [...new Set([group, ...groups])].filter(Boolean).map((id) => h("option", { key: id, value: id }, visible(id)))))),
    other ? h(Runs, { run, other, split, theme, place }) : group ? h(Estimators, { run, head, group, a, b, place }) : h("div", { class: "card" }, h(Empty, { title: "Compare" }, h("p", {}, "Another run of the folder: which tasks each wins, what differs in the recipes, curves of both. Or two estimators: how each spreads the credit over the turns of a group."))));
}
