/** What failed, and what takes longest. */

import { h } from "preact";
import { get } from "app/data";
import { duration, isNumber, moment, number, plural, pretty, visible } from "app/format";
import { link } from "app/place";
import { Chip, Details, Empty, Indexing, Missing, pending, Status, Text, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const LINKS = 12;

/** @param {{ run: string, kind: Json }} props */
const Class = ({ run, kind }) => h("article", { class: "card pad stack", style: { gap: "6px" } },
  h("div", { class: "row" }, h("h2", { class: "down" }, visible(kind.kind)), h(Chip, { tone: "down" }, `${number(kind.count)} ×`), kind.stage ? h(Chip, {}, visible(`in ${kind.stage}`)) : null, h("span", { class: "grow" }),
    h("span", { class: "small soft" }, isNumber(kind.first_at) ? `${moment(kind.first_at)} to ${moment(kind.last_at)}` : "time not recorded")),
  h(Text, { text: kind.message, limit: 1500 }), kind.place ? h("p", { class: "mono small soft" }, visible(kind.place)) : null,
  kind.episodes?.length ? h("div", { class: "row small" }, kind.episodes.slice(0, LINKS).map((/** @type {string} */ id) => h("a", { key: id, href: link(["run", run, "episode", id]) }, visible(id))), h("a", { href: link(["run", run, "episodes"], { error: kind.kind }) }, "all in the list")) : null);

/** @param {{ run: string, title: string, rows: Json[], shown: (row: Json) => string }} props */
const Extremes = ({ run, title, rows, shown }) => (rows?.length ? h("section", { class: "card pad" }, h("h2", { class: "minor" }, title), h("table", { class: "table" }, h("tbody", {}, rows.slice(0, 10).map((row) => h("tr", { key: row.id },
  h("td", {}, h(Status, { status: row.status }), " ", h("a", { href: link(["run", run, "episode", row.id]) }, visible(row.id))), h("td", { class: "num nowrap" }, shown(row)), h("td", { class: "num soft nowrap" }, row.reward == null ? "not scored" : `reward ${number(row.reward)}`)))))) : null);

/** @param {{ run: string, live: import("app/live").Live }} props */
export function FailuresScreen({ run, live }) {
  const state = useLoaded(() => get("failures", { run }), [run, live.ticks.failures, live.ticks.episodes]);
  const answer = state.value;
  if (!answer) return h("div", {}, pending(state));
  const beat = live.live ?? answer.live, calls = Object.entries(answer.calls ?? {}).filter(([, n]) => n);
  const hung = (beat?.flights ?? []).slice(0, 10);
  return h("div", { class: "stack" },
    h(Indexing, { index: live.index, what: "records that cannot be read are found in" }),
    answer.zero ? h("div", { class: "card pad row" }, h("a", { href: link(["run", run, "episodes"], { reward_min: 0, reward_max: 0 }) }, `reward 0: ${plural(answer.zero, "episode")}`), Object.entries(answer.notes ?? {}).map(([name, n]) => h(Chip, { key: name, tone: "warn" }, visible(`${number(n)} × ${name}`)))) : null,
    answer.classes.length ? answer.classes.map((/** @type {Json} */ kind) => h(Class, { key: `${kind.kind} ${kind.place}`, run, kind })) : h("div", { class: "card" }, h(Empty, { title: "No episode failed" })),
    h("div", { class: "two" },
      h(Extremes, { run, title: "Slowest episodes", rows: answer.slowest, shown: (row) => duration(row.duration_s) }), h(Extremes, { run, title: "Longest episodes", rows: answer.longest, shown: (row) => plural(row.turns, "turn") }),
      h("div", { class: "stack" },
      h("section", { class: "card pad" }, h("h2", { class: "minor" }, "Longest in flight"), beat ? (hung.length ? h("table", { class: "table" }, h("tbody", {}, hung.map((/** @type {Json} */ one) => h("tr", { key: one.id }, h("td", {}, visible(one.id)), h("td", {}, visible(one.stage)), h("td", { class: "num nowrap" }, duration(Math.max(0, (beat.at ?? one.since) - one.since))))))) : h("p", { class: "soft" }, "None is in flight.")) : h("p", {}, h(Missing, {}), h("span", { class: "soft" }, ": no heartbeat."))),
      h("section", { class: "card pad" }, h("h2", { class: "minor" }, "Calls that failed"), calls.length ? h("div", { class: "row" }, calls.map(([name, n]) => h(Chip, { key: name, tone: "warn" }, `${name} ${number(n)}`))) : h("p", { class: "soft" }, "None."),
        answer.raised?.length ? h("div", { style: { marginTop: "8px" } }, answer.raised.map((/** @type {string} */ line) => h(Text, { key: line, text: line }))) : null))),
    answer.attempts?.length ? h(Details, { title: `${plural(answer.attempts_total, "attempt")} ${answer.attempts_total === 1 ? "that was" : "that were"} retried, and other failures${answer.attempts_total > answer.attempts.length ? `; the last ${answer.attempts.length}` : ""}`, children: () => answer.attempts.map((/** @type {Json} */ attempt, /** @type {number} */ k) => h("div", { class: "card pad", key: k, style: { marginBottom: "8px" } },
      h("div", { class: "row" }, h("b", { class: "down" }, visible(attempt.kind ?? "failure")), attempt.episode ? h("span", {}, visible(attempt.episode)) : null, h("span", { class: "soft small" }, moment(attempt.at))), h(Text, { text: attempt.message ?? pretty(attempt), limit: 1200 }))) }) : null);
}
