/** One episode: outline, head with rewards and time, and a card for each turn. */

import { h } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "app/data";
import { RewardTree, Why, most } from "app/credit";
import { duration, EMPTY_REPLY, isNumber, moment, nameAndNumber, number, plural, pretty, signed, turnIsEmpty, visible } from "app/format";
import { useKeys } from "app/keys";
import { EpisodeContext, Message, Tools } from "app/message";
import { go, link, replace } from "app/place";
import { EstimatorMenu } from "app/screens/group";
import { SPENT, Turn } from "app/turn";
import { Axis, Chip, Copy, Details, Facts, Failed, Missing, pending, Status, Text, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

/** The marks of clicks on pictures: a call acts on the picture that its context was shown last.
 * @param {Json} episode @returns {Map<Json, { turn: number, points: [number, number][] }[]>} */
function clicks(episode) {
  const marks = new Map(), last = new Map();
  const see = (/** @type {string} */ context, /** @type {any} */ content) => {
    if (Array.isArray(content)) for (const part of content) if (part.blob) last.set(context, part);
  };
  const act = (/** @type {string} */ context, /** @type {number} */ turn, /** @type {any} */ points) => {
    const part = last.get(context);
    if (part && points?.length) marks.set(part, [...(marks.get(part) ?? []), { turn, points }]);
  };
  for (const message of episode.prompt ?? []) see("main", message.content);
  for (const [name, context] of Object.entries(episode.contexts ?? {})) for (const message of context.prompt ?? []) see(name, message.content);
  for (const turn of episode.turns ?? []) {
    const context = turn.context || "main";
    act(context, turn.index, turn.points);
    for (const call of turn.calls ?? []) {
      act(context, turn.index, call.points);
      see(context, call.images);
    }
    const own = new Set((turn.calls ?? []).flatMap((/** @type {Json} */ call) => (call.images ?? []).map((/** @type {Json} */ part) => part.blob)));
    for (const message of turn.observations ?? []) if (Array.isArray(message.content)) see(context, message.content.filter((/** @type {Json} */ part) => !own.has(part.blob)));
  }
  return marks;
}

/** Time of the whole episode: stages that are not turns, and what the turns spent.
 * @param {Json} answer @returns {{ name: string, seconds: number, colour: string }[]} */
function spent(answer) {
  const sum = (/** @type {string} */ name) => {
    const values = answer.turns.map((/** @type {Json} */ turn) => turn[name]).filter(isNumber);
    return values.length ? values.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) : null;
  };
  const t = answer.timing ?? {}, decode = sum("decode_s");
  const rows = [["sandbox", t.sandbox, "--c6"], ["open", t.open, "--c7"], ["queue", sum("queue_s"), "--warn-bar"], [decode === null ? "generate" : "decode", decode ?? sum("generate_s"), "--c1"],
    ["tools", sum("tools_s"), "--c5"], ["verify", t.score, "--c3"], ["information gain", t.information_gain, "--c8"], ["close", t.close, "--c4"]];
  return rows.filter(([, seconds]) => isNumber(seconds)).map(([name, seconds, colour]) => ({ name: String(name), seconds: Number(seconds), colour: `var(${colour})` }));
}

/** @param {{ answer: Json }} props */
function Time({ answer }) {
  const rows = spent(answer), total = rows.reduce((sum, row) => sum + row.seconds, 0);
  if (!rows.length) return h(Missing, {});
  return h("div", { class: "grow" }, h("div", { class: "phases", "aria-hidden": "true" }, rows.filter((row) => row.seconds > 0).map((row) => h("i", { key: row.name, style: { flex: row.seconds / (total || 1), background: row.colour } }))),
    h("div", { class: "row small soft" }, rows.map((row) => h("span", { key: row.name }, h("i", { class: "swatch", style: { background: row.colour } }), `${row.name} ${duration(row.seconds)}`)),
      answer.turns.some((/** @type {Json} */ turn) => isNumber(turn.queue_s)) ? null : h("span", {}, "queue ", h(Missing, {}))));
}

/** When each conversation spoke, and what its turns spent: a lane each. @param {{ answer: Json, onTurn: (index: number) => void }} props */
function Lanes({ answer, onTurn }) {
  let clock = 0;
  const bars = answer.turns.map((/** @type {Json} */ turn) => {
    const parts = isNumber(turn.decode_s) ? [turn.queue_s ?? 0, turn.decode_s, turn.tools_s ?? 0] : [0, turn.generate_s ?? 0, turn.tools_s ?? 0];
    const began = clock;
    clock += parts.reduce((sum, value) => sum + value, 0);
    return { index: turn.index, began, parts };
  });
  const lanes = answer.lanes?.length ? answer.lanes : [{ name: "main", turns: answer.turns.map((/** @type {Json} */ turn) => turn.index) }];
  const split = answer.turns.some((/** @type {Json} */ turn) => isNumber(turn.queue_s));
  if (clock <= 0) return null;
  return h("div", { class: "card lanes" },
    lanes.map((/** @type {Json} */ lane) => h("div", { class: "lane", key: lane.name },
      h("span", { class: "cut", title: visible(`${lane.role ?? ""} ${lane.policy ?? ""}${lane.version == null ? "" : ` after ${lane.version} updates`}`) }, visible(lane.policy && lane.policy !== "policy" ? `${lane.name} · ${lane.policy}` : lane.name)),
      h("svg", { viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", "aria-label": visible(`${lane.name}: turns ${lane.turns.join(", ")}`) }, lane.turns.map((/** @type {number} */ index) => {
        const bar = bars[index];
        if (!bar) return null;
        let at = bar.began;
        return h("g", { key: index, onClick: () => onTurn(index), style: { cursor: "pointer" } }, h("title", {}, `turn ${index}`), bar.parts.map((/** @type {number} */ seconds, /** @type {number} */ k) => {
          const x = (at / clock) * 1000, width = Math.max(0, (seconds / clock) * 1000 - (k === 2 ? 1 : 0));
          at += seconds;
          return h("rect", { key: k, x, y: 1, width, height: 12, style: { fill: SPENT[k].colour } });
        }));
      })))),
    h("div", { class: "row small soft" }, SPENT.filter(({ name }) => name !== "queue" || split).map(({ name, colour }) => h("span", { key: name }, h("i", { class: "swatch", style: { background: colour } }), name === "decode" && !split ? "generate" : name)), h("span", {}, `turns in order, ${duration(clock)}`),
      (answer.forks ?? []).map((/** @type {Json} */ fork) => h(Chip, { key: fork.id, tone: "violet" }, visible(`forked at turn ${fork.turn}: ${fork.id}`)))));
}

/** @param {{ children?: any, warn?: boolean }} props */
const MarkLine = ({ children, warn = false }) => h("div", { class: `mark-line ${warn ? "warn" : ""}` }, children);

/** What stands before a turn: a change of the conversation, a branch, a drift. @param {{ episode: Json, k: number }} props */
function Before({ episode, k }) {
  const turn = episode.turns[k], context = turn.context || "main", before = k ? episode.turns[k - 1].context || "main" : "main";
  const opened = episode.contexts?.[turn.context], firstOf = episode.turns.find((/** @type {Json} */ other) => other.context === turn.context) === turn;
  const branch = (episode.branches ?? []).find((/** @type {Json} */ one) => one.turn === turn.index), drift = (episode.drift ?? []).find((/** @type {Json} */ one) => one.turn === turn.index);
  const prompt = (opened ?? episode).prompt ?? [], messages = branch?.messages ?? [];
  const differs = messages.findIndex((/** @type {Json} */ message, /** @type {number} */ at) => at >= prompt.length || JSON.stringify(message) !== JSON.stringify(prompt[at]));
  const same = differs < 0 ? messages.length : differs;
  return h("div", {},
    context !== before || (k === 0 && context !== "main") ? h(MarkLine, {}, visible(`context ${context}${opened && opened.policy !== "policy" ? `, ${opened.policy}${opened.version == null ? "" : ` after ${opened.version} updates`}` : ""}`)) : null,
    opened && firstOf ? [h(Tools, { key: "tools", title: "tools", tools: opened.tools }), (opened.prompt ?? []).map((/** @type {Json} */ message, /** @type {number} */ at) => h(Message, { key: at, message, path: `/episode/contexts/${turn.context.replaceAll("~", "~0").replaceAll("/", "~1")}/prompt/${at}` }))] : null,
    branch ? h("div", {}, h(MarkLine, {}, visible(`branch: ${branch.reason} at token ${number(branch.at_token)}`)), same ? h("p", { class: "soft small" }, `${same} messages as at the beginning`) : null,
      messages.slice(same).map((/** @type {Json} */ message, /** @type {number} */ at) => h(Message, { key: at, message, path: `/episode/branches/${episode.branches.indexOf(branch)}/messages/${same + at}` }))) : null,
    drift ? h(MarkLine, { warn: true }, visible(`drift: ${drift.kind} at token ${number(drift.at_token)}; a new branch begins`)) : null);
}

const SIBLINGS = 32;

/** The episodes of the same task and their rewards, this one among them. @param {{ run: string, id: string, siblings: Json[], groupHref: string }} props */
const Siblings = ({ run, id, siblings, groupHref }) => h("div", { class: "row small" }, siblings.slice(0, SIBLINGS).map((sibling) => h("a", { key: sibling.id, class: `chip ${sibling.id === id ? "accent" : ""}`, "aria-current": sibling.id === id ? "true" : undefined, title: visible(sibling.id), href: link(["run", run, "episode", sibling.id]) },
  h(Status, { status: sibling.status }), visible(nameAndNumber(sibling.id)[1] || sibling.id), h("b", {}, number(sibling.reward)))), siblings.length > SIBLINGS ? h("a", { href: groupHref }, `${number(siblings.length - SIBLINGS)} more`) : null);

/** @param {{ run: string, id: string, wanted: number | null, live: import("app/live").Live, head: Json, estimator: string }} props */
export function EpisodeScreen({ run, id, wanted, live, head, estimator }) {
  const state = useLoaded(() => get("episode", { run, id }), [run, id, live.ticks.credit]);
  const answer = state.value && state.value.episode.id === id ? state.value : null;
  const asked = useLoaded(async () => (estimator ? { estimator, ...(await get("credit", { run, id, estimator })).credits[id] } : null), [run, id, estimator]);
  const second = asked.value?.estimator === estimator ? asked.value : null;
  const [at, setAt] = useState(-1);
  const place = useRef(-1);
  const episode = answer?.episode;
  const shared = useMemo(() => ({ run, id, cuts: new Map((answer?.cut ?? []).map((/** @type {Json} */ cut) => [cut.path, cut.size])), marks: episode ? clicks(episode) : new Map() }), [answer]);
  const show = (/** @type {number} */ index) => {
    if (!answer || index < 0 || index >= answer.turns.length) return;
    setAt(index);
    place.current = index;
    document.getElementById(`turn-${index}`)?.scrollIntoView({ block: "start" });
    history.replaceState(null, "", link(["run", run, "episode", id], { turn: index, estimator }));
  };
  useEffect(() => { setAt(-1); place.current = -1; if (answer && wanted !== null) setTimeout(() => show(wanted)); else scrollTo(0, 0); }, [id, answer !== null]);
  const move = (/** @type {string | null | undefined} */ other) => { if (other) go(link(["run", run, "episode", other], { estimator })); };
  useKeys({ j: () => show(place.current + 1), ArrowDown: () => show(place.current + 1), k: () => show(Math.max(0, place.current - 1)), ArrowUp: () => show(Math.max(0, place.current - 1)),
    n: () => move(answer?.next), p: () => move(answer?.previous), t: () => go(link(["run", run, "tokens", id], { turn: at >= 0 ? at : "" })),
    g: () => { if (episode) go(link(["run", run, "group", episode.group_id], { at: id })); } });
  if (!answer || !episode) return h("div", {}, pending(state));
  const credit = answer.credit, scale = most(credit?.turn_advantages ?? []);
  const siblings = [...answer.siblings ?? []].sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true })), why = answer.no_credit ?? { episode: null, turns: {} };
  const groupHref = link(["run", run, "group", episode.group_id], { at: id });
  return h(EpisodeContext.Provider, { value: shared }, h("div", { class: "episode" },
    h("nav", { class: "card outline", "aria-label": "turns" }, h("div", { class: "role", style: { padding: "2px 6px" } }, plural(answer.turns.length, "turn")),
      episode.turns.map((/** @type {Json} */ turn) => h("a", { key: turn.index, href: link(["run", run, "episode", id], { turn: turn.index }), class: turn.index === at ? "on" : "", "aria-current": turn.index === at ? "true" : undefined,
        onClick: (/** @type {Event} */ event) => { event.preventDefault(); show(turn.index); } },
        h("span", { class: "soft" }, turn.index), h("span", {}, visible(turn.calls?.length ? turn.calls.map((/** @type {Json} */ call) => call.name || call.outcome).join(", ") : turnIsEmpty(turn) ? EMPTY_REPLY : "says")),
        credit ? h("span", { title: visible(`advantage ${signed(credit.turn_advantages[turn.index])}${why.turns[turn.index] ? `: ${why.turns[turn.index]}` : ""}`) }, h(Axis, { value: credit.turn_advantages[turn.index], most: scale, size: "tiny" })) : h("span", {})))),
    h("div", { style: { minWidth: 0 } },
      h("div", { class: "title" }, h("h2", {}, visible(id)),
        h("button", { onClick: () => move(answer.previous), disabled: !answer.previous, title: "previous episode (p)", "aria-label": "previous episode" }, "←"), h("button", { onClick: () => move(answer.next), disabled: !answer.next, title: "next episode (n)", "aria-label": "next episode" }, "→"),
        head.can?.recompute === false ? null : h(EstimatorMenu, { head, chosen: estimator, onChange: (name) => replace(link(["run", run, "episode", id], { turn: at >= 0 ? at : "", estimator: name })), label: "beside it" }),
        h("a", { href: groupHref }, `Group of ${Math.max(siblings.length, 1)}`), h("a", { href: link(["run", run, "tokens", id]) }, "Tokens")),
      asked.error && estimator ? h(Failed, { error: asked.error }) : null,
      h("div", { class: "card pad stack" },
        h("div", { class: "row" }, h("span", { class: "chip" }, h(Status, { status: episode.status }), visible([episode.status, episode.stop].filter(Boolean).join(", "))),
          h(Chip, { tone: isNumber(answer.reward) ? "accent" : "" }, isNumber(answer.reward) ? `reward ${number(answer.reward)}` : "reward: not scored"), isNumber(answer.success) ? h(Chip, { tone: answer.success >= 1 ? "up" : "down" }, answer.success >= 1 ? "success" : "no success") : null,
          h(Chip, {}, visible(`${episode.split}, iteration ${episode.iteration}`)), episode.attempt ? h(Chip, { tone: "warn" }, `attempt ${episode.attempt}`) : null,
          (episode.drift ?? []).length ? h(Chip, { tone: "warn" }, `${episode.drift.length} drift`) : null, credit ? h(Chip, { tone: "violet", title: visible(credit.note || "estimator of the credit") }, visible(credit.estimator)) : null),
        h(Facts, { facts: [["task", visible(episode.task.id)], ...(siblings.length > 1 ? [/** @type {[string, any]} */ (["siblings", h(Siblings, { run, id, siblings, groupHref })])] : []), ["answer", episode.answer == null ? h("span", { class: "none" }, "none") : h(Text, { text: episode.answer, limit: 1200 })], ["began", moment(episode.created_at)], ["tokens", number(answer.sampled_tokens)],
          ...(why.episode ? [/** @type {[string, any]} */ (["credit", h("span", { class: "row" }, credit ? h("b", {}, "0") : h("span", { class: "none" }, "none"), h(Why, { why: why.episode, href: groupHref }))])] : []),
          ["time", h(Time, { answer })], ...(answer.parent ? [/** @type {[string, any]} */ (["resumes", visible(`${answer.parent.episode}, turn ${answer.parent.turn}${answer.parent.run ? `, run ${answer.parent.run}` : ""}`)])] : []),
          ["commands", h("div", { class: "row" }, answer.probe ? h(Copy, { command: answer.probe }) : null, answer.show ? h(Copy, { command: answer.show }) : null)]] }),
        h(RewardTree, { score: episode, total: answer.reward, title: "reward" }),
        Object.entries(answer.rescored ?? {}).map(([name, score]) => h(RewardTree, { key: name, score, total: score.total ?? score.reward, title: visible(`re-scored as ${name}`) })),
        h(Details, { title: "task data, info and sandbox", children: () => h(Text, { text: pretty({ data: episode.task.data ?? {}, sandbox: episode.task.sandbox, info: episode.info, seconds: episode.timings }) }) })),
      h(Lanes, { answer, onTurn: show }),
      h(Tools, { title: "tools", tools: episode.tools }),
      (episode.prompt ?? []).map((/** @type {Json} */ message, /** @type {number} */ k) => h(Message, { key: k, message, path: `/episode/prompt/${k}` })),
      episode.turns.map((/** @type {Json} */ turn, /** @type {number} */ k) => [h(Before, { key: `b${k}`, episode, k }), h(Turn, { key: k, turn, facts: answer.turns[k] ?? {}, credit, why: why.turns[turn.index], second, chosen: k === at, groupHref, tokensHref: link(["run", run, "tokens", id], { turn: k }) })]),
      episode.error ? h("div", { class: "card pad" }, h("h2", { class: "down" }, visible(`${episode.error.kind} in ${episode.error.stage}`)), h(Text, { text: [episode.error.message, episode.error.traceback].filter(Boolean).join("\n\n") })) : null,
      state.error ? h(Failed, { error: state.error }) : null)));
}
