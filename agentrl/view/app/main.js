/** The frame: which screen is shown, the bar on top, keys that hold everywhere. */

import { h, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, isExport } from "app/data";
import { number, visible } from "app/format";
import { APP, RUN, useKeys } from "app/keys";
import { useLive } from "app/live";
import { go, here, link } from "app/place";
import { Failed, pending, useLoaded } from "app/ui";
import { CompareScreen } from "app/screens/compare";
import { EpisodeScreen } from "app/screens/episode";
import { EpisodesScreen } from "app/screens/episodes";
import { FailuresScreen } from "app/screens/failures";
import { GroupScreen } from "app/screens/group";
import { RunScreen } from "app/screens/run";
import { RunsScreen } from "app/screens/runs";
import { TokensScreen } from "app/screens/tokens";

/** @typedef {Record<string, any>} Json */

/** Screens that a tab leads to, with the screens that belong to it. */
const TABS = [
  { screen: "overview", label: "Run", holds: ["overview"] },
  { screen: "episodes", label: "Episodes", holds: ["episodes", "episode", "group", "tokens"] },
  { screen: "failures", label: "Failures", holds: ["failures"] },
  { screen: "compare", label: "Compare", holds: ["compare"] },
];

const KEYS = [["?", "this help"], ["1 … 4", "run, episodes, failures, compare"], ["/", "search the episodes"], ["j  k  or arrows", "next, previous row or turn"], ["Enter", "open the row"],
  ["n  p", "next, previous episode"], ["t", "tokens or transcript"], ["g", "group of the episode"], ["u", "back to the list"], ["d", "dark or light"], ["Esc", "leave a field"]];

const THEME = "agentrl-theme";

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** The theme that was chosen, else the system's. @returns {string} */
function wantedTheme() {
  let chosen = null;
  try { chosen = localStorage.getItem(THEME); } catch { /* a page from disk may have no storage */ }
  return chosen ?? (DARK.matches ? "dark" : "light");
}

/** @returns {[string, () => void]} */
function useTheme() {
  const [theme, setTheme] = useState(wantedTheme);
  document.documentElement.dataset.theme = theme;
  useEffect(() => {
    const follow = () => setTheme(wantedTheme());
    DARK.addEventListener("change", follow);
    return () => DARK.removeEventListener("change", follow);
  }, []);
  return [theme, () => {
    const next = theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(THEME, next); } catch { /* as above */ }
    setTheme(next);
  }];
}

function usePlace() {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const moved = () => setPlace(here());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}

/** @param {{ open: boolean, onClose: () => void }} props */
function Help({ open, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => { if (open && !dialog.current?.open) dialog.current?.showModal(); else if (!open) dialog.current?.close(); }, [open]);
  return h("dialog", { ref: dialog, onClose, "aria-labelledby": "help-title" }, h("h2", { id: "help-title" }, "Keys"),
    h("div", { class: "keys" }, KEYS.map(([keys, what]) => [h("span", { key: keys }, h("kbd", {}, keys)), h("span", {}, what)])), h("button", { onClick: onClose }, "Close"));
}

/** @param {{ live: import("app/live").Live }} props */
function State({ live }) {
  if (isExport) return h("span", { class: "live" }, "export");
  const beat = live.live, mark = live.problem ? "lost" : live.state === "running" ? "on" : "";
  const words = live.problem ? "no connection" : live.state === "running" ? `running${beat?.phase ? `: ${beat.phase}` : ""}` : live.state || "…";
  return h("span", { class: "live", role: "status", title: live.problem ? visible(live.problem) : undefined }, h("i", { class: `pulse ${mark}` }), visible(words));
}

/** @param {{ run: string, screen: string, item: string, query: URLSearchParams, theme: string, live: import("app/live").Live, head: Json }} props */
function Screen({ run, screen, item, query, theme, live, head }) {
  const turn = query.get("turn");
  const wanted = turn === null ? null : Number(turn);
  const screens = {
    overview: () => h(RunScreen, { run, head, live, theme, query }),
    episodes: () => h(EpisodesScreen, { run, head, live, query }),
    episode: () => h(EpisodeScreen, { run, id: item, wanted, live, head, estimator: query.get("estimator") ?? "" }),
    group: () => h(GroupScreen, { run, id: item, head, live, query }),
    tokens: () => h(TokensScreen, { run, id: item, wanted, query }),
    failures: () => h(FailuresScreen, { run, live }),
    compare: () => h(CompareScreen, { run, head, theme, query }),
  };
  const draw = /** @type {Record<string, () => any>} */ (screens)[screen];
  return draw ? draw() : h("div", { class: "empty" }, h("h2", {}, "There is no such screen."), h("a", { href: link(["run", run, "overview"]) }, "The run"));
}

/** @param {{ theme: string, flip: () => void, help: () => void }} props */
function Tools({ theme, flip, help }) {
  return [h("button", { class: "icon", key: "theme", onClick: flip, title: "dark or light (d)", "aria-label": theme === "dark" ? "switch to light" : "switch to dark" }, theme === "dark" ? "☀" : "☾"),
    h("button", { class: "icon", key: "help", onClick: help, title: "keys (?)", "aria-label": "keys" }, "?")];
}

/** @param {{ run: string, screen: string, item: string, query: URLSearchParams, theme: string, bar: any, single: boolean }} props */
function RunFrame({ run, screen, item, query, theme, bar, single }) {
  const [cursor, setCursor] = useState(/** @type {string | null} */ (null));
  const live = useLive(run, cursor); // from the first head on: what changed before the screens were drawn is in them
  const { ticks } = live;
  const state = useLoaded(() => get("head", { run }), [run, ticks.info, ticks.episodes, ticks.failures, ticks.damage, ticks.index]);
  useEffect(() => { if (cursor === null && (state.value || state.error)) setCursor(state.value?.cursor ?? ""); }, [state.value, state.error]);
  const head = state.value?.key === run ? state.value : null;
  const list = () => go(sessionStorageList(run));
  useKeys({ 1: () => go(link(["run", run, "overview"])), 2: list, 3: () => go(link(["run", run, "failures"])), 4: () => go(link(["run", run, "compare"])), u: list,
    "/": () => go(link(["run", run, "episodes"], { find: 1 })) }, RUN);
  useEffect(() => { document.title = `${visible(head?.name ?? run)} · agentrl`; }, [head?.name, run]);
  useEffect(() => { if (screen === "episodes") kept.set(run, location.hash); });
  const failed = Object.values(head?.summary.failures ?? {}).reduce((sum, count) => sum + count, 0);
  const counts = /** @type {Record<string, number | undefined>} */ ({ episodes: live.ticks.episodes || !head ? head?.summary.episodes : head.summary.episodes, failures: failed });
  return h("div", {},
    h("header", { class: "top" },
      h("div", { class: "brand" }, single || isExport ? h("span", { class: "soft" }, "agentrl") : h("a", { href: "#/", class: "soft" }, "runs"), h("span", { class: "slash" }, "/"), h("h1", { class: "name cut", title: visible(head?.path ?? run) }, visible(head?.name ?? run))),
      h("nav", { class: "tabs", "aria-label": "screens" }, TABS.filter((tab) => tab.screen !== "compare" || head?.can?.compare !== false).map((tab) => h("a", { key: tab.screen, href: tab.screen === "episodes" ? kept.get(run) ?? link(["run", run, "episodes"]) : link(["run", run, tab.screen]), "aria-current": tab.holds.includes(screen) ? "page" : undefined },
        tab.label, counts[tab.screen] ? h("span", { class: "count" }, number(counts[tab.screen])) : null))),
      h(State, { live }), bar),
    h("main", { id: "main", tabIndex: -1 },
      live.problem ? h("div", { class: "banner", role: "alert" }, h("pre", {}, visible(live.problem))) : null,
      head?.damage?.length ? h("div", { class: "banner bad" }, `${head.damage.length} record${head.damage.length === 1 ? " is" : "s are"} unreadable, the rest is whole: `, h("span", { class: "mono" }, visible(head.damage.slice(0, 5).join(", ")))) : null,
      head ? h(Screen, { run, screen, item, query, theme, live, head }) : pending(state)));
}

/** The list of episodes as it was left, by run. @type {Map<string, string>} */
const kept = new Map();

/** @param {string} run */
const sessionStorageList = (run) => kept.get(run) ?? link(["run", run, "episodes"]);

function App() {
  const { path, query } = usePlace();
  const [theme, flip] = useTheme();
  const [helping, setHelping] = useState(false);
  const runs = useLoaded(() => get("runs"), []);
  const single = runs.value?.single ?? isExport;
  useKeys({ "?": () => setHelping(true), d: flip }, APP);
  useEffect(() => {
    const only = runs.value?.runs[0];
    if (single && only && !only.problem && path.length === 0) location.replace(link(["run", only.key, "overview"]));
  }, [runs.value, path.length]);
  const bar = Tools({ theme, flip, help: () => setHelping(true) });
  const [kind, run, screen = "overview", ...rest] = path;
  return h("div", {},
    h("a", { class: "skip", href: "#main", onClick: (/** @type {Event} */ event) => { event.preventDefault(); document.getElementById("main")?.focus(); } }, "To the content"),
    kind === "run" && run ? h(RunFrame, { key: run, run, screen, item: rest.join("/"), query, theme, bar, single })
      : h("div", {}, h("header", { class: "top" }, h("div", { class: "brand" }, h("h1", { class: "name" }, "agentrl"), h("span", { class: "slash" }, "/"), h("span", { class: "soft" }, "runs")), h("span", { class: "grow" }), bar),
        h("main", { id: "main", tabIndex: -1 }, runs.value ? h(RunsScreen, { first: runs.value, theme, query }) : runs.error ? h(Failed, { error: runs.error }) : pending(runs))),
    h(Help, { open: helping, onClose: () => setHelping(false) }));
}

const root = document.getElementById("app");
if (root) render(h(App, {}), root);
