/** The grid of episodes: filters, sort and place live in the URL; only the rows in view are fetched and drawn. */

import { h } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "app/data";
import { duration, EMPTY_REPLY, isNumber, moment, nameAndNumber, number, shortMoment, signed, visible } from "app/format";
import { Grid } from "app/grid";
import { useKeys } from "app/keys";
import { go, link, replace } from "app/place";
import { Empty, Failed, Indexing, Status, tone, useLoaded } from "app/ui";

/** @typedef {Record<string, any>} Json */

const PAGE = 100;
const TYPING_MS = 180;

/** Filters that choose a value, with the facet that lists the values. */
const CHOICES = [["split", "split"], ["status", "status"], ["stop", "stop"], ["error", "failure"], ["stage", "stage"], ["tool", "tool"], ["component", "component"]];
/** Filters that are a range. */
const RANGES = [["reward", "reward"], ["turns", "turns"], ["iteration", "iteration"], ["version", "version"], ["duration", "seconds"]];
const TEXTS = [["task", "task"], ["id", "episode"], ["group", "group"]];
const NAMES = ["q", ...CHOICES.map(([name]) => name), ...[...RANGES, ["component", ""]].flatMap(([name]) => [`${name}_min`, `${name}_max`]), ...TEXTS.map(([name]) => name)];

/** Facets by the name of the filter. @param {Json | undefined} facets @param {string} name @returns {[string, string][]} */
function values(facets, name) {
  const found = facets?.[{ tool: "tools", component: "components" }[name] ?? name] ?? {};
  return Object.entries(found).map(([value, count]) => [value, `${value} (${number(isNumber(count) ? count : /** @type {any} */ (count)?.count)})`]);
}

/** Columns of which the first click sorts the smallest first. */
const RISING = ["id", "task_id", "group_id", "split", "status", "stop", "advantage_min"];

/** Widths by the name of a column, else by its kind. @type {Record<string, string>} */
const WIDTHS = { id: "minmax(190px, 2fr)", task_id: "minmax(70px, 1fr)", group_id: "minmax(110px, 1fr)", answer: "minmax(80px, 1.4fr)", notes: "minmax(120px, 1.4fr)", status: "26px", split: "50px", stop: "72px", iteration: "44px", reward: "72px", advantage: "58px", advantage_max: "50px", advantage_min: "54px", turns: "50px", calls: "48px", first_raised: "minmax(120px, 1fr)", error: "110px" };
/** @type {Record<string, string>} */
const KINDS = { text: "minmax(80px, 1fr)", number: "64px", count: "56px", time: "106px", duration: "60px" };
/** @type {Record<string, string>} */
const LABELS = { status: "●", iteration: "iter.", sampled_tokens: "tokens", duration_s: "time", id: "episode", task_id: "task", advantage_max: "best", advantage_min: "worst" };

/** @type {Record<string, string>} */
const TITLES = { advantage: "sort by the mean advantage of the turns", advantage_max: "sort by the largest advantage of a turn", advantage_min: "sort by the smallest advantage of a turn" };

/** @param {Json} row @param {string} name */
const field = (row, name) => (name.startsWith("components.") ? row.components?.[name.slice("components.".length)] : row[name]);

/** @param {Json} column @param {[number, number] | null | undefined} range @returns {import("app/grid").Column} */
function drawn(column, range) {
  const { name, kind } = column, numeric = kind !== "text" && kind !== "time" && kind !== "name";
  /** @type {Record<string, (value: any) => any>} */
  const kinds = { duration, time: (value) => h("span", { title: moment(value) }, shortMoment(value)), number, count: number, name: (value) => h(Name, { id: value }),
    signed: (value) => (isNumber(value) ? h("span", { class: tone(value) }, signed(value)) : h("span", { class: "soft" }, "–")), text: (value) => (value === "" ? h("span", { class: "none" }, EMPTY_REPLY) : value == null ? h("span", { class: "soft" }, "–") : visible(String(value).replaceAll("\n", " · "))) };
  const draw = kinds[kind] ?? kinds.text;
  const cell = name === "status" ? (/** @type {Json} */ row) => h(Status, { status: row.status })
    : name === "reward" && range && range[1] > range[0] ? (/** @type {Json} */ row) => h(Bar, { value: row.reward, range })
      : (/** @type {Json} */ row) => draw(field(row, name));
  return { name, label: LABELS[name] ?? visible(column.title), title: TITLES[name] ?? `sort by ${visible(column.title)}`, width: WIDTHS[name] ?? KINDS[kind] ?? KINDS.text, number: numeric, sort: name, cell };
}

/** A name of which the number among siblings is never cut. @param {{ id: string }} props */
function Name({ id }) {
  const [group, own] = nameAndNumber(visible(id));
  return h("span", { class: "name", title: visible(id) }, h("span", { class: "cut" }, group), own);
}

/** A number with a bar behind it, from the least of the run to the most. @param {{ value: any, range: [number, number] }} props */
const Bar = ({ value, range: [low, high] }) => (isNumber(value) ? h("span", { class: "minibar" }, h("i", { class: value < 0 ? "neg" : "", style: { width: `${(100 * (value - low)) / (high - low)}%` } }), h("span", {}, number(value))) : h("span", { class: "soft" }, "–"));

/** Rows of a question, fetched page by page. A new answer replaces the old one when it is there: nothing flickers.
 * @param {Json} question @param {number} tick */
function useRows(question, tick) {
  const key = JSON.stringify(question);
  const [, drawAgain] = useState(0);
  const kept = useRef({ key: "", total: 0, pages: /** @type {Map<number, Json[]>} */ (new Map()), asked: /** @type {Map<number, number>} */ (new Map()), index: /** @type {any} */ (null), error: /** @type {unknown} */ (null), fresh: false });
  const range = useRef([0, 40]);
  const load = useCallback((/** @type {number} */ page) => {
    const mine = kept.current;
    if (mine.asked.get(page) === tick && mine.key === key) return;
    mine.asked.set(page, tick);
    get("episodes", { ...question, offset: page * PAGE, limit: PAGE }).then((answer) => {
      if (kept.current.key !== key && kept.current.asked !== mine.asked) return;
      Object.assign(kept.current, { total: answer.total, index: answer.index, error: null, fresh: true });
      kept.current.pages.set(page, answer.rows);
      drawAgain((n) => n + 1);
    }, (error) => { if (kept.current.asked === mine.asked) { kept.current.error = error; drawAgain((n) => n + 1); } });
  }, [key, tick]);
  useEffect(() => {
    if (kept.current.key !== key) {
      kept.current = { ...kept.current, key, pages: new Map(), asked: new Map(), error: null, fresh: false };
      range.current = [0, 40];
      load(0);
      return;
    }
    const [first, last] = [Math.floor(range.current[0] / PAGE), Math.floor(Math.max(0, range.current[1] - 1) / PAGE)];
    for (const page of kept.current.pages.keys()) if (page < first || page > last) kept.current.pages.delete(page); // what is not in view is asked again when it is
    kept.current.asked = new Map([...kept.current.asked].filter(([page]) => kept.current.pages.has(page)));
    for (let page = first; page <= last; page += 1) load(page);
  }, [key, tick]);
  const need = useCallback((/** @type {number} */ from, /** @type {number} */ to) => {
    range.current = [from, to];
    if (kept.current.key !== key) return;
    for (let page = Math.floor(from / PAGE); page <= Math.floor(Math.max(0, to - 1) / PAGE); page += 1) if (!kept.current.pages.has(page)) load(page);
  }, [load]);
  return { ...kept.current, current: kept.current.key === key, need, at: (/** @type {number} */ index) => kept.current.pages.get(Math.floor(index / PAGE))?.[index % PAGE] };
}

/** The height that is left for the grid. @param {import("preact").RefObject<HTMLElement>} place @param {unknown[]} when */
function useHeight(place, when) {
  const [height, setHeight] = useState(480);
  useEffect(() => {
    const measure = () => {
      const top = place.current?.getBoundingClientRect().top ?? 160;
      setHeight(Math.max(240, innerHeight - Math.max(0, top + scrollY) - 48));
    };
    measure();
    const watch = new ResizeObserver(measure); // what is above the grid may grow later
    if (place.current?.parentElement) watch.observe(place.current.parentElement);
    addEventListener("resize", measure);
    return () => { watch.disconnect(); removeEventListener("resize", measure); };
  }, when);
  return height;
}

const HITS = 8;

/** Where the words were found, with the text around them. @param {{ run: string, words: string, tick: number }} props */
function Hits({ run, words, tick }) {
  const answer = useLoaded(() => get("search", { run, q: words, limit: HITS }), [run, words, tick]).value;
  if (!answer?.hits.length) return null;
  return h("details", { class: "hits" }, h("summary", {}, `where it is found: ${number(answer.total)} places`), answer.hits.map((/** @type {Json} */ hit, /** @type {number} */ k) =>
    h("div", { key: k, class: "row small", style: { flexWrap: "nowrap" } }, h("a", { class: "nowrap", href: link(["run", run, "episode", hit.id], { turn: hit.turn }) }, visible(hit.id), hit.turn == null ? "" : `, turn ${hit.turn}`), h("span", { class: "soft nowrap" }, visible(hit.where)),
      h("span", { class: "mono cut" }, hit.snippet.map((/** @type {[string, boolean]} */ [text, found], /** @type {number} */ n) => (found ? h("mark", { key: n }, visible(text)) : visible(text).replaceAll("\n", " ")))))));
}

/** @param {{ run: string, head: Json, live: import("app/live").Live, query: URLSearchParams }} props */
export function EpisodesScreen({ run, head, live, query }) {
  const filters = Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
  const sort = query.get("sort") ?? "created_at", down = query.get("asc") === null && (query.get("desc") !== null || query.get("sort") === null);
  const facets = useLoaded(() => get("facets", { run }), [run, live.ticks.episodes, live.ticks.index]).value;
  const question = useMemo(() => ({ run, ...filters, sort, desc: down ? 1 : "" }), [run, query.toString()]);
  const rows = useRows(question, (live.ticks.episodes ?? 0) + (live.ticks.index ?? 0));
  const [more, setMore] = useState([...RANGES.flatMap(([name]) => [`${name}_min`, `${name}_max`]), ...TEXTS.map(([name]) => name)].some((name) => filters[name]));
  const [at, setAt] = useState(-1);
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(0);
  const active = NAMES.filter((name) => filters[name]);
  const height = useHeight(place, [more, active.length > 0, facets !== undefined, head.damage?.length]);
  const change = (/** @type {Json} */ changes) => {
    setAt(-1);
    replace(link(["run", run, "episodes"], { ...filters, sort: query.get("sort"), desc: query.get("desc"), asc: query.get("asc"), ...changes }));
  };
  const typed = (/** @type {string} */ name) => (/** @type {any} */ event) => {
    const { value } = event.currentTarget;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ [name]: value }), TYPING_MS);
  };
  useEffect(() => { if (query.get("find")) { search.current?.focus(); replace(link(["run", run, "episodes"], { ...filters, sort: query.get("sort") })); } }, [query.get("find")]);
  const step = (/** @type {number} */ by) => setAt((old) => Math.max(0, Math.min(rows.total - 1, old + by)));
  const open = () => { const row = rows.at(at); if (row) go(link(["run", run, "episode", row.id])); };
  useKeys({ j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), PageDown: () => step(20), PageUp: () => step(-20), Home: () => setAt(0), End: () => setAt(rows.total - 1), Enter: open, "/": () => search.current?.focus(),
    g: () => { const row = rows.at(at); if (row) go(link(["run", run, "group", row.group_id])); } });
  /** @type {import("app/grid").Column[]} */
  const columns = useMemo(() => (head.columns ?? []).map((/** @type {Json} */ column) => drawn(column, facets?.reward)), [JSON.stringify(head.columns), JSON.stringify(facets?.reward)]);
  const sorted = (/** @type {string} */ name) => (name === sort ? change({ desc: down ? "" : 1, asc: down ? 1 : "", sort }) : change({ sort: name, desc: RISING.includes(name) ? "" : 1, asc: "" }));
  const searchable = head.can?.search !== false;
  const index = rows.index ?? live.index;
  return h("div", { class: "card grid" },
    h("div", { class: "filters", role: "search" },
      h(Field, { field: search, type: "search", placeholder: searchable ? "search all text: words, \"a phrase\", start*   ( / )" : "search", "aria-label": "search all text", value: filters.q, onInput: typed("q") }),
      CHOICES.map(([name, label]) => [name, label, values(facets, name)]).filter(([name, , list]) => list.length > (name === "tool" || name === "component" || name === "error" ? 0 : 1) || filters[String(name)]).map(([name, label, list]) =>
        h("select", { key: name, "aria-label": label, value: filters[String(name)], onChange: (/** @type {any} */ event) => change({ [String(name)]: event.currentTarget.value }) }, h("option", { value: "" }, `any ${label}`), name === "error" ? h("option", { value: "any" }, "all that failed") : null,
          /** @type {[string, string][]} */ (list).map(([value, text]) => h("option", { key: value, value }, visible(text))), filters[String(name)] && filters[String(name)] !== "any" && !/** @type {[string, string][]} */ (list).some(([value]) => value === filters[String(name)]) ? h("option", { value: filters[String(name)] }, visible(filters[String(name)])) : null)),
      filters.component ? h(Range, { name: "component", label: "its value", filters, change: typed }) : null,
      h("button", { "aria-pressed": more, "aria-expanded": more, onClick: () => setMore(!more) }, "more filters"),
      active.length ? h("button", { onClick: () => change(Object.fromEntries(NAMES.map((name) => [name, ""]))) }, `clear ${active.length}`) : null),
    more ? h("div", { class: "filters" }, RANGES.map(([name, label]) => h(Range, { key: name, name, label, filters, change: typed, bounds: facets?.[name === "duration" ? "duration_s" : name === "version" ? "versions" : name] })),
      TEXTS.map(([name, label]) => h("label", { key: name }, label, h(Field, { value: filters[name], onInput: typed(name), style: { width: "130px" } })))) : null,
    filters.q && searchable ? h(Hits, { run, words: filters.q, tick: live.ticks.index ?? 0 }) : null,
    rows.error && rows.current ? h("div", { style: { padding: "8px 12px 0" } }, h(Failed, { error: rows.error })) : null,
    h("div", { ref: place, class: "scroll-x" }, rows.fresh && rows.current && rows.total === 0 ? h(Empty, { title: active.length ? "No episode fits these filters" : "No episode yet" }, active.length ? null : h("p", {}, "Episodes appear here when the first one ends."))
      : h(Grid, { columns, total: rows.total, at: rows.at, need: rows.need, chosen: at, onChoose: setAt, href: (/** @type {Json} */ row) => link(["run", run, "episode", row.id]), sort, down, onSort: sorted, label: "episodes", height })),
    h("div", { class: "foot", role: "status" }, h("span", {}, `${number(rows.total)} of ${number(head.summary.episodes)} episodes`), h(Indexing, { index, what: "tools, reward components, versions and text are of" }),
      index?.state === "failed" ? h("span", { class: "down" }, visible(`text index: ${index.problem}`)) : null, h("span", { class: "grow" }), h("span", {}, h("kbd", {}, "j"), " ", h("kbd", {}, "k"), " row  ", h("kbd", {}, "Enter"), " open  ", h("kbd", {}, "g"), " group")));
}

/** A field that follows the URL, except while it is typed into. @param {Json} props */
function Field({ field, value, ...attributes }) {
  const own = useRef(/** @type {HTMLInputElement | null} */ (null));
  const input = field ?? own;
  useLayoutEffect(() => { if (input.current && document.activeElement !== input.current) input.current.value = value; }, [value]);
  return h("input", { ...attributes, ref: input });
}

/** @param {{ name: string, label: string, filters: Record<string, string>, change: (name: string) => (event: any) => void, bounds?: [number, number] | null }} props */
const Range = ({ name, label, filters, change, bounds }) => h("label", {}, label,
  ["min", "max"].map((end, k) => h(Field, { key: end, type: "number", step: "any", "aria-label": `${label} ${k ? "at most" : "at least"}`, placeholder: bounds ? number(bounds[k]) : k ? "≤" : "≥", value: filters[`${name}_${end}`], onInput: change(`${name}_${end}`) })));
