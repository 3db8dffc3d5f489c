/** Siblings side by side: where they part, and what each turn was worth. */

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "app/data";
import { most } from "app/credit";
import { EMPTY_REPLY, flat, isNumber, nameAndNumber, number, plural, pretty, signed, turnIsEmpty, visible } from "app/format";
import { useKeys } from "app/keys";
import { said } from "app/message";
import { go, link, replace } from "app/place";
import { Axis, Chip, Details, Empty, Failed, pending, Status, Text, tone, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const CHARACTERS = 170;

/** @param {unknown} text */
const brief = (text) => { const whole = visible(text).trim(); return whole.length > CHARACTERS ? `${whole.slice(0, CHARACTERS)} …` : whole; };

/** What a turn did, in a line. @param {Json} turn */
export const actionOf = (turn) => (turn.calls?.length ? turn.calls.map((/** @type {Json} */ call) => `${call.name}(${inner(call.arguments)})`).join("; ") : turnIsEmpty(turn) ? EMPTY_REPLY : turn.text || turn.action);

/** Arguments without their braces. @param {unknown} text */
const inner = (text) => { const whole = flat(text ?? ""); return whole.startsWith("{") && whole.endsWith("}") ? whole.slice(1, -1) : whole; };

/** An advantage above its bar. @param {{ value: unknown, scale: number, name?: string }} props */
const Small = ({ value, scale, name = "" }) => h("div", { class: "small" }, h("div", { class: "between" }, h("span", { class: "soft cut" }, visible(name)), h("span", { class: tone(value) }, signed(value))), h(Axis, { value, most: scale, size: "thin" }));

/** One turn of a member. @param {{ run: string, member: Json, turn: Json, scale: number, other: Json | null, otherScale: number }} props */
const Cell = ({ run, member, turn, scale, other, otherScale }) => h("div", {},
  h("div", { class: "between small" }, h("a", { href: link(["run", run, "episode", member.id], { turn: turn.index }), "aria-label": visible(`turn ${turn.index} of ${member.id}`) }, `turn ${turn.index}`),
    isNumber(turn.advantage) ? h("span", { class: tone(turn.advantage) }, signed(turn.advantage)) : h("span", { class: "none" }, "no credit")),
  isNumber(turn.advantage) ? h(Axis, { value: turn.advantage, most: scale, size: "thin" }) : null,
  other ? h(Small, { value: other.credits[member.id]?.turn_advantages[turn.index], scale: otherScale, name: other.name }) : null,
  h("pre", {}, brief(actionOf(turn))),
  turn.calls?.[0]?.result ? h("pre", { class: "soft" }, `→ ${brief(turn.calls[0].result)}`) : null,
  turn.state != null ? h("div", { class: "soft small cut", title: visible(turn.state) }, visible(`at ${turn.state}`)) : null,
  isNumber(turn.reward) && turn.reward !== 0 ? h(Chip, { tone: tone(turn.reward) }, `reward ${number(turn.reward)}`) : null);

/** The number of an episode within its group, or its whole name. @param {string} id */
const numberOf = (id) => nameAndNumber(id)[1] || id;

/** @param {unknown[]} values */
const mean = (values) => { const known = values.filter(isNumber); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

/** A column of the table of siblings. @typedef {{ name: string, cell: (member: Json, k: number) => any, number?: boolean, wide?: boolean }} Column */

/** The siblings as rows: what each earned, and its credit.
 * @param {{ run: string, answer: Json, chosen: string, other: Json | null }} props */
function Siblings({ run, answer, chosen, other }) {
  const { members, differs } = answer;
  const place = useRef(/** @type {HTMLTableRowElement | null} */ (null));
  useEffect(() => { place.current?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const rewards = members.map((/** @type {Json} */ member) => member.reward).filter(isNumber), best = Math.max(...rewards), worst = Math.min(...rewards);
  const rank = (/** @type {number} */ reward) => (best === worst ? "" : reward === best ? "up" : reward === worst ? "down" : "");
  const theirs = (/** @type {Json} */ member) => mean(other?.credits[member.id]?.turn_advantages ?? []);
  const scale = most(members.map((/** @type {Json} */ one) => one.advantage)), otherScale = most(members.map(theirs));
  const advantage = (/** @type {unknown} */ value, /** @type {number} */ largest) => (isNumber(value) ? h("span", { class: "credit" }, h(Axis, { value, most: largest, size: "narrow" }), h("span", { class: `fixed ${tone(value)}` }, signed(value))) : h("span", { class: "none" }, "not recorded"));
  /** @type {Column[]} */
  const columns = [
    { name: "sibling", cell: (member) => h("a", { class: "nowrap", href: link(["run", run, "episode", member.id]), title: visible(member.id) }, h(Status, { status: member.status }), " ", visible(numberOf(member.id))) },
    { name: "reward", number: true, cell: (member) => (isNumber(member.reward) ? h("b", { class: rank(member.reward) }, number(member.reward)) : h("span", { class: "none" }, "not scored")) },
    { name: "advantage (mean)", cell: (member) => advantage(member.advantage, scale) },
    ...(other ? [{ name: visible(other.name), cell: (/** @type {Json} */ member) => advantage(theirs(member), otherScale) }] : []),
    { name: "turns", number: true, cell: (member) => number(member.turns.length) },
    { name: "tokens", number: true, cell: (member) => number(member.sampled_tokens) },
    { name: "ended by", cell: (member) => visible(member.error ?? member.stop ?? "–") },
    { name: "differs from #0 at", cell: (_, k) => (isNumber(differs?.[k]) ? `turn ${differs[k]}` : h("span", { class: "soft" }, k ? "acts alike" : "–")) },
    { name: "answer", wide: true, cell: (member) => (member.answer == null ? h("span", { class: "soft" }, "–") : member.answer === "" ? h("span", { class: "none" }, EMPTY_REPLY) : visible(member.answer)) },
  ];
  return h("div", { class: "card scroll-x", tabIndex: 0, role: "group", "aria-label": "siblings", style: { marginBottom: "12px" } }, h("table", { class: "table siblings" },
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { key: column.name, scope: "col", class: column.number ? "num" : "" }, column.name)))),
    h("tbody", {}, members.map((/** @type {Json} */ member, /** @type {number} */ k) => h("tr", { key: member.id, ref: member.id === chosen ? place : undefined, class: member.id === chosen ? "on" : "", "aria-current": member.id === chosen ? "true" : undefined },
      columns.map((column) => h("td", { key: column.name, class: column.number ? "num" : column.wide ? "wide" : "" }, column.cell(member, k))))))));
}

/** Asks for the credit of another estimator. @param {{ head: Json, chosen: string, onChange: (name: string) => void, label: string }} props */
export const EstimatorMenu = ({ head, chosen, onChange, label }) => h("label", { class: "row small soft" }, label, h("select", { value: chosen, onChange: (/** @type {any} */ event) => onChange(event.currentTarget.value) },
  h("option", { value: "" }, "as recorded"), (head.estimators ?? []).map((/** @type {Json} */ one) => h("option", { key: one.name, value: one.name, title: visible(one.does) }, visible(one.name)))));

/** @param {{ run: string, id: string, head: Json, live: import("app/live").Live, query: URLSearchParams }} props */
export function GroupScreen({ run, id, head, live, query }) {
  const state = useLoaded(() => get("group", { run, id }), [run, id, live.ticks.credit]);
  const by = query.get("by") === "state" ? "state" : "turn", estimator = query.get("estimator") ?? "", chosen = query.get("at") ?? "";
  const other = useLoaded(async () => (estimator ? { name: estimator, ...(await get("credit", { run, group: id, estimator })) } : null), [run, id, estimator]);
  const [at, setAt] = useState(-1);
  const place = useRef(-1);
  const answer = state.value;
  const members = answer?.members ?? [];
  const rows = by === "state" ? answer?.by_state ?? [] : answer?.by_turn ?? [];
  const turnTo = (/** @type {Json} */ changes) => replace(link(["run", run, "group", id], { by: by === "state" ? by : "", estimator, at: chosen, ...changes }));
  const step = (/** @type {number} */ move) => {
    const next = Math.max(0, Math.min(rows.length - 1, place.current + move));
    place.current = next;
    setAt(next);
    document.getElementById(`row-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({ j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), Enter: () => { const member = members.find((/** @type {Json} */ one) => one.id === chosen) ?? members[0]; if (member) go(link(["run", run, "episode", member.id])); } });
  if (!answer || answer.group_id !== id) return h("div", {}, pending(state));
  if (!members.length) return h(Empty, { title: "This group has no episode" });
  const scale = most(members.flatMap((/** @type {Json} */ member) => member.turns.map((/** @type {Json} */ turn) => turn.advantage)));
  const second = other.value ?? null, otherScale = second ? most(Object.values(second.credits).flatMap((/** @type {any} */ one) => one.turn_advantages)) : 1;
  const rewards = members.map((/** @type {Json} */ member) => member.reward).filter(isNumber), best = Math.max(...rewards), worst = Math.min(...rewards);
  const cell = (/** @type {Json} */ member, /** @type {number | null} */ index) => (index === null || !member.turns[index] ? h("span", { class: "soft" }, "–") : h(Cell, { run, member, turn: member.turns[index], scale, other: second, otherScale }));
  const same = (/** @type {(number | null)[]} */ row) => new Set(row.map((index, k) => (index === null ? null : members[k].turns[index]?.action))).size === 1;
  return h("div", {},
    h("div", { class: "title" }, h("h2", {}, visible(id)), h("div", { class: "row", role: "group", "aria-label": "align" }, h("button", { "aria-pressed": by === "turn", onClick: () => turnTo({ by: "" }) }, "by turn"), h("button", { "aria-pressed": by === "state", onClick: () => turnTo({ by: "state" }) }, "by state")),
      head.can?.recompute !== false ? h(EstimatorMenu, { head, chosen: estimator, onChange: (name) => turnTo({ estimator: name }), label: "beside it" }) : null),
    h("div", { class: "card pad stack", style: { marginBottom: "12px" } }, h("div", { class: "row" }, h(Chip, {}, visible(`task ${answer.task.id}`)), h(Chip, {}, plural(members.length, "sibling")), answer.more ? h(Chip, { tone: "warn" }, `${number(answer.more)} more are not shown`) : null,
      isNumber(answer.diverges) ? h(Chip, { tone: "warn" }, `first difference at row ${answer.diverges}`) : h(Chip, {}, "all act alike"), rewards.length ? h(Chip, { tone: best === worst ? "warn" : "" }, best === worst ? (scale > 1e-9 ? "all rewards are equal: the credit is that of steps" : "all rewards are equal: no signal") : `reward ${number(worst)} to ${number(best)}`) : h(Chip, { tone: "warn" }, "not scored"),
      answer.opening_differs ? h(Chip, { tone: "down" }, "siblings began with different prompts") : null),
      h(Text, { text: (answer.task.instruction ?? []).map((/** @type {Json} */ message) => said(message.content)).join("\n"), limit: 600 }), h(Details, { title: "task data", children: () => h(Text, { text: pretty(answer.task.data ?? {}) }) })),
    other.error && estimator ? h(Failed, { error: other.error }) : null,
    h(Siblings, { run, answer, chosen, other: second }),
    by === "state" && !rows.length ? h("div", { class: "card" }, h(Empty, { title: "Anchor states: not recorded" }, h("p", {}, "An environment names its state with state_key()."))) :
      h("div", { class: "card scroll-x", tabIndex: 0, role: "group", "aria-label": "turns side by side", style: { maxHeight: "calc(100vh - 80px)" } }, h("table", { class: `group-table ${by === "state" ? "states" : ""}` },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, by === "state" ? "state" : "row"), members.map((/** @type {Json} */ member) => h("th", { key: member.id, scope: "col", class: member.id === chosen ? "on" : "" },
          h("div", { class: "between" }, h("a", { href: link(["run", run, "episode", member.id]), title: visible(member.id) }, h(Status, { status: member.status }), " ", visible(numberOf(member.id))),
            h("span", { class: "plain" }, isNumber(member.reward) ? ["reward ", h("b", { key: "r" }, number(member.reward))] : h("span", { class: "none" }, "not scored"))))))),
        h("tbody", {}, rows.map((/** @type {any} */ row, /** @type {number} */ k) => {
          const diverges = by === "turn" && k === answer.diverges;
          const cells = by === "state" ? row.turns.map((/** @type {number[]} */ list, /** @type {number} */ m) => (list.length ? list.map((index) => h("div", { key: index }, cell(members[m], index))) : h("span", { class: "soft" }, "–"))) : row.map((/** @type {number | null} */ index, /** @type {number} */ m) => cell(members[m], index));
          return h("tr", { key: k, id: `row-${k}`, class: k === at ? "on" : "" }, h("th", { scope: "row", class: k === at ? "on" : "" }, by === "state" ? h("span", { class: "mono small" }, brief(row.state)) : k, diverges ? h("div", { class: "warn small" }, "parts here") : null),
            cells.map((/** @type {any} */ content, /** @type {number} */ m) => h("td", { key: m, class: diverges ? "diverges" : by === "turn" && same(row) ? "same" : "" }, content)));
        })))));
}
