/** A turn of an episode as a card: what was asked, thought, called, answered, and what it was worth. */

import { h } from "preact";
import { useContext } from "preact/hooks";
import { get } from "app/data";
import { TurnCredit, TurnParts, Why } from "app/credit";
import { duration, EMPTY_REPLY, flat, isNumber, number, plural, turnIsEmpty, visible } from "app/format";
import { Dropped, EpisodeContext, Message, Picture, said, Stored, Tools } from "app/message";
import { Chip, Copy, Details, pending, Text, tone, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

/** @type {Record<string, string>} */
const OUTCOMES = { ok: "up", error: "warn", raised: "down", timeout: "down", unknown: "down", malformed: "down", skipped: "" };

/** The parts of a turn's time. */
export const SPENT = [
  { name: "queue", colour: "var(--warn-bar)" },
  { name: "decode", colour: "var(--c1)" },
  { name: "tools", colour: "var(--c5)" },
];

/** @param {{ call: Json, path: string }} props */
function Call({ call, path }) {
  const lines = Object.entries(call.arguments ?? {}).map(([name, value]) => `${name} = ${typeof value === "string" ? value : flat(value)}`);
  return h("div", { class: "call" },
    h("header", {}, h("b", {}, visible(call.name || "(no name)")), h("div", { class: "grow" }, lines.length ? h(Text, { text: lines.join("\n"), limit: 3000 }) : null),
      h("span", { class: `small ${OUTCOMES[call.outcome] ?? ""}` }, visible(call.outcome)), call.foreign ? h(Chip, { tone: "warn" }, visible(`format ${call.foreign}`)) : null, h("span", { class: "small soft" }, duration(call.duration_s))),
    h("div", { class: "result", tabIndex: 0, role: "group", "aria-label": visible(`result of ${call.name}`) }, h(Stored, { text: call.result, path: `${path}/result` }),
      (call.images ?? []).map((/** @type {Json} */ part, /** @type {number} */ k) => h(Picture, { key: k, part }))),
    call.raised ? h("div", { class: "foot down" }, h(Text, { text: call.raised })) : null,
    h(Dropped, { call }));
}

/** The prompt that this turn was sampled from; fetched when opened. @param {{ index: number }} props */
function Prompt({ index }) {
  const { run, id } = useContext(EpisodeContext);
  const state = useLoaded(() => get("prompt", { run, id, turn: index }), [run, id, index]);
  const prompt = state.value;
  if (!prompt) return pending(state);
  return h("div", { class: "stack" },
    h("div", {}, h("div", { class: "role" }, `gained since the previous turn: ${plural(prompt.gained.tokens, "token")}${prompt.gained.fresh ? "; the prompt began anew" : ""}`),
      prompt.gained.text === null ? h("p", { class: "none" }, "the tokenizer is not here: text cannot be shown") : h(Text, { text: prompt.gained.text })),
    prompt.text === null ? null : h(Details, { title: `the whole raw prompt, ${plural(prompt.tokens, "token")}`, children: () => h("div", {},
      prompt.size > prompt.text.length ? h("p", { class: "soft small" }, `the last ${number(prompt.text.length)} of ${number(prompt.size)} characters`) : null, h(Text, { text: prompt.text, limit: 20_000 })) }));
}

/** The rewards of parts of a reply, with their texts. A text that is cut here is shown as far as it goes.
 * @param {{ turn: Json }} props */
const Spans = ({ turn }) => h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["component", "reward", "text"].map((name) => h("th", { key: name, class: name === "reward" ? "num" : "" }, name)))),
  h("tbody", {}, turn.spans.map((/** @type {[string, number, number, number, number?]} */ [component, start, end, value, weight = 1], /** @type {number} */ k) => h("tr", { key: k },
    h("td", {}, visible(component)), h("td", { class: `num ${tone(value)}`, title: weight === 1 ? undefined : `times the weight ${number(weight)}` }, number(value)), h("td", { class: "mono" }, visible(turn.text.slice(start, end)))))));

/** @param {{ turn: Json, facts: Json, credit: Json | null, why: string | null | undefined, second: Json | null, chosen: boolean, tokensHref: string, groupHref: string }} props */
export function Turn({ turn, facts, credit, why, second, chosen, tokensHref, groupHref }) {
  const path = `/episode/turns/${turn.index}`;
  const shown = new Set((turn.calls ?? []).map((/** @type {Json} */ call) => said([...(call.result ? [{ type: "text", text: call.result }] : []), ...(call.images ?? [])])));
  const observations = (turn.observations ?? []).map((/** @type {Json} */ message, /** @type {number} */ k) => ({ message, k })).filter((/** @type {{ message: Json }} */ { message }) => !shown.has(said(message.content)));
  const words = facts.said ?? turn.text;
  const times = [["queue", facts.queue_s], isNumber(facts.decode_s) || !isNumber(facts.generate_s) ? ["decode", facts.decode_s] : ["generate", facts.generate_s], ["tools", facts.tools_s]];
  const versions = facts.versions ? [...new Set(facts.versions)].join("–") : null;
  return h("article", { class: `card turn ${chosen ? "on" : ""}`, id: `turn-${turn.index}`, "aria-label": `turn ${turn.index}` },
    h("header", {}, h("h2", {}, `Turn ${turn.index}`), turn.agent && turn.agent !== "agent" ? h(Chip, { tone: "accent" }, visible(turn.agent)) : null,
      h(TurnCredit, { credit, index: turn.index }), h(Why, { why, href: groupHref }), second ? h("span", { class: "row small soft" }, visible(second.estimator), h(TurnCredit, { credit: second, index: turn.index })) : null, h("span", { class: "grow" }),
      turn.finish && turn.finish !== "stop" ? h(Chip, { tone: "warn", title: "why sampling stopped" }, visible(turn.finish)) : null,
      turn.state != null ? h("span", { class: "chip cut", style: { maxWidth: "260px", display: "inline-block" }, title: `anchor state: ${visible(turn.state)}` }, visible(turn.state)) : null),
    h("div", { class: "body" },
      h(TurnParts, { credit, turn, facts }),
      facts.thinking ? h("div", { class: "thinking" }, h("div", { class: "role" }, "thinking"), h(Stored, { text: facts.thinking, path: `/turns/${turn.index}/thinking` })) : null,
      turn.spans?.length ? h(Details, { title: `rewards of ${plural(turn.spans.length, "part")} of the reply`, children: () => h(Spans, { turn }) }) : null,
      turnIsEmpty(turn) ? h("p", { class: "none" }, EMPTY_REPLY) : words.trim() ? h(Stored, { text: words, path: facts.said === undefined ? `${path}/text` : `/turns/${turn.index}/said` }) : null,
      (turn.calls ?? []).map((/** @type {Json} */ call, /** @type {number} */ k) => h(Call, { key: k, call, path: `${path}/calls/${k}` })),
      observations.map((/** @type {{ message: Json, k: number }} */ { message, k }) => h(Message, { key: k, message, path: `${path}/observations/${k}` })),
      h(Tools, { title: "tools from here on", tools: turn.tools }),
      h(Details, { title: `prompt of this turn: ${plural(facts.prompt_tokens, "token")}, ${number(facts.gained_tokens)} gained`, children: () => h(Prompt, { index: turn.index }) }),
      facts.said !== undefined && facts.said !== turn.text ? h(Details, { title: "text as sampled", children: () => h(Stored, { text: turn.text, path: `${path}/text` }) }) : null),
    h("footer", {},
      times.map(([name, seconds]) => h("span", { key: name }, `${name} `, isNumber(seconds) ? duration(seconds) : h("span", { class: "none" }, "not recorded"))),
      h("a", { href: tokensHref }, plural(facts.tokens, "token")), isNumber(facts.logprob) ? h("span", { title: "mean log-probability of the sampled tokens" }, `log-prob ${number(facts.logprob)}`) : null,
      versions ? h("span", {}, `version ${versions}`) : null, isNumber(facts.gold_logprob) ? h("span", {}, `gold log-prob ${number(facts.gold_logprob)}`) : null,
      h("span", { class: "grow" }), facts.fork ? h(Copy, { command: facts.fork, label: `fork from turn ${turn.index}` }) : null));
}

