/** Values as text. What was not recorded is null or undefined, and is said so: it is never shown as 0. */

export const NOT_RECORDED = "not recorded";

/** @param {unknown} value @returns {value is number} */
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with a sensible number of digits. @param {unknown} value @param {number} [digits] */
export function number(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toFixed(digits)));
}

/** A number with its sign, as of an advantage. @param {unknown} value */
export function signed(value) {
  if (!isNumber(value)) return "–";
  return (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(3);
}

/** A share as a percentage. @param {unknown} value */
export const percent = (value) => (isNumber(value) ? `${number(100 * value, 1)} %` : "–");

/** @param {unknown} seconds */
export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 0.001) return seconds === 0 ? "0 s" : "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${number(seconds, seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {unknown} unix */
export function moment(unix) {
  if (!isNumber(unix) || unix <= 0) return "–";
  return new Date(unix * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

/** A time without its year, for narrow columns. @param {unknown} unix */
export const shortMoment = (unix) => moment(unix).replace(/^\d+-(.*) UTC$/, "$1");

/** An id and its number among siblings: `#3`, what follows the last #; "": it has none. @param {string} id @returns {[string, string]} */
export function nameAndNumber(id) {
  const at = id.lastIndexOf("#");
  return at > 0 && at < id.length - 1 ? [id.slice(0, at), id.slice(at)] : [id, ""];
}

/** @param {unknown} bytes */
export function size(bytes) {
  if (!isNumber(bytes)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes, unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value, 1)} ${units[unit]}`;
}

/** @param {number} count @param {string} word */
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

export const EMPTY_REPLY = "(empty reply)";

/** True of a turn in which the model wrote and called nothing. @param {Record<string, any>} turn */
export const turnIsEmpty = (turn) => !turn.calls?.length && !String(turn.text ?? "").trim();

/** A value of JSON for reading. @param {unknown} value @returns {string} */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

/** A value of JSON on one line. @param {unknown} value @returns {string} */
export const flat = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");

// C0 controls except tab and newline, C1 controls, and marks that turn the direction of text: shown, never obeyed.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text of a stranger with control characters made visible. @param {unknown} value @returns {string} */
export function visible(value) {
  const text = String(value ?? "").replaceAll("\r\n", "\n");
  return text.replace(CONTROL, (character) => {
    const code = character.charCodeAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code}`;
  });
}

/** A shell word. @param {string} word */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
