/** Keys: the screen's table comes before the run's, and that before the app's; a key in a field of text is the field's. */

import { useLayoutEffect } from "preact/hooks";

/** @type {Set<{ keys: Record<string, () => void>, level: number }>} */
const tables = new Set();

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = /** @type {HTMLElement} */ (event.target);
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (event.key.startsWith("Arrow") && target.closest("summary, [data-arrows]")) return;
  if (event.key === "Enter" && target.closest("a, button, summary")) return;
  for (const { keys } of [...tables].sort((a, b) => b.level - a.level)) {
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      act();
      return;
    }
  }
});

export const APP = 0, RUN = 1, SCREEN = 2;

/** Uses keys while the caller is on screen. @param {Record<string, () => void>} keys @param {number} [level] */
export function useKeys(keys, level = SCREEN) {
  useLayoutEffect(() => {
    const table = { keys, level };
    tables.add(table);
    return () => { tables.delete(table); };
  });
}
