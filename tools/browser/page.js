// Text views of a page: accessibility tree, elements, readable text. Evaluated inside the page.
window[Symbol.for('agentrl')] ??= (() => {
  const ids = new WeakMap(), byId = new Map();
  let last = 0;

  const idOf = el => {
    let id = ids.get(el);
    if (id === undefined) { id = ++last; ids.set(el, id); byId.set(id, new WeakRef(el)); }
    return id;
  };
  const element = id => { const el = byId.get(id)?.deref(); return el?.isConnected ? el : null; };

  const squeeze = text => text.replace(/[\s\u00a0\u200b]+/g, ' ').trim();
  const quote = text => JSON.stringify(text.length > 300 ? text.slice(0, 300) + '…' : text);

  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'TEMPLATE', 'NOSCRIPT', 'HEAD', 'META', 'LINK', 'BASE', 'OPTION', 'OPTGROUP',
    'DATALIST', 'PARAM', 'SOURCE', 'TRACK', 'WBR', 'AREA']);
  const INPUTS = {button: 'button', submit: 'button', reset: 'button', image: 'button', checkbox: 'checkbox', radio: 'radio',
    range: 'slider', number: 'spinbutton', search: 'searchbox', file: 'file', color: 'color', date: 'date', time: 'time',
    'datetime-local': 'datetime', month: 'month', week: 'week'};
  const TAGS = {A: el => el.hasAttribute('href') ? 'link' : '', BUTTON: () => 'button', SUMMARY: () => 'button',
    INPUT: el => el.type === 'hidden' ? 'hidden' : INPUTS[el.type] ?? 'textbox', TEXTAREA: () => 'textbox',
    SELECT: el => el.multiple || el.size > 1 ? 'listbox' : 'combobox',
    H1: () => 'heading', H2: () => 'heading', H3: () => 'heading', H4: () => 'heading', H5: () => 'heading', H6: () => 'heading',
    IMG: el => el.alt ? 'img' : '', SVG: el => el.querySelector(':scope > title') ? 'img' : '', CANVAS: () => 'canvas',
    UL: () => 'list', OL: () => 'list', MENU: () => 'list', LI: () => 'listitem', TABLE: () => 'table', TR: () => 'row',
    TD: () => 'cell', TH: () => 'columnheader', CAPTION: () => 'caption', NAV: () => 'navigation', MAIN: () => 'main',
    HEADER: el => el.closest('article, section, main, aside, nav') ? '' : 'banner', ASIDE: () => 'complementary',
    FOOTER: el => el.closest('article, section, main, aside, nav') ? '' : 'contentinfo', ARTICLE: () => 'article',
    FORM: () => 'form', FIELDSET: () => 'group', LEGEND: () => '', DETAILS: () => 'group', DIALOG: () => 'dialog',
    SECTION: el => el.hasAttribute('aria-label') || el.hasAttribute('aria-labelledby') ? 'region' : '',
    IFRAME: () => 'iframe', FRAME: () => 'iframe', PROGRESS: () => 'progressbar', METER: () => 'meter', HR: () => 'separator',
    OUTPUT: () => 'status', VIDEO: () => 'video', AUDIO: () => 'audio', BLOCKQUOTE: () => 'blockquote', PRE: () => 'code',
    P: () => 'paragraph', DT: () => 'term', DD: () => 'definition', FIGURE: () => 'figure', LABEL: () => ''};
  const ACTED_ON = new Set(['link', 'button', 'checkbox', 'radio', 'slider', 'spinbutton', 'searchbox', 'textbox', 'combobox',
    'listbox', 'file', 'color', 'date', 'time', 'datetime', 'month', 'week', 'tab', 'menuitem', 'menuitemcheckbox',
    'menuitemradio', 'option', 'switch', 'treeitem', 'canvas', 'video', 'audio']);
  const NAMED_BY_CONTENT = new Set(['link', 'button', 'heading', 'tab', 'menuitem', 'menuitemcheckbox', 'menuitemradio',
    'option', 'switch', 'checkbox', 'radio', 'treeitem', 'caption', 'term', 'clickable']);
  const LEAVES = new Set(['img', 'textbox', 'searchbox', 'combobox', 'listbox', 'canvas', 'video', 'audio', 'progressbar',
    'meter', 'slider', 'spinbutton']);
  const FOLDED = new Set(['paragraph', 'listitem', 'cell', 'columnheader', 'definition', 'code', 'blockquote', 'status',
    'alert', 'group', 'figure', 'article']);
  const INLINE = new Set(['inline', 'contents', 'ruby', 'ruby-text']);

  const styleOf = el => el.ownerDocument.defaultView.getComputedStyle(el);
  const roleOf = el => {
    const given = (el.getAttribute('role') ?? '').trim().split(/\s+/)[0];
    if (given && given !== 'none' && given !== 'presentation') return given;
    if (given) return '';
    const role = TAGS[el.tagName.toUpperCase()]?.(el) ?? '';
    return role || (el.isContentEditable && !el.parentElement?.isContentEditable ? 'textbox' : '');
  };
  const clickable = (el, style) => (el.onclick || el.hasAttribute('onclick') || el.tabIndex >= 0 && el.hasAttribute('tabindex')
    || style.cursor === 'pointer' && el.parentElement && styleOf(el.parentElement).cursor !== 'pointer')
    && el.tagName !== 'BODY' && el.tagName !== 'HTML' && el.tagName !== 'LABEL';

  // True if an element and its content are hidden.
  const hidden = (el, style) => style.display === 'none' || el.getAttribute('aria-hidden') === 'true' || el.inert
    || style.contentVisibility === 'hidden';
  const unseen = style => style.visibility !== 'visible';

  const childrenOf = el => {
    if (el.shadowRoot) return el.shadowRoot.childNodes;
    if (el.tagName === 'SLOT') { const given = el.assignedNodes(); if (given.length) return given; }
    if (el.tagName === 'DETAILS' && !el.open) return [...el.children].filter(child => child.tagName === 'SUMMARY').slice(0, 1);
    return el.childNodes;
  };

  // Accessible name of an element from its content.
  const contentName = (el, depth = 0) => {
    if (depth > 30) return '';
    let text = '';
    for (const child of childrenOf(el)) {
      if (child.nodeType === 3) text += child.data;
      else if (child.nodeType === 1 && !SKIPPED.has(child.tagName.toUpperCase())) {
        const style = styleOf(child);
        if (hidden(child, style) || unseen(style)) continue;
        if (child.tagName === 'BR') { text += ' '; continue; }
        const inner = child.getAttribute('aria-label') || (child.tagName === 'IMG' ? child.alt : '')
          || (child.tagName === 'svg' ? child.querySelector('title')?.textContent : '')
          || (child.tagName === 'INPUT' || child.tagName === 'TEXTAREA' ? child.value : '') || contentName(child, depth + 1);
        text += INLINE.has(style.display) ? inner : ` ${inner} `;
      }
    }
    return text;
  };
  const nameOf = (el, role) => {
    const by = el.getAttribute('aria-labelledby');
    if (by) {
      const text = squeeze(by.split(/\s+/).map(id => el.getRootNode().getElementById?.(id)).filter(Boolean)
        .map(each => each.getAttribute('aria-label') || contentName(each)).join(' '));
      if (text) return text;
    }
    const label = squeeze(el.getAttribute('aria-label') ?? '');
    if (label) return label;
    if (el.labels?.length) {
      const text = squeeze([...el.labels].map(each => labelText(each, el)).join(' '));
      if (text) return text;
    }
    const tag = el.tagName.toUpperCase();
    if (tag === 'INPUT' && (el.type === 'submit' || el.type === 'reset' || el.type === 'button')) {
      const text = squeeze(el.value || el.title || '');
      return text || {submit: 'Submit', reset: 'Reset', button: ''}[el.type];
    }
    if (tag === 'IMG' || tag === 'INPUT' && el.type === 'image') return squeeze(el.alt || el.title || '');
    if (tag === 'SVG') return squeeze(el.querySelector(':scope > title')?.textContent ?? '');
    if (tag === 'FIELDSET') return squeeze(el.querySelector(':scope > legend')?.textContent ?? '');
    if (tag === 'IFRAME' || tag === 'FRAME') return squeeze(el.title || el.name || '');
    if (NAMED_BY_CONTENT.has(role)) {
      const text = squeeze(contentName(el));
      if (text) return text;
    }
    return squeeze(el.title || el.placeholder || '');
  };
  const labelText = (label, control) => {
    let text = '';
    for (const child of label.childNodes) {
      if (child.nodeType === 3) text += child.data;
      else if (child.nodeType === 1 && child !== control && !child.contains(control)
        && !['SELECT', 'INPUT', 'TEXTAREA'].includes(child.tagName)) text += contentName(child);
      else if (child.nodeType === 1 && child !== control && child.contains(control)) text += labelText(child, control);
    }
    return text;
  };

  const MOST_OPTIONS = 30;
  const stateOf = (el, role) => {
    const said = [], tag = el.tagName, aria = name => el.getAttribute(`aria-${name}`);
    if (role === 'heading') said.push(`level=${/^H[1-6]$/.test(tag) ? tag[1] : aria('level') ?? 2}`);
    if (tag === 'SELECT') {
      said.push(`value=${[...el.selectedOptions].map(each => quote(squeeze(each.label))).join(',') || '""'}`);
      const labels = [...el.options].map(each => quote(squeeze(each.label)) + (each.disabled ? ' (disabled)' : ''));
      const more = labels.length - MOST_OPTIONS;
      said.push(`options=${labels.slice(0, MOST_OPTIONS).join(',')}${more > 0 ? `,... ${more} more` : ''}`);
    } else if ((tag === 'INPUT' && !['checkbox', 'radio', 'button', 'submit', 'reset', 'image'].includes(el.type)) || tag === 'TEXTAREA') {
      const value = el.type === 'password' ? '•'.repeat(el.value.length) : el.type === 'file' ? el.files[0]?.name ?? '' : el.value;
      if (value) said.push(`value=${quote(value)}`);
      if (!value && el.placeholder) said.push(`placeholder=${quote(squeeze(el.placeholder))}`);
    } else if (el.isContentEditable && role === 'textbox') {
      said.push(`value=${quote(squeeze(el.innerText))}`);
    } else if (tag === 'PROGRESS' || tag === 'METER') said.push(`value=${el.value}/${el.max}`);
    else if (aria('valuenow') !== null) said.push(`value=${quote(aria('valuetext') ?? aria('valuenow'))}`);
    if (el.type === 'checkbox' || el.type === 'radio' ? el.checked : aria('checked') === 'true') said.push('checked');
    if (aria('selected') === 'true') said.push('selected');
    if (aria('pressed') === 'true') said.push('pressed');
    if (aria('current') && aria('current') !== 'false') said.push('current');
    const open = tag === 'SUMMARY' && el.parentElement?.tagName === 'DETAILS' ? String(el.parentElement.open) : aria('expanded');
    if (open === 'true' || open === 'false') said.push(open === 'true' ? 'expanded' : 'collapsed');
    if (el.matches(':disabled') || aria('disabled') === 'true') said.push('disabled');
    if (el.readOnly && tag !== 'SELECT' && ['textbox', 'searchbox', 'spinbutton'].includes(role)) said.push('readonly');
    if (el.required || aria('required') === 'true') said.push('required');
    if (el.ownerDocument.activeElement === el && ACTED_ON.has(role)) said.push('focused');
    return said;
  };

  // A tree of {head, kids, text}: `head` is a line without its text; `text` is the readable text.
  const build = root => {
    const visit = (el, into, named, depth) => {
      const tag = el.tagName.toUpperCase();
      if (SKIPPED.has(tag) || depth > 400) return;
      const style = styleOf(el);
      if (hidden(el, style)) return;
      let role = unseen(style) ? '' : roleOf(el);
      if (role === 'hidden') return;
      const acts = ACTED_ON.has(role);
      if (!role && !unseen(style) && clickable(el, style)) role = 'clickable';
      const inline = INLINE.has(style.display) && !role;
      if (!role) {
        if (tag === 'BR' || !inline) into.push(null);
        // A label names its control, and a legend its group.
        content(el, into, named || tag === 'LABEL' && !!el.control || tag === 'LEGEND', depth, unseen(style));
        if (!inline) into.push(null);
        return;
      }
      const name = role === 'paragraph' || role === 'cell' || role === 'row' ? squeeze(el.getAttribute('aria-label') ?? '') : nameOf(el, role);
      const node = {el, role, name, id: acts || role === 'clickable' ? idOf(el) : 0, kids: []};
      if (role === 'heading' || role === 'iframe') node.id = 0;
      into.push(node);
      if (role === 'iframe') { frame(el, node, depth); return; }
      if (LEAVES.has(role) && role !== 'listbox') { if (tag !== 'CANVAS') return; }
      if (role === 'listbox' && tag === 'SELECT') return;
      content(el, node.kids, named || (NAMED_BY_CONTENT.has(role) && name !== ''), depth, false);
    };
    // `named`: the text is already in the name of an ancestor; actionable elements are still listed.
    const content = (el, into, named, depth, invisible) => {
      for (const child of childrenOf(el)) {
        if (child.nodeType === 1) visit(child, into, named, depth + 1);
        else if (child.nodeType === 3 && !named && !invisible) into.push(child.data);
      }
    };
    const frame = (el, node, depth) => {
      let body = null;
      try { body = el.contentDocument?.body; } catch { /* of another site */ }
      if (body) visit(body, node.kids, false, depth + 1);
      else node.name = `${node.name} (of another site)`.trim();
    };
    const kids = [];
    visit(root, kids, false, 0);
    return kids;
  };

  // Joins pieces of text to lines; null is a break.
  const joined = kids => {
    const lines = [];
    let text = '';
    const flush = () => { const line = squeeze(text); if (line) lines.push(line); text = ''; };
    for (const kid of kids) {
      if (typeof kid === 'string') text += kid;
      else { flush(); if (kid !== null) lines.push(kid); }
    }
    flush();
    return lines;
  };

  const lines = kids => {
    const out = [];
    const write = (nodes, depth, named) => {
      const pad = '  '.repeat(depth);
      for (const node of joined(nodes)) {
        if (typeof node === 'string') { out.push(`${pad}text: ${node}`); continue; }
        const {el, role, name, id} = node;
        const below = joined(node.kids);
        if (!id && FOLDED.has(role) && !name && below.length === 0) continue;
        if (role === 'paragraph' && below.length > 0) { write(node.kids, depth); continue; }
        if (role === 'row' && below.length && below.every(cell => typeof cell !== 'string' && ['cell', 'columnheader', 'rowheader',
          'gridcell'].includes(cell.role) && joined(cell.kids).every(kid => typeof kid === 'string'))) {
          const head = below.every(cell => cell.role === 'columnheader') ? 'header' : 'row';
          out.push(`${pad}${head}: ${below.map(cell => cell.name || joined(cell.kids).join(' ')).join(' | ')}`);
          continue;
        }
        const head = [id ? `[${id}] ${role}` : role, ...(name ? [quote(name)] : []), ...stateOf(el, role)].join(' ');
        if (FOLDED.has(role) && below.length === 1 && typeof below[0] === 'string') { out.push(`${pad}${head}: ${below[0]}`); continue; }
        if (['list', 'form', 'table', 'rowgroup'].includes(role) && !name && below.length === 0) continue;
        out.push(`${pad}${head}`);
        write(node.kids, depth + 1);
      }
    };
    write(kids, 0);
    return out;
  };

  const where = () => {
    const page = document.scrollingElement ?? document.documentElement;
    return {title: squeeze(document.title), scroll: [Math.round(scrollX), Math.round(scrollY)], viewport: [innerWidth, innerHeight],
      size: page ? [page.scrollWidth, page.scrollHeight] : [innerWidth, innerHeight]};
  };
  const tree = () => ({...where(), lines: document.body ? lines(build(document.body)) : []});

  const elements = () => {
    const found = [];
    const collect = nodes => {
      for (const node of nodes) if (node !== null && typeof node !== 'string') {
        if (node.id) {
          const box = boxOf(node.el), [left, top, width, height] = box;
          const visible = width > 0 && height > 0 && left < innerWidth && top < innerHeight && left + width > 0 && top + height > 0;
          found.push({id: node.id, role: node.role, name: node.name, state: stateOf(node.el, node.role), box, visible});
        }
        collect(node.kids);
      }
    };
    if (document.body) collect(build(document.body));
    return found;
  };
  const boxOf = el => {
    const box = el.getBoundingClientRect();
    let {left, top} = box;
    for (let view = el.ownerDocument.defaultView; view !== window && view?.frameElement; view = view.parent) {
      const frame = view.frameElement, outer = frame.getBoundingClientRect();
      left += outer.left + frame.clientLeft; top += outer.top + frame.clientTop;
    }
    return [left, top, box.width, box.height].map(Math.round);
  };

  const text = id => {
    const root = id === undefined || id === null ? document.body : element(id);
    if (!root && id) return null;
    const out = [];
    const read = (nodes, item) => {
      let row = item;
      for (const node of joined(nodes)) {
        if (typeof node === 'string') { out.push(`${row}${node}`); row = ''; continue; }
        const {el, role, name} = node;
        if (role === 'heading') { out.push('', `${'#'.repeat(/^H[1-6]$/.test(el.tagName) ? +el.tagName[1] : 2)} ${name}`, ''); continue; }
        if (role === 'row') { out.push(joined(node.kids).map(cell => squeeze(typeof cell === 'string' ? cell : contentName(cell.el))).join(' | ')); continue; }
        if (role === 'listitem') { read(node.kids, '- '); continue; }
        if (role === 'code') { out.push('', el.innerText.trimEnd(), ''); continue; }
        if (role === 'paragraph' || role === 'article' || role === 'table' || role === 'list') out.push('');
        if (role === 'paragraph') { out.push(`${row}${squeeze(contentName(el))}`, ''); row = ''; continue; }
        if (NAMED_BY_CONTENT.has(role) || role === 'img') { if (name) out.push(`${row}${name}`); row = ''; continue; }
        if (LEAVES.has(role)) { out.push(`${row}${[name, ...stateOf(el, role)].filter(Boolean).join(' ')}`); row = ''; continue; }
        read(node.kids, row); row = '';
      }
    };
    if (root) read(id ? [{el: root, role: '', name: '', kids: build(root).flatMap(node => node?.kids?.length ? node.kids : [node])}] : build(root), '');
    return {...where(), text: out.join('\n').replace(/\n{3,}/g, '\n\n').trim()};
  };

  const choice = (id, options) => {
    const el = element(id);
    if (el?.tagName !== 'SELECT') return {refused: `element ${id} is no list of options; click on it instead`};
    const indexes = [];
    for (const wanted of options) {
      const all = [...el.options], at = all.findIndex(each => squeeze(each.label) === squeeze(wanted));
      const index = at >= 0 ? at : all.findIndex(each => each.value === wanted);
      if (index < 0) return {refused: `element ${id} has no option ${JSON.stringify(wanted)}; it has: ${all.slice(0, MOST_OPTIONS).map(each => squeeze(each.label)).join(', ')}`};
      if (all[index].disabled) return {refused: `the option ${JSON.stringify(wanted)} is disabled`};
      indexes.push(index);
    }
    return {indexes};
  };

  const scroll = ([dx, dy]) => {
    const page = document.scrollingElement ?? document.documentElement;
    let at = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
    for (; at && at !== page && at !== document.body; at = at.parentElement) {
      const style = styleOf(at), before = [at.scrollLeft, at.scrollTop];
      if (!/auto|scroll/.test(style.overflowX + style.overflowY)) continue;
      at.scrollBy({left: dx, top: dy, behavior: 'instant'});
      if (at.scrollLeft !== before[0] || at.scrollTop !== before[1]) return {moved: true, ...where()};
    }
    const before = [scrollX, scrollY];
    window.scrollBy({left: dx, top: dy, behavior: 'instant'});
    return {moved: scrollX !== before[0] || scrollY !== before[1], ...where()};
  };

  return {tree, elements, text, where, element, choice, scroll};
})();
