/** Every token of an episode, coloured by what was recorded about it. */

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get } from "app/data";
import { isNumber, number, plural, signed, visible } from "app/format";
import { useKeys } from "app/keys";
import { go, link, replace } from "app/place";
import { Chip, Failed, Missing, pending, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const MOST = 20_000;

/** A mixture of two colours of the page, weak enough for its ink. @param {string} name @param {number} share */
const shade = (name, share) => `color-mix(in srgb, var(${name}) ${Math.round(8 + 42 * Math.max(0, Math.min(1, share)))}%, transparent)`;
/** @param {number} value @param {number} size */
const both = (value, size) => shade(value < 0 ? "--down-bar" : "--up-bar", Math.abs(value) / (size || 1));

/**
 * Colourings: `of` gives the number of a token, `paint` its colour by the largest size on screen.
 * @type {{ name: string, label: string, needs: string, of: (node: Json, at: number) => number | null | undefined, paint: (value: number, size: number) => string, low: string, high: string }[]}
 */
const COLOURS = [
  { name: "mask", label: "mask", needs: "mask", of: (node) => (node.kind === "sampled" ? 1 : 0), paint: (value) => (value ? shade("--up-bar", 0.6) : "transparent"), low: "context", high: "trained on" },
  { name: "logprob", label: "log-probability", needs: "logprob", of: (node, at) => node.logprobs?.[at], paint: (value) => shade("--down-bar", 1 - Math.exp(value / 1.4)), low: "certain", high: "improbable" },
  { name: "ratio", label: "ratio trainer / engine", needs: "ratio", of: (node, at) => node.trainer?.ratio?.[at], paint: (value, size) => both(Math.log(Math.max(value, 1e-6)), size), low: "below 1", high: "above 1" },
  { name: "entropy", label: "entropy", needs: "entropy", of: (node, at) => node.trainer?.entropy?.[at], paint: (value, size) => shade("--violet", value / (size || 1)), low: "0", high: "most" },
  { name: "advantage", label: "advantage", needs: "advantage", of: (node, at) => node.trainer?.advantage?.[at] ?? (node.kind === "sampled" ? node.advantage : null), paint: both, low: "loss", high: "gain" },
  { name: "clip", label: "clipped", needs: "clip", of: (node, at) => (node.trainer?.clip?.[at] == null ? null : Number(node.trainer.clip[at])), paint: (value) => (value ? shade("--warn-bar", 1) : "transparent"), low: "kept", high: "clipped" },
  { name: "version", label: "policy version", needs: "version", of: (node, at) => versionOf(node, at), paint: (value) => shade(`--c${(value % 8) + 1}`, 0.6), low: "", high: "a colour each" },
];

/** @param {Json} node @param {number} at @returns {number | null} */
function versionOf(node, at) {
  const place = at + (node.offset ?? 0), span = (node.versions ?? []).find((/** @type {number[]} */ [, start, end]) => place >= start && place < end);
  return span ? span[0] : null;
}

/** What is known of a token, in words. @param {Json} node @param {number} at */
function facts(node, at) {
  const t = node.trainer, p = node.logprobs?.[at], version = versionOf(node, at);
  return [`id ${node.token_ids[at] === -1 ? "image" : node.token_ids[at]}`, node.text ? `text ${JSON.stringify(node.text[at])}` : null, isNumber(p) ? `log-prob ${p.toFixed(3)} (${(100 * Math.exp(p)).toFixed(1)} %)` : null,
    isNumber(t?.logprob?.[at]) ? `trainer ${t.logprob[at].toFixed(3)}` : null, isNumber(t?.ratio?.[at]) ? `ratio ${t.ratio[at].toFixed(3)}` : null, isNumber(t?.entropy?.[at]) ? `entropy ${t.entropy[at].toFixed(3)}` : null,
    isNumber(t?.advantage?.[at]) ? `advantage ${signed(t.advantage[at])}` : isNumber(node.advantage) ? `advantage of the turn ${signed(node.advantage)}` : null, version === null ? null : `version ${version}`, node.kind === "sampled" ? "trained on" : "context"].filter(Boolean);
}

/** @param {{ node: Json, colouring: typeof COLOURS[number], size: number, onToken: (node: Json, at: number) => void }} props */
function Tokens({ node, colouring, size, onToken }) {
  const over = (/** @type {any} */ event) => { const at = event.target.dataset?.at; if (at !== undefined) onToken(node, Number(at)); };
  return h("div", { class: `tokens ${node.text ? "" : "ids"}`, onMouseOver: over, onClick: over }, node.token_ids.map((/** @type {number} */ id, /** @type {number} */ at) => {
    const value = colouring.of(node, at), painted = isNumber(value);
    return h("span", { key: at, "data-at": at, class: painted ? "" : "context", title: `id ${id}`, style: painted ? { background: colouring.paint(value, size) } : undefined }, node.text ? visible(node.text[at]) || "·" : String(id));
  }));
}

/** @param {{ run: string, id: string, wanted: number | null, query: URLSearchParams }} props */
export function TokensScreen({ run, id, wanted, query }) {
  const state = useLoaded(() => get("tokens", { run, id, start: 0, limit: MOST }), [run, id]);
  const [more, setMore] = useState(/** @type {Json[]} */ ([]));
  const [next, setNext] = useState(/** @type {number | null} */ (null));
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [token, setToken] = useState(/** @type {{ node: Json, at: number } | null} */ (null));
  const answer = state.value;
  useEffect(() => { setMore([]); setNext(answer?.next ?? null); if (answer && wanted !== null) setTimeout(() => document.getElementById(`tokens-${wanted}`)?.scrollIntoView({ block: "start" })); }, [answer]);
  const has = answer?.has ?? [];
  const name = query.get("by") ?? (has.includes("logprob") ? "logprob" : "mask");
  const colouring = COLOURS.find((one) => one.name === name) ?? COLOURS[0];
  const by = (/** @type {string} */ other) => replace(link(["run", run, "tokens", id], { by: other }));
  useKeys({ t: () => go(link(["run", run, "episode", id])), c: () => { const known = COLOURS.filter((one) => has.includes(one.needs)); by(known[(known.indexOf(colouring) + 1) % known.length].name); } });
  if (!answer) return h("div", {}, pending(state));
  const nodes = [...answer.nodes, ...more];
  const values = nodes.flatMap((node) => node.token_ids.map((/** @type {number} */ _, /** @type {number} */ at) => colouring.of(node, at))).filter(isNumber);
  const size = colouring.name === "ratio" ? values.reduce((top, value) => Math.max(top, Math.abs(Math.log(Math.max(value, 1e-6)))), 0) : values.reduce((top, value) => Math.max(top, Math.abs(value)), 0);
  const load = () => get("tokens", { run, id, start: next, limit: MOST }).then((part) => { setMore([...more, ...part.nodes]); setNext(part.next); }, setError);
  const shown = new Set();
  return h("div", {},
    h("div", { class: "title" }, h("h2", {}, visible(id)), h("a", { href: link(["run", run, "episode", id]) }, "Transcript")),
    h("div", { class: "card pad stack" }, h("div", { class: "row", role: "group", "aria-label": "colour by" }, h("span", { class: "soft small" }, "colour by"), COLOURS.map((one) => h("button", { key: one.name, "aria-pressed": one === colouring, disabled: !has.includes(one.needs), title: has.includes(one.needs) ? undefined : "not recorded", onClick: () => by(one.name) }, one.label, has.includes(one.needs) ? "" : h("span", { class: "small" }, " – not recorded")))),
      h("div", { class: "row small soft" }, h("span", {}, plural(answer.total, "token")), colouring.name === "version" ? h("span", {}, colouring.high) : h("span", { class: "scale" }, colouring.low, h("i", { style: { background: `linear-gradient(90deg, ${scaleOf(colouring, size)})` } }), colouring.high), has.includes("ratio") ? null : h("span", {}, "not recorded: ratio, entropy and clipping of the trainer. ", h("code", {}, "train.record_tokens: N"), " in the recipe records them, for N groups of every iteration."), answer.decoded ? null : h(Chip, { tone: "warn" }, "the tokenizer is not here: ids are shown"))),
    nodes.map((node, k) => {
      const drift = node.turn != null && !shown.has(node.turn) ? (answer.drift ?? []).find((/** @type {Json} */ one) => one.turn === node.turn) : null;
      if (node.turn != null) shown.add(node.turn);
      const means = (node.logprobs ?? []).filter(isNumber), mean = means.length ? means.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / means.length : null;
      return [drift ? h("div", { class: "mark-line warn", key: `d${k}` }, visible(`drift: ${drift.kind} at token ${number(drift.at_token)}; a new branch begins`)) : null,
        h("article", { key: `${node.index} ${node.offset ?? 0}`, class: "card turn", id: node.turn != null && node.kind !== "observation" ? `tokens-${node.turn}` : undefined }, h("header", {}, h("h2", {}, node.turn != null && ["sampled", "spoken"].includes(node.kind) ? `Turn ${node.turn}` : node.kind),
          node.kind === "sampled" ? h(Chip, { tone: "up" }, "trained on") : node.kind === "spoken" ? h(Chip, {}, "spoken, not trained on") : node.kind === "begun" ? h(Chip, {}, "the agent began the reply with it, not trained on") : null, isNumber(node.advantage) ? h(Chip, { tone: node.advantage < 0 ? "down" : "up" }, `advantage ${signed(node.advantage)}`) : null, h("span", { class: "grow" }),
          mean === null ? null : h("span", { class: "small soft" }, `mean log-prob ${number(mean)}`), h("span", { class: "small soft" }, `node ${node.index}${node.parent < 0 ? ", a root" : ` after ${node.parent}`}, ${plural(node.token_ids.length, "token")}`)),
        h(Tokens, { node, colouring, size, onToken: (one, at) => setToken({ node: one, at }) }))];
    }),
    next !== null ? h("button", { onClick: load }, "load more tokens") : null, error ? h(Failed, { error }) : null,
    h("div", { class: "tokeninfo", role: "status" }, token ? facts(token.node, token.at).map((fact) => h("span", { key: fact }, visible(fact))) : h("span", { class: "soft" }, "point at a token; ", h("kbd", {}, "c"), " next colour, ", h("kbd", {}, "t"), " transcript"), has.length ? null : h(Missing, {})));
}

/** @param {typeof COLOURS[number]} colouring @param {number} size */
function scaleOf(colouring, size) {
  /** @type {Record<string, number[]>} */
  const ends = { mask: [0, 0, 1], logprob: [0, -1, -6], ratio: [Math.exp(-size), 1, Math.exp(size)], entropy: [0, size / 2, size], advantage: [-size, 0, size], clip: [0, 0, 1] };
  return (ends[colouring.name] ?? [0, 0, 1]).map((value) => colouring.paint(value, size)).join(", ");
}
