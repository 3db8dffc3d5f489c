/** Small parts that all screens share. Content of a run goes in as text nodes only. */

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NOT_RECORDED, isNumber, number, plural, pretty, signed, visible } from "app/format";

/** @typedef {import("preact").ComponentChildren} Children */

/** @param {{ tone?: string, title?: string, children?: Children }} props */
export const Chip = ({ tone = "", title, children }) => h("span", { class: `chip ${tone}`, title }, children);

/** @param {{ status: string }} props */
export const Status = ({ status }) => h("span", { class: `dot ${status}`, role: "img", "aria-label": status, title: status });

export const Missing = () => h("span", { class: "none" }, NOT_RECORDED);

/** A tone for a signed number. @param {unknown} value */
export const tone = (value) => (!isNumber(value) || value === 0 ? "" : value > 0 ? "up" : "down");

/** A bar from the middle: right for a gain, left for a loss. @param {{ value: unknown, most: number, size?: string }} props */
export function Axis({ value, most, size = "" }) {
  const known = isNumber(value) && most > 0;
  const width = known ? Math.min(50, (Math.abs(value) / most) * 50) : 0;
  return h("span", { class: `axis ${size}`, "aria-hidden": "true" }, known && value !== 0 ? h("u", { class: value < 0 ? "neg" : "pos", style: { width: `${width}%` } }) : null);
}

const FOLD = 4000;

/** Text of the run. A long one is cut until asked for. @param {{ text: unknown, limit?: number, class?: string }} props */
export function Text({ text, limit = FOLD, class: className = "" }) {
  const [shown, setShown] = useState(limit);
  const whole = visible(text);
  if (whole.length <= shown * 1.25) return h("pre", { class: className }, whole);
  const more = () => setShown(shown + 50_000);
  return h("div", {}, h("pre", { class: className }, whole.slice(0, shown)),
    h("button", { class: "small", onClick: more }, `${(whole.length - shown).toLocaleString("en")} more characters`));
}

/** A value of JSON. @param {{ value: unknown }} props */
export const Json = ({ value }) => h(Text, { text: pretty(value) });

/** Opens its content only when it is opened: closed details cost nothing.
 * @param {{ title: Children, open?: boolean, children: () => Children }} props */
export function Details({ title, open = false, children }) {
  const [opened, setOpened] = useState(open);
  return h("details", { open, onToggle: (/** @type {any} */ event) => setOpened(event.currentTarget.open) },
    h("summary", {}, title), opened ? h("div", { class: "inner" }, children()) : null);
}

/** A command that can be copied. @param {{ command: string, label?: string }} props */
export function Copy({ command, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try { await navigator.clipboard.writeText(command); } catch { selectFallback(command); }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return h("button", { class: "copy cut", title: `Copy: ${visible(command)}`, onClick: copy }, copied ? "copied" : label ?? visible(command));
}

/** Copies without the clipboard permission, as on a page from disk. @param {string} text */
function selectFallback(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Names and values. @param {{ facts: [string, Children][] }} props */
export const Facts = ({ facts }) => h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", { key: name }, name), h("dd", {}, value)]));

/** @param {{ title: string, children?: Children }} props */
export const Empty = ({ title, children }) => h("div", { class: "empty" }, h("h2", {}, title), children);

/** @param {{ error: unknown }} props */
export const Failed = ({ error }) => h("div", { class: "banner bad", role: "alert" }, h("pre", {}, visible(error instanceof Error ? error.message : error)));

/** Says how far the text index is: what it counts is not final before its end. An export holds that of its own episodes.
 * @param {{ index: Record<string, any> | null | undefined, what: string }} props */
export function Indexing({ index, what }) {
  if (index?.state === "sampled") return h("p", { class: "small soft" }, `${what} the ${number(index.done)} episodes of this page`);
  return index?.state === "building" ? h("p", { class: "indexing warn small", role: "status" }, `indexing ${number(index.done)} of ${plural(index.of, "episode")}: ${what} these`) : null;
}

/** The state of something that is fetched. @template T
 * @param {() => Promise<T>} load @param {unknown[]} when @returns {{ value: T | undefined, error: unknown, loading: boolean }} */
export function useLoaded(load, when) {
  const [state, setState] = useState(/** @type {{ value: T | undefined, error: unknown, loading: boolean }} */ ({ value: undefined, error: null, loading: true }));
  useEffect(() => {
    let current = true;
    setState((old) => ({ ...old, loading: true }));
    load().then(
      (value) => { if (current) setState({ value, error: null, loading: false }); },
      (error) => { if (current) setState((old) => ({ ...old, error, loading: false })); },
    );
    return () => { current = false; };
  }, when);
  return state;
}

/** The wait or the error in place of a value. @param {{ loading: boolean, error: unknown }} state */
export const pending = ({ loading, error }) => (error ? h(Failed, { error }) : loading ? h("div", { class: "empty", role: "status" }, "Loading …") : null);

/** The advantage of a turn. @param {{ value: unknown, most: number }} props */
export const Credit = ({ value, most }) => h("span", { class: `credit ${tone(value)}`, title: "advantage of this turn" }, h(Axis, { value, most }), signed(value));
