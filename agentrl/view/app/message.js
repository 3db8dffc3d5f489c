/** Messages and pictures of an episode. */

import { createContext, h } from "preact";
import { useContext, useState } from "preact/hooks";
import { blob, get } from "app/data";
import { flat, pretty, visible } from "app/format";
import { Details, Failed, Text } from "app/ui";

/** @typedef {Record<string, any>} Json */
/** @typedef {{ turn: number, points: [number, number][] }} Mark */

/** What the parts of an episode share.
 * @type {import("preact").Context<{ run: string, id: string, cuts: Map<string, number>, marks: Map<Json, Mark[]> }>} */
export const EpisodeContext = createContext({ run: "", id: "", cuts: new Map(), marks: new Map() });

const CHUNK = 200_000;

/** Text of the record at a JSON pointer; one that was cut loads more on demand. @param {{ text: unknown, path: string, class?: string }} props */
export function Stored({ text, path, class: className }) {
  const { run, id, cuts } = useContext(EpisodeContext);
  const [more, setMore] = useState("");
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const whole = cuts.get(path);
  const own = String(text ?? "") + more;
  const load = () => get("text", { run, id, path, start: own.length, length: CHUNK }).then((answer) => setMore(more + answer.text), setError);
  return h("div", {}, h(Text, { text: own, class: className }),
    whole !== undefined && own.length < whole ? h("div", { class: "row small soft" }, `${own.length.toLocaleString("en")} of ${whole.toLocaleString("en")} characters`, h("button", { onClick: load }, "load more")) : null,
    error ? h(Failed, { error }) : null);
}

/** @param {Json} part */
export const pictureLine = (part) => `[image ${part.width ?? "?"}x${part.height ?? "?"} ${part.format ?? "?"} sha256:${String(part.blob).slice(0, 12)}]`;

/** A picture, with a ring where later calls acted on it. @param {{ part: Json }} props */
export function Picture({ part }) {
  const { run, marks } = useContext(EpisodeContext);
  const [broken, setBroken] = useState(false);
  const source = blob(run, part.blob), line = pictureLine(part);
  if (!source || broken) return h("pre", { class: "soft" }, `${line} ${broken ? "(cannot be shown)" : "(not in this page)"}`);
  const found = marks.get(part) ?? [], r = Math.max(4, Math.max(part.width || 1, part.height || 1) / 50);
  return h("figure", { class: "shot" },
    h("div", {}, h("img", { src: source, alt: line, width: part.width, height: part.height, loading: "lazy", onError: () => setBroken(true) }),
      found.length ? h("svg", { viewBox: `0 0 ${part.width || 1} ${part.height || 1}`, "aria-hidden": "true" }, found.map((mark) => h(Ring, { key: mark.turn, mark, r }))) : null),
    h("figcaption", {}, line, found.map((mark) => ` · turn ${mark.turn} acted at ${mark.points.map((point) => point.join(", ")).join(" → ")}`)));
}

/** @param {{ mark: Mark, r: number }} props */
function Ring({ mark: { turn, points }, r }) {
  const [x, y] = points[points.length - 1];
  return h("g", { class: "mark" },
    points.slice(1).map((to, k) => h("line", { key: k, x1: points[k][0], y1: points[k][1], x2: to[0], y2: to[1] })),
    h("circle", { cx: x, cy: y, r }), h("circle", { cx: x, cy: y, r: r / 6 }), h("text", { x: x + 1.3 * r, y: y - 0.6 * r, "font-size": 1.6 * r }, String(turn)));
}

/** The content of a message: a string or parts. @param {{ content: any, path: string }} props */
export function Content({ content, path }) {
  if (!Array.isArray(content)) return h(Stored, { text: typeof content === "string" ? content : content == null ? "" : pretty(content), path });
  return h("div", {}, content.map((part, k) => (part.blob ? h(Picture, { key: k, part }) : part.type === "text" ? h(Stored, { key: k, text: part.text, path: `${path}/${k}/text` }) : h(Text, { key: k, text: pretty(part) }))));
}

/** @param {{ message: Json, path: string }} props */
export const Message = ({ message, path }) => h("div", { class: `message ${message.role}` },
  h("div", { class: "role" }, visible(message.name ? `${message.role} · ${message.name}` : message.role)), h(Content, { content: message.content, path: `${path}/content` }),
  message.tool_calls?.length ? h(Text, { text: message.tool_calls.map(flat).join("\n") }) : null);

/** Comparable text of a content. @param {any} content @returns {string} */
export const said = (content) => (Array.isArray(content) ? content.map((part) => (part.type === "text" ? part.text : part.blob ? pictureLine(part) : flat(part))).join("\n") : flat(content ?? ""));

/** @param {Json} definition */
const signature = ({ function: f }) => `${f.name}(${Object.keys(f.parameters?.properties ?? {}).join(", ")})${f.description ? `: ${f.description}` : ""}`;

/** @param {{ title: string, tools: Json[] | null | undefined }} props */
export const Tools = ({ title, tools }) => (tools ? h(Details, { title: visible(`${title}: ${tools.map((tool) => tool.function?.name ?? tool.name).join(", ") || "none"}`),
  children: () => h(Text, { text: tools.map((tool) => (tool.function ? signature(tool) : pretty(tool))).join("\n") }) }) : null);

/** Output that was cut when it was shown to the model. @param {{ call: Json }} props */
export function Dropped({ call }) {
  const { run } = useContext(EpisodeContext);
  if (!call.dropped) return null;
  const source = call.blob ? blob(run, call.blob) : null;
  const length = call.dropped.toLocaleString("en");
  return h("div", { class: "foot" }, `${length} characters were cut from what the model saw. `,
    source ? h("a", { href: source, target: "_blank", rel: "noopener" }, "whole output") : call.blob ? "The whole output is not in this page." : "Nothing keeps them.");
}

