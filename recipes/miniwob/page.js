// Installed in every page: starts an episode, names elements by number, says what is visible, and finds the point to click.
(() => {
  // The page's own display, not part of the task; the query is the utterance.
  const SKIP = new Set(['reward-display', 'sync-task-cover', 'click-canvas', 'attention-canvas', 'query']);
  const TAGS = new Set(['SCRIPT', 'STYLE', 'BR', 'NOSCRIPT', 'OPTION']);
  let numbers = new Map(), elements = [null];

  // The images of its styles, which an element without any other content is as large as. They are loaded before an
  // element shows one: an icon that loads another image when the mouse is over it is gone for that time.
  const images = [];
  for (const sheet of document.styleSheets) {
    let rules = [];
    try { rules = sheet.cssRules; } catch { /* of a file, which scripts may not read */ }
    for (const rule of rules) {
      for (const [, url] of rule.cssText.matchAll(/url\("([^"]+)"\)/g)) {
        images.push(new Image());
        images.at(-1).src = url;
      }
    }
  }
  const sized = (image) => image.decode().catch(() => null);

  // The state of the page at the start of an episode.
  const start = async (seed, millis) => {
    await Promise.all(images.map(sized));
    numbers = new Map(); elements = [null];
    clearTimeout(core.EP_TIMER); core.EP_TIMER = null;
    core.EPISODE_MAX_TIME = millis;
    Math.seedrandom(seed);
    scrollTo(0, 0);
    getSelection().removeAllRanges();
    core.startEpisodeReal();
    if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
    while (!WOB_TASK_READY) await new Promise((done) => setTimeout(done, 5));
    return shown();
  };

  const number = (element) => {
    if (!numbers.has(element)) { numbers.set(element, elements.length); elements.push(element); }
    return numbers.get(element);
  };

  const colour = (text) => {
    const found = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(text);
    if (!found || found[4] === '0') return '';
    return '#' + [1, 2, 3].map((k) => (+found[k]).toString(16).padStart(2, '0')).join('');
  };

  const box = (rect) => [rect.left, rect.top, rect.width, rect.height].map(Math.round);

  const words = (text) => text.replace(/\s+/g, ' ').trim();

  // What an element is, beside its place: only what differs from the rule.
  const traits = (element, style, parent) => {
    const found = {};
    const svg = element instanceof SVGElement;
    if (svg) {
      if (element.tagName !== 'svg' && element.tagName !== 'g') found.fill = colour(style.fill);
      if (element.tagName === 'text') found.size = style.fontSize;
      if (colour(style.stroke)) found.stroke = colour(style.stroke);
    } else {
      if (colour(style.backgroundColor)) found.bg = colour(style.backgroundColor);
      if (style.color !== parent.color) found.fg = colour(style.color);
      if (style.fontWeight !== parent.fontWeight) found.weight = style.fontWeight;
      if (style.fontStyle !== parent.fontStyle) found.style = style.fontStyle;
      if (style.textDecorationLine !== 'none') found.line = style.textDecorationLine;
      if (style.fontSize !== parent.fontSize) found.size = style.fontSize;
    }
    if (element instanceof HTMLInputElement) {
      found.type = element.type;
      if (element.type === 'checkbox' || element.type === 'radio') { if (element.checked) found.checked = 'yes'; }
      else if (element.value) found.value = element.value;
    } else if (element instanceof HTMLTextAreaElement) {
      if (element.value) found.value = element.value;
    } else if (element instanceof HTMLSelectElement) {
      found.options = Array.from(element.options, (each) => words(each.textContent));
      found.selected = Array.from(element.selectedOptions, (each) => words(each.textContent));
    }
    if (element.placeholder) found.hint = element.placeholder;
    if (element.alt) found.alt = element.alt;
    if (element.disabled) found.disabled = 'yes';
    if (document.activeElement === element && element !== document.body) found.focused = 'yes';
    return found;
  };

  const walk = (element, depth, parent, lines) => {
    if (SKIP.has(element.id) || TAGS.has(element.tagName)) return;
    const rect = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    if (style.display === 'none') return;
    const seen = rect.width > 0 && rect.height > 0 && style.visibility !== 'hidden';
    const line = element instanceof SVGElement && (rect.width > 0 || rect.height > 0);
    let below = depth;
    const children = element.tagName === 'TEXTAREA' ? [] : Array.from(element.childNodes);
    const texts = children.filter((child) => child.nodeType === 3 && words(child.data));
    const mixed = texts.length && children.some((child) => child.nodeType === 1 && child.tagName !== 'BR');
    if ((seen || line) && element !== document.body) {
      const names = typeof element.className === 'string' ? element.className : element.className.baseVal;
      const text = mixed ? '' : words(texts.map((child) => child.data).join(' '));
      const classes = names ? names.trim().split(/\s+/).join('.') : '';
      lines.push([depth, number(element), element.tagName.toLowerCase(), element.id || '', classes, text, box(rect),
                  traits(element, style, parent)]);
      below = depth + 1;
    }
    for (const child of children) {
      if (child.nodeType === 1) walk(child, below, style, lines);
      else if (child.nodeType === 3 && mixed && seen && words(child.data)) {
        const range = document.createRange();
        range.selectNodeContents(child);
        lines.push([below, 0, '', '', '', words(child.data), box(range.getBoundingClientRect()), {}]);
      }
    }
  };

  const utterance = () => {
    const said = core.getUtterance();
    return words(typeof said === 'string' ? said : said.utterance || JSON.stringify(said));
  };

  const state = () => {
    const lines = [];
    if (!WOB_DONE_GLOBAL) walk(document.body, 0, getComputedStyle(document.body), lines);
    return {done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL,
            utterance: WOB_DONE_GLOBAL ? '' : utterance(), lines};
  };

  // As state, once every image has its size.
  const shown = async () => {
    await Promise.all(Array.from(document.images, sized));
    return state();
  };

  let scrolls = 0;
  document.addEventListener('scroll', () => { scrolls += 1; }, true);

  // Waits until nothing has scrolled for eight frames: frames are late on a busy machine, as is the wheel.
  const still = async () => {
    for (let frames = 0, seen = scrolls; frames < 8; frames += 1) {
      await new Promise((done) => requestAnimationFrame(done));
      if (scrolls !== seen) { seen = scrolls; frames = 0; }
    }
  };

  const hits = (element, x, y) => {
    if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) return false;
    const hit = document.elementFromPoint(x, y);
    return hit !== null && (hit === element || element.contains(hit) || hit.contains(element) && !(hit instanceof SVGElement)
                            && element instanceof HTMLOptionElement);
  };

  // A point of the element that no other element covers; its middle if there is none. Null: it is gone.
  const point = (ref) => {
    const element = elements[ref];
    if (!element || !element.isConnected) return null;
    const places = () => {
      const found = [];
      for (const rect of [...element.getClientRects(), element.getBoundingClientRect()]) {
        for (const [u, v] of [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9],
                              [.05, .5], [.95, .5], [.5, .05], [.5, .95]]) {
          found.push([rect.left + u * rect.width, rect.top + v * rect.height]);
        }
      }
      return found;
    };
    let free = places().find(([x, y]) => hits(element, x, y));
    if (!free) {
      element.scrollIntoView({block: 'nearest', inline: 'nearest'});
      free = places().find(([x, y]) => hits(element, x, y));
    }
    return free || places()[0];
  };

  // Selects options of a <select> by their texts, as a user would: with the events of a change. Returns what is missing.
  const select = (ref, wanted) => {
    const element = elements[ref];
    if (!(element instanceof HTMLSelectElement)) return wanted;
    const options = Array.from(element.options);
    const missing = wanted.filter((text) => !options.some((each) => words(each.textContent) === text));
    if (missing.length) return missing;
    for (const each of options) each.selected = wanted.includes(words(each.textContent));
    element.dispatchEvent(new Event('input', {bubbles: true}));
    element.dispatchEvent(new Event('change', {bubbles: true}));
    return [];
  };

  window.agentrl = {start, shown, still, point, select};
})();
