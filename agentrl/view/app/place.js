/** The place in the app, kept in the fragment of the URL: `#/RUN/SCREEN/ITEM?name=value`. */

/** @typedef {{ path: string[], query: URLSearchParams }} Place */

/** @returns {Place} */
export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query ?? "") };
}

/** A link to a place; empty values of the query are left out. @param {(string | number)[]} path @param {Record<string, unknown>} [query] */
export function link(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null && value !== "" && value !== false) search.set(name, String(value));
  const text = search.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a place as a new step of the history. @param {string} to */
export function go(to) { location.hash = to; }

/** Changes the place without a step of the history, as while a filter is typed. @param {string} to */
export function replace(to) {
  history.replaceState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
