/** Credit of a turn, and the rewards of an episode. */

import { h } from "preact";
import { flat, isNumber, number, signed, visible } from "app/format";
import { Axis, Chip, Credit, Text, tone } from "app/ui";

/** @typedef {Record<string, any>} Json */

/** The largest size among numbers, for bars of one scale. @param {unknown[]} values */
export const most = (values) => Math.max(1e-9, ...values.filter(isNumber).map(Math.abs));

/** The advantage of a turn. @param {{ credit: Json | null, index: number }} props */
export function TurnCredit({ credit, index }) {
  const value = credit?.turn_advantages?.[index];
  if (value === undefined || value === null) return h("span", { class: "none small" }, "no credit recorded");
  return h(Credit, { value, most: most(credit?.turn_advantages) });
}

/** Why a credit is 0 or missing, with the way to the siblings that it was compared with.
 * @param {{ why: string | null | undefined, href: string }} props */
export const Why = ({ why, href }) => (why ? h("a", { class: "why small", href, title: "the episode among its siblings" }, visible(why)) : null);

/** The summands of a turn's advantage, its information gain and its rewards, on one scale.
 * @param {{ credit: Json | null, turn: Json, facts: Json }} props */
export function TurnParts({ credit, turn, facts }) {
  const parts = Object.entries(credit?.parts ?? {}).map(([name, values]) => [name, values[turn.index]]).filter(([, value]) => value != null);
  const scale = most([...Object.values(credit?.parts ?? {}).flat(), ...(credit?.turn_advantages ?? [])]);
  const rewards = Object.entries(turn.rewards ?? {});
  if (!parts.length && !rewards.length && !isNumber(facts.gain)) return null;
  return h("div", { class: "row small" },
    parts.map(([name, value]) => h("span", { key: name, class: "credit", title: `part of the advantage: ${name}` }, h("span", { class: "soft" }, visible(name)), h(Axis, { value, most: scale, size: "narrow" }), h("span", { class: tone(value) }, signed(value)))),
    isNumber(facts.gain) ? h(Chip, { tone: "violet", title: "information gain: rise of the gold answer's log-probability" }, `information gain ${signed(facts.gain)}`) : null,
    rewards.map(([name, value]) => h(Chip, { key: name, tone: tone(value), title: "reward of this turn, before weights and gates" }, visible(`${name} ${value == null ? "not scored" : number(value)}`))),
    isNumber(turn.reward) && rewards.length ? h(Chip, { title: "what the rewards of this turn count, after weights and gates" }, `counts ${number(turn.reward)}`) : null);
}

/** @param {Json} gate */
const gateLine = (gate) => `${gate.on} ${gate.strict ? ">" : "≥"} ${number(gate.threshold)}`;

/** The rewards of an episode as a tree: total, gates, components, with the judge's words.
 * @param {{ score: Json, total: unknown, title: string }} props */
export function RewardTree({ score, total, title }) {
  const components = Object.entries(score.components ?? {}), gates = score.gates ?? [], notes = score.notes ?? {};
  const shut = new Set(gates.filter((/** @type {Json} */ gate) => !gate.open).flatMap((/** @type {Json} */ gate) => gate.shuts));
  const named = new Set(components.map(([name]) => name));
  const node = (/** @type {string} */ key, /** @type {any} */ name, /** @type {any} */ value, /** @type {any} */ note) =>
    h("div", { class: "node", key }, h("span", {}, name), h("span", { class: "num" }, value), h("div", { class: "note" }, note));
  return h("div", { class: "tree" },
    node("total", h("b", {}, title), isNumber(total) ? number(total) : h("span", { class: "none" }, "not scored"), score.pending?.length ? `waits for ${score.pending.join(", ")}` : ""),
    gates.map((/** @type {Json} */ gate) => node(`gate ${gate.on}`, h("span", {}, "gate ", visible(gateLine(gate))),
      h("span", { class: gate.open ? "up" : gate.open == null ? "soft" : "down" }, gate.open ? "open" : gate.open == null ? "unknown" : "shut"),
      visible(`value ${gate.value == null ? "never scored" : number(gate.value)}${!gate.open && gate.shuts?.length ? `; not counted: ${gate.shuts.join(", ")}` : ""}`))),
    components.map(([name, value]) => node(`c ${name}`, visible(name), h("span", { class: tone(value) }, value == null ? "–" : number(value)),
      [value == null ? "not scored. " : "", shut.has(name) ? "not counted: a gate is shut. " : "", notes[name] ? h(Text, { text: flat(notes[name]), limit: 1500 }) : null])),
    Object.entries(notes).filter(([name]) => !named.has(name)).map(([name, note]) => node(`n ${name}`, visible(name), "", h(Text, { text: flat(note), limit: 1500 }))));
}
