/** Siblings side by side: where they part, and what each turn was worth. */

import { h } from "preact";
import { useRef, useState } from "preact/hooks";
import { get } from "app/data";
import { most } from "app/credit";
import { EMPTY_REPLY, flat, isNumber, number, plural, pretty, signed, turnIsEmpty, visible } from "app/format";
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

/** @param {{ value: unknown, scale: number }} props */
const Small = ({ value, scale }) => h("span", { class: "row small", style: { gap: "6px" } }, h(Axis, { value, most: scale, size: "narrow" }), h("span", { class: tone(value) }, signed(value)));

/** One turn of a member. @param {{ run: string, member: Json, turn: Json, scale: number, other: Json | null, otherScale: number }} props */
const Cell = ({ run, member, turn, scale, other, otherScale }) => h("div", {},
  h("div", { class: "row", style: { justifyContent: "space-between" } }, h("a", { href: link(["run", run, "episode", member.id], { turn: turn.index }), "aria-label": visible(`turn ${turn.index} of ${member.id}`) }, `turn ${turn.index}`),
    isNumber(turn.advantage) ? h(Small, { value: turn.advantage, scale }) : h("span", { class: "none small" }, "no credit")),
  other ? h("div", { class: "row small", style: { justifyContent: "space-between" } }, h("span", { class: "soft" }, visible(other.name)), h(Small, { value: other.credits[member.id]?.turn_advantages[turn.index], scale: otherScale })) : null,
  h("pre", {}, brief(actionOf(turn))),
  turn.calls?.[0]?.result ? h("pre", { class: "soft" }, `→ ${brief(turn.calls[0].result)}`) : null,
  turn.state != null ? h("div", { class: "soft small cut", title: visible(turn.state) }, visible(`at ${turn.state}`)) : null,
  isNumber(turn.reward) && turn.reward !== 0 ? h(Chip, { tone: tone(turn.reward) }, `reward ${number(turn.reward)}`) : null);

/** Asks for the credit of another estimator. @param {{ head: Json, chosen: string, onChange: (name: string) => void, label: string }} props */
export const EstimatorMenu = ({ head, chosen, onChange, label }) => h("label", { class: "row small soft" }, label, h("select", { value: chosen, onChange: (/** @type {any} */ event) => onChange(event.currentTarget.value) },
  h("option", { value: "" }, "as recorded"), (head.estimators ?? []).map((/** @type {Json} */ one) => h("option", { key: one.name, value: one.name, title: visible(one.does) }, visible(one.name)))));

/** @param {{ run: string, id: string, head: Json, live: import("app/live").Live, query: URLSearchParams }} props */
export function GroupScreen({ run, id, head, live, query }) {
  const state = useLoaded(() => get("group", { run, id }), [run, id, live.ticks.credit]);
  const by = query.get("by") === "state" ? "state" : "turn", estimator = query.get("estimator") ?? "";
  const other = useLoaded(async () => (estimator ? { name: estimator, ...(await get("credit", { run, group: id, estimator })) } : null), [run, id, estimator]);
  const [at, setAt] = useState(-1);
  const place = useRef(-1);
  const answer = state.value;
  const members = answer?.members ?? [];
  const rows = by === "state" ? answer?.by_state ?? [] : answer?.by_turn ?? [];
  const turnTo = (/** @type {Json} */ changes) => replace(link(["run", run, "group", id], { by: by === "state" ? by : "", estimator, ...changes }));
  const step = (/** @type {number} */ move) => {
    const next = Math.max(0, Math.min(rows.length - 1, place.current + move));
    place.current = next;
    setAt(next);
    document.getElementById(`row-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys({ j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), Enter: () => { if (members[0]) go(link(["run", run, "episode", members[0].id])); } });
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
    by === "state" && !rows.length ? h("div", { class: "card" }, h(Empty, { title: "Anchor states: not recorded" }, h("p", {}, "An environment names its state with state_key()."))) :
      h("div", { class: "card scroll-x", tabIndex: 0, role: "group", "aria-label": "siblings", style: { maxHeight: "calc(100vh - 120px)" } }, h("table", { class: "group-table" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, by === "state" ? "state" : "row"), members.map((/** @type {Json} */ member, /** @type {number} */ k) => h("th", { key: member.id, scope: "col" },
          h("div", { class: "row", style: { justifyContent: "space-between" } }, h("a", { href: link(["run", run, "episode", member.id]) }, h(Status, { status: member.status }), " ", visible(member.id.slice(member.id.lastIndexOf("#") + 1).length < member.id.length && member.id.includes("#") ? member.id.slice(member.id.lastIndexOf("#")) : member.id)),
            h("span", {}, isNumber(member.reward) ? h("span", { class: member.reward === best && best > worst ? "up" : member.reward === worst && best > worst ? "down" : "" }, number(member.reward)) : h("span", { class: "none" }, "not scored"))),
          h("div", { class: "soft small", style: { fontWeight: 400 } }, visible(`${plural(member.turns.length, "turn")}${member.stop ? `, ${member.stop}` : ""}${member.error ? `, ${member.error}` : ""}${isNumber(answer.differs?.[k]) ? `, differs from turn ${answer.differs[k]}` : ""}`)),
          h("div", { class: "row small", style: { fontWeight: 400 } }, h("span", { class: "soft" }, "advantage"), isNumber(member.advantage) ? h(Small, { value: member.advantage, scale: most(members.map((/** @type {Json} */ one) => one.advantage)) }) : h("span", { class: "none" }, "not recorded")),
          member.answer != null ? h("div", { class: "small cut", style: { fontWeight: 400 } }, visible(member.answer)) : null)))),
        h("tbody", {}, rows.map((/** @type {any} */ row, /** @type {number} */ k) => {
          const diverges = by === "turn" && k === answer.diverges;
          const cells = by === "state" ? row.turns.map((/** @type {number[]} */ list, /** @type {number} */ m) => (list.length ? list.map((index) => h("div", { key: index }, cell(members[m], index))) : h("span", { class: "soft" }, "–"))) : row.map((/** @type {number | null} */ index, /** @type {number} */ m) => cell(members[m], index));
          return h("tr", { key: k, id: `row-${k}`, class: k === at ? "on" : "" }, h("th", { scope: "row", class: k === at ? "on" : "" }, by === "state" ? h("span", { class: "mono small" }, brief(row.state)) : k, diverges ? h("div", { class: "warn small" }, "parts here") : null),
            cells.map((/** @type {any} */ content, /** @type {number} */ m) => h("td", { key: m, class: diverges ? "diverges" : by === "turn" && same(row) ? "same" : "" }, content)));
        })))));
}
