/** Answers of an export: what the server's endpoints say, from the data in the page. */

/** @typedef {Record<string, any>} Json */

/** Fields of a request that are a range of a field of a row. */
const RANGES = { iteration: "iteration", reward: "reward", turns: "turns", duration: "duration_s" };
/** Fields of a request that name values of a field of a row, with commas between. */
const LISTS = ["split", "status", "stop"];

/** @param {Json} page @param {string} name @param {Json} parameters @returns {any} */
export function answers(page, name, parameters) {
  if (name === "episodes") return episodes(page, parameters);
  if (name === "updates") return { cursor: "", state: "ended", changed: [], live: null };
  const whole = page.get[name];
  if (whole) return whole;
  const kept = { episode: page.episodes, tokens: page.tokens, group: page.groups }[name]?.[parameters.id];
  if (kept) return kept;
  throw new Error(name === "episode" || name === "group" || name === "tokens" ? `${parameters.id} is not in this page: it holds ${page.rows.length} of ${page.total} episodes.`
    : "This page is an export. In the live viewer: agentrl view RUN");
}

/** @param {Json} row @param {string} name */
const field = (row, name) => (name.startsWith("components.") ? row.components?.[name.slice("components.".length)] : row[name]);

/** @param {Json} page @param {Json} asked */
function episodes(page, asked) {
  const words = String(asked.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const rows = page.rows.filter((/** @type {Json} */ row) => matches(row, asked) && (!words.length || words.every((word) => text(page, row.id).includes(word))));
  const sort = asked.sort || "created_at", sign = asked.desc ? -1 : 1;
  rows.sort((/** @type {Json} */ a, /** @type {Json} */ b) => {
    const [x, y] = [field(a, sort), field(b, sort)];
    if (x == null || y == null) return Number(x == null) - Number(y == null);
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  });
  const offset = Number(asked.offset ?? 0);
  return { rows: rows.slice(offset, offset + Number(asked.limit ?? 50)), total: rows.length, offset, index: { state: "ready", done: page.rows.length, of: page.rows.length, problem: null } };
}

/** @param {Json} row @param {Json} asked */
function matches(row, asked) {
  const within = (/** @type {any} */ value, /** @type {string} */ name) => {
    const [low, high] = [asked[`${name}_min`], asked[`${name}_max`]];
    const free = (/** @type {any} */ bound) => bound === undefined || bound === "" || bound === null;
    if (free(low) && free(high)) return true;
    return value != null && (free(low) || value >= Number(low)) && (free(high) || value <= Number(high));
  };
  const versions = row.versions ?? [];
  return LISTS.every((name) => !asked[name] || String(asked[name]).split(",").includes(row[name]))
    && Object.entries(RANGES).every(([name, of]) => within(row[of], name))
    && (!asked.error || (asked.error === "any" ? row.error != null : String(asked.error).split(",").includes(row.error)))
    && (!asked.group || row.group_id === asked.group) && (!asked.task || row.task_id.includes(asked.task)) && (!asked.id || row.id.includes(asked.id))
    && (!asked.tool || asked.tool in (row.tools ?? {})) && (!asked.component || within(row.components?.[asked.component], "component") && row.components?.[asked.component] != null)
    && within(versions[0], "version") && (!asked.version_max || within(versions[1], "version"));
}

/** Lower-case text of episodes, made when it is searched first. @type {Map<string, string>} */
const texts = new Map();

/** @param {Json} page @param {string} id */
function text(page, id) {
  let found = texts.get(id);
  if (found === undefined) {
    found = JSON.stringify(page.episodes[id]?.episode ?? "").toLowerCase();
    texts.set(id, found);
  }
  return found;
}
