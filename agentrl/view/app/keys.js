/** Keys: one table at a time, that of the screen; a key in a field of text is the field's. */

import { useLayoutEffect } from "preact/hooks";

/** @type {Set<{ current: Record<string, () => void> }>} */
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
  for (const table of [...tables].reverse()) {
    const act = table.current[event.key];
    if (act) {
      event.preventDefault();
      act();
      return;
    }
  }
});

/** Uses keys while the caller is on screen. @param {Record<string, () => void>} keys */
export function useKeys(keys) {
  useLayoutEffect(() => {
    const table = { current: keys };
    tables.add(table);
    return () => { tables.delete(table); };
  });
}
