/** All data of the app: from the server that served the page, or from the page itself if it is an export. */

import { answers } from "app/exported";

/** @typedef {Record<string, string | number | boolean | null | undefined>} Parameters */
/** @typedef {Record<string, any>} Json */

const element = document.getElementById("agentrl-data");

/** The data of an export; null: there is a server. @type {Json | null} */
const embedded = element ? JSON.parse(element.textContent ?? "null") : null;

export const isExport = embedded !== null;

/** A request that was refused, with the place and the remedy. */
export class Refused extends Error {
  /** @param {number} status @param {Json} error */
  constructor(status, error) {
    super([error.what ?? `The server answered ${status}.`, error.place, error.remedy].filter(Boolean).join("\n"));
    this.status = status;
  }
}

/** Status of a request that reached no server. */
export const UNREACHABLE = 0;

/** Pauses before a request is repeated, in ms. A browser breaks requests off when an interface of the machine changes,
 * as the network of a container does. */
const PAUSES_MS = [100, 400];

/** @param {Parameters} parameters */
function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  return search.toString();
}

/** The response of an endpoint (the name of a method of the API).
 * @param {string} name @param {Parameters} [parameters] @returns {Promise<any>} */
export async function get(name, parameters = {}) {
  if (embedded) return answers(embedded, name, parameters);
  const response = await fetched(`api/${name}?${query(parameters)}`);
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.error ?? {});
  return body;
}

/** @param {string} url @returns {Promise<Response>} */
async function fetched(url) {
  for (const pause of [...PAUSES_MS, 0]) {
    try {
      return await fetch(url, { headers: { accept: "application/json" } });
    } catch {
      if (pause) await new Promise((go) => setTimeout(go, pause));
    }
  }
  throw new Refused(UNREACHABLE, { what: "The viewer's server does not answer.", remedy: "Start it again: agentrl view RUN" });
}

/** The address of a blob's bytes; null: the page does not hold it. @param {string} run @param {string} sha @returns {string | null} */
export function blob(run, sha) {
  if (embedded) return embedded.blobs?.[sha] ?? null;
  return `api/blob?${query({ run, sha })}`;
}
