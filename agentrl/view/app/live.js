/** What changed in a run since it was fetched: one poll for all screens, quiet while the page is hidden. */

import { useEffect, useState } from "preact/hooks";
import { get, isExport, UNREACHABLE } from "app/data";

const RUNNING_MS = 2_000;
const QUIET_MS = 15_000;

/**
 * @typedef {Object} Live
 * @property {Record<string, number>} ticks how often each part changed: a screen loads again when its part's number does
 * @property {string} state `running`, `ended`, `stopped`; "": not known yet
 * @property {any} live the heartbeat; null: the run writes none
 * @property {any} index progress of the text index
 * @property {string} problem "" or why nothing arrives
 */

/** @type {Live} */
const START = { ticks: {}, state: "", live: null, index: null, problem: "" };

/**
 * @param {string} run @param {string | null} known the cursor of the first data that was fetched; null: none was yet
 * @returns {Live} */
export function useLive(run, known) {
  const [live, setLive] = useState(START);
  useEffect(() => {
    setLive(START);
    if (known === null || isExport) return undefined;
    let cursor = known, timer = 0, ended = false, wait = RUNNING_MS;
    const poll = async () => {
      clearTimeout(timer);
      if (document.hidden || ended) return;
      try {
        const news = await get("updates", { run, cursor });
        if (ended) return;
        cursor = news.cursor;
        wait = news.state === "running" || news.index?.state === "building" ? RUNNING_MS : QUIET_MS;
        setLive((old) => ({ ticks: raised(old.ticks, news.changed), state: news.state, live: news.live, index: news.index ?? null, problem: "" }));
      } catch (error) {
        if (ended) return;
        const { status, message } = /** @type {any} */ (error);
        wait = QUIET_MS / (status === UNREACHABLE ? 3 : 1);
        setLive((old) => ({ ...old, problem: message }));
      }
      timer = setTimeout(poll, wait);
    };
    poll();
    document.addEventListener("visibilitychange", poll);
    return () => { ended = true; clearTimeout(timer); document.removeEventListener("visibilitychange", poll); };
  }, [run, known]);
  return live;
}

/** @param {Record<string, number>} ticks @param {string[]} changed */
const raised = (ticks, changed) => (changed.length ? { ...ticks, ...Object.fromEntries(changed.map((name) => [name, (ticks[name] ?? 0) + 1])) } : ticks);
