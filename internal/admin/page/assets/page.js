// This script keeps the live page up to date. The server has rendered the page, and the script writes the
// same texts from the stream of snapshots. A function of figures.go, keys.go or rules.go has the same name here.
'use strict';

const byId = id => document.getElementById(id);
const known = v => v === null || v === undefined ? 0 : v;
const isKnown = v => v !== null && v !== undefined;
const sum = points => (points || []).reduce((total, v) => total + known(v), 0);
const roundHalfUp = x => Math.floor(x + 0.5);

// setText and setAttribute write only what has changed, so that they disturb no selection and no screen reader.
function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}
function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
function field(row, name) { return row.querySelector('[data-' + name + ']'); }

// ---- Formats

const thinSpace = '\u202f';

function formatNumber(x) {
  if (!(x > 0)) return '0';
  if (x < 0.005) return '<0.01';
  if (x < 9.995) return formatDecimals(x, 2);
  if (x < 99.95) return formatDecimals(x, 1);
  let unit = 1;
  while (x / unit >= 999.5) unit *= 10;
  return formatCount(Math.floor(x / unit + 0.5) * unit);
}
function formatDecimals(x, decimals) {
  const scale = 10 ** decimals;
  return (Math.floor(x * scale + 0.5) / scale).toFixed(decimals).replace(/\.?0+$/, '');
}
function formatCount(n) { return String(n).replace(/\B(?=(\d{3})+$)/g, ','); }
function counted(n, noun) { return formatCount(n) + ' ' + noun + (n === 1 ? '' : 's'); }
function formatRate(v) { return isKnown(v) ? formatNumber(v) : '–'; }
function formatShare(v) { return isKnown(v) ? formatNumber(v * 100) + thinSpace + '%' : '–'; }
function formatSeconds(v) {
  if (!isKnown(v)) return ['–', ''];
  if (v < 0.0009995) return [formatNumber(v * 1e6), 'µs'];
  if (v < 0.9995) return [formatNumber(v * 1e3), 'ms'];
  return [formatNumber(v), 's'];
}
function formatDuration(v) {
  const [value, unit] = formatSeconds(v);
  return unit ? value + thinSpace + unit : value;
}

// Times are local, with UTC on hover. A time of another day has its date.
const clockFormat = new Intl.DateTimeFormat(undefined, {hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23'});
const minuteFormat = new Intl.DateTimeFormat(undefined, {hour: '2-digit', minute: '2-digit', hourCycle: 'h23'});
const dayFormat = new Intl.DateTimeFormat(undefined, {month: 'short', day: 'numeric'});
function formatClock(date) {
  const isOtherDay = date.toDateString() !== new Date().toDateString();
  return (isOtherDay ? dayFormat.format(date) + ' ' : '') + clockFormat.format(date);
}
function setTime(element, stamp) {
  const date = new Date(stamp);
  setText(element, formatClock(date));
  setAttribute(element, 'datetime', stamp);
  setAttribute(element, 'title', date.toISOString().slice(0, 19).replace('T', ' ') + ' UTC');
}
// timeNode returns an element with a time.
function timeNode(stamp) {
  const e = document.createElement('time');
  setTime(e, stamp);
  return e;
}
function localTimes(root) {
  for (const e of root.querySelectorAll('time[datetime]')) setTime(e, e.getAttribute('datetime'));
}

// ---- Sparks

const sparkHeight = 40;
const pointCount = f => Math.max(Math.floor(300 / Math.max(f.step_seconds, 1)), 2);

const sparks = new WeakMap(); // the values of each spark
function setSpark(svg, name, f, format, points, denied) {
  const values = [...points || [], ...denied || []].filter(isKnown);
  const highest = Math.max(0, ...values), scale = values.length ? 'highest ' + format(highest) : 'no values';
  sparks.set(svg, {f, format, points, denied});
  setAttribute(svg, 'aria-label', name + ' in the last five minutes: ' + scale);
  setText(svg.nextElementSibling?.querySelector('[data-scale]'), scale);
  setAttribute(svg, 'viewBox', `0 0 ${pointCount(f) - 1} ${sparkHeight}`);
  setAttribute(svg.querySelector('.floor'), 'd', `M0 39.500H${pointCount(f) - 1}`);
  setAttribute(field(svg, 'line'), 'd', sparkLine(points || [], f, highest));
  setAttribute(field(svg, 'denied-line'), 'd', sparkLine(denied || [], f, highest));
}
function sparkLine(points, f, highest) {
  if (highest === 0 || sum(points) === 0) return '';
  let path = '', x = pointCount(f) - points.length, lastY = 0, isInLine = false;
  for (const v of points) {
    const y = sparkHeight - 1 - roundHalfUp(known(v) / highest * (sparkHeight - 4));
    if (isKnown(v)) path += isInLine ? ` 1 ${y - lastY}` : `M${x} ${y}h.1l0 0`;
    isInLine = isKnown(v);
    lastY = y;
    x++;
  }
  return path;
}

// showReadout shows the time and the value of the spark under the pointer.
function showReadout(event) {
  const svg = event.target.closest?.('.spark'), spark = svg && sparks.get(svg), readout = byId('readout'), cursor = byId('cursor');
  readout.hidden = cursor.hidden = !spark;
  if (!spark) return;
  const {f, format, points, denied} = spark, box = svg.getBoundingClientRect(), last = pointCount(f) - 1;
  const age = last - Math.min(Math.max(Math.round((event.clientX - box.left) / box.width * last), 0), last);
  const value = list => format(list[list.length - 1 - age]);
  const text = points && denied ? `OK ${value(points)}, denied ${value(denied)}` : value(points || denied);
  setText(readout, formatClock(new Date(new Date(snapshot.time) - age * f.step_seconds * 1000)) + ' · ' + text);
  const x = box.right - age / last * box.width, half = readout.offsetWidth / 2;
  readout.style.left = Math.min(Math.max(x, half), document.documentElement.clientWidth - half) + 'px';
  readout.style.top = cursor.style.top = box.top + 'px';
  cursor.style.left = x + 'px';
  cursor.style.height = box.height + 'px';
}

// ---- State and figures

function showState(s) {
  const section = byId('state');
  if (section.dataset.level !== s.state.level) setText(byId('announcement'), s.state.headline);
  setAttribute(section, 'data-level', s.state.level);
  setText(byId('headline'), s.state.headline);
  const title = `${s.state.headline} · rls ${s.instance}`;
  if (document.title !== title) document.title = title;
  const list = byId('details');
  s.state.details.forEach((text, i) => setText(list.children[i] || list.appendChild(document.createElement('li')), text));
  while (list.children.length > s.state.details.length) list.lastChild.remove();
}

const highest = x => [...x.points, x.now].reduce((a, b) => isKnown(b) && !(a >= b) ? b : a, null);
const hadTraffic = x => sum(x.points) + known(x.now) > 0;
function showFigure(id, value, unit, second, points, denied, name, format, f) {
  const figure = byId('figure-' + id);
  setText(field(figure, 'value'), value);
  setText(field(figure, 'unit'), unit);
  setText(field(figure, 'second'), second);
  setSpark(figure.querySelector('svg'), name, f, format, points, denied);
}
function showFigures(s) {
  const f = s.figures, share = f.denied_share.now, calls = f.calls.now;
  showFigure('calls', formatRate(calls), '/s', formatRate(f.errors.now), f.calls.points, null, 'Calls per second', formatRate, f);
  showFigure('denied', isKnown(share) ? formatNumber(share * 100) : '–', '%', isKnown(share) && isKnown(calls) ? formatNumber(share * calls) : '–',
    null, f.denied_share.points, 'Denied share of the calls', formatShare, f);
  field(byId('figure-denied'), 'value').className = share > 0 ? 'hot' : '';
  setText(byId('process'), `Given up ${formatRate(f.given_up.now)}/s · refused ${formatRate(f.refused.now)}/s · ${s.state.redis ? `slowest of Redis ${formatDuration(highest(f.redis_max_seconds))} · ` : ''}CPU ${formatRate(f.cpu.now)} of ${counted(s.process.cores, 'core')} · memory ${formatNumber(s.process.memory_bytes / 1e6)}${thinSpace}MB · ${counted(s.process.connections, 'connection')} of clients`);
  for (const [id, p50, p99] of [['duration', f.p50_seconds, f.p99_seconds], ['redis', f.redis_p50_seconds, f.redis_p99_seconds]]) {
    const figure = byId('figure-' + id);
    if (!figure) continue; // Redis is not in use
    const away = id === 'redis' && s.state.redis && !s.state.redis.up;
    showFigure(id, ...(away ? ['away', ''] : formatSeconds(p50.now)), away ? formatRate(f.without_redis.now) : formatDuration(p99.now),
      p50.points, null, figure.querySelector('h2').textContent, formatDuration, f);
    setText(figure.querySelector('.second span'), away ? 'decided here/s' : 'p99');
    field(figure, 'value').className = away ? 'failed' : '';
  }
}

// ---- Rules

const maxRows = 200;
const separator = ' > ';
const reorderPause = 10000; // ms; rows keep their order for this time, so that people can read them
const query = new URLSearchParams(location.search);
const choice = {
  filter: query.get('filter') || '',
  sort: ['ok', 'use', 'rule'].includes(query.get('sort')) ? query.get('sort') : 'denied',
  quiet: query.get('quiet') === 'show',
};
let foundRules = {rules: [], more: 0}; // rules that the filter finds, or quiet rules; loaded when the user asks for them
let orderTime = 0; // when the rows last got a new order

function treeRows(rules) {
  const byPath = new Map();
  for (const rule of rules) if (!byPath.has(rule.path)) byPath.set(rule.path, {rule, path: rule.path, index: byPath.size, children: []});
  const root = {path: '', index: 0, children: []};
  for (const branch of byPath.values()) {
    let parent = null, path = branch.path, end;
    while (!parent && (end = path.lastIndexOf(separator)) >= 0) {
      path = path.slice(0, end);
      parent = byPath.get(path);
    }
    (parent || root).children.push(branch);
  }
  const sortBranch = branch => {
    for (const child of branch.children) {
      sortBranch(child);
      branch.index = Math.min(branch.index, child.index);
    }
    branch.children.sort((a, b) => a.index - b.index);
  };
  sortBranch(root);
  const rows = [];
  const append = (branch, depth) => {
    for (const child of branch.children) {
      const rest = branch.path ? child.path.slice(branch.path.length + separator.length) : child.path;
      const end = rest.lastIndexOf(separator);
      const start = end < 0 ? 0 : end + separator.length;
      rows.push({rule: child.rule, depth, above: rest.slice(0, start), label: rest.slice(start)});
      append(child, Math.min(depth + 1, 4));
    }
  };
  append(root, 0);
  return rows;
}

// sortRules sorts rules as the user chooses. By default, rules stay in the order of the snapshot: by denied hits.
function sortRules(rules, sort) {
  switch (sort) {
    case 'ok': return rules.sort((a, b) => sum(b.ok_points) - sum(a.ok_points));
    case 'use': return rules.sort((a, b) => known(b.use) - known(a.use));
    case 'rule': return rules.sort((a, b) => a.path < b.path ? -1 : a.path > b.path ? 1 : 0);
  }
  return rules;
}

function chosenRules(s) {
  let rules = s.rules.shown;
  if (choice.quiet || choice.filter) {
    const shown = new Set(rules.map(r => r.path));
    rules = rules.concat(foundRules.rules.filter(r => !shown.has(r.path)));
  }
  const filter = choice.filter.toLowerCase();
  const contains = r => [r.path, ...r.limits.map(l => l.text)].some(text => text.toLowerCase().includes(filter));
  return treeRows(sortRules(rules.filter(contains), choice.sort));
}

function address(changes) {
  const c = {...choice, ...changes}, q = new URLSearchParams();
  if (c.filter) q.set('filter', c.filter);
  if (c.quiet) q.set('quiet', 'show');
  if (c.rule) q.set('rule', c.rule);
  if (c.sort !== 'denied') q.set('sort', c.sort);
  return (q.size ? '/?' + q : '/') + '#rules';
}

function showRules(s, now) {
  const body = byId('rules-body');
  const all = chosenRules(s), rows = all.slice(0, maxRows);
  const canReorder = now || !body.children.length || (Date.now() - orderTime > reorderPause && !body.matches(':hover, :focus-within'));
  const current = new Map([...body.children].filter(tr => tr.dataset.path !== undefined).map(tr => [tr.dataset.path, tr]));
  const wanted = new Set(rows.map(r => r.rule.path));
  if (canReorder) {
    orderTime = Date.now();
    for (const [path, tr] of current) {
      if (wanted.has(path)) continue;
      closeRule(tr);
      tr.remove();
      current.delete(path);
    }
  }
  let last = null; // the row of the previous rule
  for (const row of rows) {
    let tr = current.get(row.rule.path);
    const isNew = !tr;
    if (isNew) {
      tr = byId('rule-template').content.firstElementChild.cloneNode(true);
      tr.dataset.path = row.rule.path;
    }
    fillRule(tr, row, s);
    if (isNew || canReorder) {
      const next = last ? rowAfter(last) : body.firstElementChild;
      if (next !== tr) {
        const details = opened(tr);
        body.insertBefore(tr, next);
        if (details) tr.after(details);
      }
    }
    last = tr;
  }
  byId('rules-table').hidden = !body.children.length;
  setText(byId('rules-count'), `${formatCount(s.rules.shown.length + s.rules.more)} of ${formatCount(s.rules.total)} with traffic`);
  const more = all.length - rows.length + (choice.quiet || choice.filter ? foundRules.more : s.rules.more);
  byId('rules-more').hidden = more <= 0;
  setText(byId('rules-more'), more > 0 ? counted(more, 'more rule') + '. The filter finds all rules.' : '');
  byId('rules-quiet').hidden = !s.rules.quiet || choice.filter !== '';
  const toggle = byId('quiet-toggle');
  setText(toggle, choice.quiet ? 'Hide quiet rules' : 'Show ' + counted(s.rules.quiet, 'quiet rule'));
  setAttribute(toggle, 'href', address({quiet: !choice.quiet}));
  const hint = byId('hint');
  if (!hint) return;
  if (s.rules.shown.length) hint.hidden = true;
  if (hint.dataset.idle !== undefined && hadTraffic(s.figures.calls)) {
    setText(hint.firstElementChild, 'Calls arrive, but no limit has counted a hit in the last five minutes.');
    hint.querySelector('.command')?.remove();
  }
}

// rowAfter returns the row after tr and after the details of tr.
function rowAfter(tr) { return (opened(tr) || tr).nextElementSibling; }
function opened(tr) {
  const next = tr.nextElementSibling;
  return next && next.classList.contains('opened') ? next : null;
}

function fillRule(tr, row, s) {
  const r = row.rule, link = tr.querySelector('a');
  setAttribute(tr, 'class', 'depth-' + row.depth);
  setAttribute(link, 'title', r.path);
  setAttribute(link, 'href', address({rule: r.path}));
  setText(tr.querySelector('.above'), row.above);
  setText(tr.querySelector('.own'), row.label);
  setList(field(tr, 'marks'), marks(r), (r.marks || []).map(m => 'mark mark-' + m));
  const limits = r.limits.map(l => l.text);
  setText(field(tr, 'short'), limits.filter(text => text).join(', '));
  setList(field(tr, 'limits'), limits);
  setList(field(tr, 'algorithms'), r.limits.map(l => l.algorithm || ''));
  for (const [name, hot] of [['ok'], ['near'], ['denied', ' hot'], ['shadow', ' shadow']]) {
    const cell = field(tr, name);
    setText(cell, formatRate(r[name]));
    const base = 'c-rate ' + (name === 'near' || name === 'shadow' ? `c-${name} ` : '') + 'number ';
    setAttribute(cell, 'class', base + (r[name] > 0 ? (hot || '').trim() : 'zero'));
  }
  setText(field(tr, 'use'), formatShare(r.use));
  const bar = tr.querySelector('.bar');
  setAttribute(field(bar, 'fill'), 'width', Math.min(Math.max(roundHalfUp(known(r.use) * 100), 0), 100));
  setAttribute(bar.parentElement, 'class', known(r.use) >= 1 ? 'use full' : 'use');
  setSpark(tr.querySelector('.spark'), 'OK and denied hits per second', s.figures, formatRate, r.ok_points, r.denied_points);
}
function setList(parent, texts, classes) {
  texts.forEach((text, i) => {
    const item = parent.children[i] || parent.appendChild(document.createElement('span'));
    if (classes) item.className = classes[i];
    setText(item, text);
  });
  while (parent.children.length > texts.length) parent.lastElementChild.remove();
}
function marks(r) {
  return (r.marks || []).map(m => ['override', 'off'].includes(m) && r.override?.until ? m + ' until ' + minuteFormat.format(new Date(r.override.until)) : m);
}

// fetchPart loads the details of a rule. The server writes them.
async function fetchPart(tr) {
  const response = await fetch('/?part=rule&rule=' + encodeURIComponent(tr.dataset.path)).catch(() => null);
  if (!response?.ok || tr.querySelector('a').getAttribute('aria-expanded') !== 'true') return;
  const holder = document.createElement('template');
  holder.innerHTML = '<table>' + await response.text() + '</table>'; // escaped by the server
  const details = holder.content.querySelector('tr');
  localTimes(details);
  const old = opened(tr);
  if (!old) tr.after(details);
  else if (!old.matches(':hover, :focus-within') && old.innerHTML !== details.innerHTML) old.replaceWith(details);
}
function closeRule(tr) {
  setAttribute(tr.querySelector('a'), 'aria-expanded', 'false');
  opened(tr)?.remove();
}
function toggleRule(event) {
  const tr = event.target.closest('tr'), link = event.target.closest('.c-rule a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.getAttribute('aria-expanded') === 'true') return closeRule(tr);
  link.setAttribute('aria-expanded', 'true');
  fetchPart(tr);
}

async function findRules() {
  if (!choice.quiet && !choice.filter) return;
  const filter = choice.filter;
  const response = await fetch('/live/rules?filter=' + encodeURIComponent(filter)).catch(() => null);
  if (!response?.ok || filter !== choice.filter) return;
  foundRules = await response.json();
  if (snapshot) showRules(snapshot, true);
}

function choose(changes) {
  Object.assign(choice, changes);
  history.replaceState(null, '', address({}));
  for (const link of document.querySelectorAll('[data-sort]')) {
    const th = link.closest('th');
    if (link.dataset.sort !== choice.sort) th.removeAttribute('aria-sort');
    else th.setAttribute('aria-sort', choice.sort === 'rule' ? 'ascending' : 'descending');
    link.href = address({sort: link.dataset.sort});
  }
  if (snapshot) showRules(snapshot, true);
  findRules();
}

// ---- Keys, changes, overrides

function readableText(part) {
  let text;
  try { text = decodeURIComponent(part); } catch { return part; }
  return /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u.test(text.replaceAll('\u200d', '')) ? part : text;
}
// keyAddress returns the address of explain for a key, or null if the key is a hash.
function keyAddress(key) {
  const escape = (text, pattern) => decodeURIComponent(text).replace(pattern, '\\$&');
  try {
    const [domain, ...entries] = key.split('|');
    const descriptor = entries.map(e => {
      const cut = e.indexOf('=');
      return escape(e.slice(0, cut), /[\\,=]/g) + '=' + escape(e.slice(cut + 1), /[\\,]/g);
    }).join(',');
    return '/?' + new URLSearchParams({descriptor, domain}) + '#explain';
  } catch { return null; }
}
const maxLimitedKeys = 8;
function showLimited(s) {
  const isOff = s.state.shadow_mode || s.keys.mode === 'off';
  const all = isOff ? [] : s.keys.denied.filter(k => k.limited_since), body = byId('limited-body');
  setText(byId('limited-note'), s.state.shadow_mode ? 'No key: the whole service is in shadow mode'
    : s.keys.mode === 'off' ? 'Keys are off. The table of rules begins with the rules that deny most'
    : !all.length ? 'No key is limited' : all.length > maxLimitedKeys ? 'The most denied keys. Most denied, below, has more' : counted(all.length, 'key'));
  fillRows(body, all.slice(0, maxLimitedKeys), 'limited', (tr, k) => {
    fillKeyName(tr, k, s.keys.mode);
    setText(field(tr, 'limit'), k.limit);
    setText(field(tr, 'rate'), formatRate(k.denied_rate));
    setTimeCell(field(tr, 'since'), k.limited_since);
    const passesNow = k.passes_at && new Date(k.passes_at) <= new Date(s.time);
    setTimeCell(field(tr, 'passes'), passesNow ? null : k.passes_at, passesNow ? 'now' : 'never: more hits than the limit');
  });
  byId('limited-table').hidden = !all.length;
}
function setTimeCell(cell, stamp, otherwise) {
  if (!stamp) return setText(cell, otherwise);
  if (!cell.firstElementChild) cell.replaceChildren(timeNode(stamp));
  else setTime(cell.firstElementChild, stamp);
}
// fillRows gives body one row for each item. The template NAME-template has an empty row.
function fillRows(body, items, name, fill) {
  items.forEach((item, i) => fill(body.children[i] || body.appendChild(byId(name + '-template').content.firstElementChild.cloneNode(true)), item));
  while (body.children.length > items.length) body.lastElementChild.remove();
}
function keysNote(k) {
  const notes = [];
  if (k.mode === 'off') notes.push('Off');
  if (k.mode === 'hashed' && !k.hidden) notes.push('Hashes instead of values, by the settings');
  if (k.mode !== 'off' && isKnown(k.sampled_share) && k.sampled_share < 1) notes.push(`From ${formatShare(k.sampled_share)} of the decisions`);
  return notes.join(' · ');
}
function showKeys(s) {
  setText(byId('keys-note'), keysNote(s.keys));
  for (const e of document.querySelectorAll('[data-hidden-note]')) e.hidden = !s.keys.hidden;
  const f = s.figures, u = f.unmatched;
  byId('unmatched').hidden = !hadTraffic(u);
  setText(byId('unmatched-note'), 'No rule limits ' + formatRate(u.now) + ' descriptors per second, so they pass.');
  setSpark(byId('unmatched').querySelector('.spark'), 'Descriptors without a rule per second', f, formatRate, u.points);
  for (const [id, keys, rate] of [['hottest', s.keys.hottest, 'rate'], ['most-denied', s.keys.denied, 'denied_rate'], ['unmatched-keys', s.keys.unmatched, 'rate'], ['callers', s.keys.callers]]) {
    fillRows(byId(id).querySelector('tbody'), keys, 'key', rate ? (tr, k) => fillKey(tr, k, k[rate], s.keys.mode, id === 'unmatched-keys' && k.limit) : fillCaller);
    field(byId(id), 'empty').hidden = keys.length > 0;
    byId(id).querySelector('thead').hidden = !keys.length;
  }
}
function fillKey(tr, k, rate, mode, reason) {
  fillKeyName(tr, k, mode);
  setText(field(tr, 'rate'), formatRate(rate));
  setText(field(tr, 'share'), formatShare(k.share));
  setText(field(tr, 'used'), reason ? reason : usedText(k));
}
function usedText(k) {
  const text = isKnown(k.spent) && isKnown(k.capacity) ? `${formatCount(k.spent)} of ${formatCount(k.capacity)}${k.is_share ? ' here' : ''}` : '–';
  return text + (k.shadow ? ', shadow' : '');
}
function fillCaller(tr, k) {
  fillKey(tr, k, k.rate, 'hashed', formatRate(k.denied_rate));
}
function fillKeyName(tr, k, mode) {
  const text = mode === 'on' ? k.key.split('|').slice(1).map(readableText).join(', ') : k.key;
  setText(field(tr, 'text'), text);
  setAttribute(field(tr, 'title'), 'title', text);
  const href = mode === 'on' && keyAddress(k.key);
  if (href) setAttribute(field(tr, 'key'), 'href', href);
  setText(field(tr, 'rule'), k.rule);
}

function showChanges(s) {
  const list = byId('changes'), newest = Number(list.firstElementChild?.dataset.id || 0);
  for (const e of s.events.filter(e => e.id > newest).reverse()) {
    const item = byId('change-template').content.firstElementChild.cloneNode(true);
    item.dataset.id = e.id;
    item.className = e.failed ? 'failed' : '';
    setTime(item.querySelector('time'), e.time);
    setText(item.querySelector('.kind'), e.kind);
    setText(field(item, 'text'), e.text);
    for (const a of e.attrs || []) {
      field(item, 'attrs').appendChild(document.createElement('dt')).textContent = a.name;
      const isTime = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(a.value), node = isTime ? timeNode(a.value) : document.createElement('bdi');
      if (!isTime) node.textContent = a.value;
      field(item, 'attrs').appendChild(document.createElement('dd')).append(node);
    }
    list.prepend(item);
  }
  const ids = new Set(s.events.map(e => String(e.id))); // a repeated event replaces the event before
  for (const item of [...list.children]) if (!ids.has(item.dataset.id)) item.remove();
  const l = s.state.limits;
  setText(byId('limits-note'), l.loaded ? `${counted(l.rules, 'rule')} in ${counted(l.domains.length, 'domain')}, from ${l.source}` + (l.hash ? ', hash ' + l.hash.slice(0, 8) : '') : 'No limits in force');
}

let shownOverrides = '';
function showOverrides(s) {
  const o = s.overrides, text = JSON.stringify(o);
  if (text === shownOverrides) return;
  shownOverrides = text;
  setText(byId('overrides-note'), !o.enabled ? 'Off' : !o.shown.length ? 'None' : o.more ? formatCount(o.more) + ' more; rls limits show --changes shows all' : formatCount(o.shown.length));
  byId('overrides-table').hidden = !o.shown.length;
  byId('overrides').replaceChildren(...o.shown.map(x => {
    const tr = byId('override-template').content.firstElementChild.cloneNode(true);
    setText(field(tr, 'target'), x.target);
    setText(field(tr, 'limits'), x.limits || '');
    setText(field(tr, 'base'), 'instead of ' + x.base_limits);
    field(tr, 'base').hidden = !x.base_limits;
    setText(field(tr, 'problem'), `${x.state}: ${x.problem || ''}`);
    field(tr, 'problem').hidden = !x.problem;
    setText(field(tr, 'author'), x.author || '');
    if (x.set) field(tr, 'set').replaceChildren(timeNode(x.set));
    if (x.until) field(tr, 'until').replaceChildren(timeNode(x.until));
    return tr;
  }));
}

// ---- The stream of snapshots

const maxSilence = 5000; // ms; after this time without a snapshot, the connection counts as lost
let snapshot = null;
let received = Date.now();
let refusal = '';
let source = null;

function show(s) {
  snapshot = s;
  showState(s);
  showLimited(s);
  showFigures(s);
  showRules(s, false);
  showKeys(s);
  showChanges(s);
  showOverrides(s);
  setTime(byId('figures-time').firstElementChild, s.time);
}

function connect() {
  source = new EventSource('/live/stream');
  source.addEventListener('snapshot', event => {
    received = Date.now();
    refusal = '';
    show(JSON.parse(event.data));
    checkConnection();
  });
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
    setTimeout(connect, maxSilence);
    const abort = new AbortController();
    try {
      const response = await fetch('/live/stream', {signal: abort.signal});
      refusal = response.ok ? '' : (await response.text()).trim();
    } catch { refusal = ''; }
    abort.abort();
    checkConnection();
  };
}

function checkConnection() {
  const notice = byId('connection');
  const lost = refusal !== '' || Date.now() - received > maxSilence;
  if (lost) setText(notice, `Figures of ${byId('figures-time').textContent}, trying again.` + (refusal ? ' ' + refusal : ''));
  if (notice.hidden !== !lost) {
    notice.hidden = !lost;
    document.body.classList.toggle('stale', lost);
    setText(byId('announcement'), lost ? notice.textContent : 'Connected again');
  }
}

// ---- Live decisions

const maxDecisions = 100;
const feed = {abort: null, visible: false, paused: false, hovered: false, waiting: [], missed: 0};

function showDecision(d) {
  const tr = byId('decision-template').content.firstElementChild.cloneNode(true);
  setTime(field(tr, 'time'), d.time);
  const denied = d.code === 'OVER_LIMIT';
  setText(field(tr, 'code'), d.code === 'ERROR' ? '⚠ error' : denied ? (d.shadow ? '◌ shadow' : '✕ denied') : '✓ OK');
  field(tr, 'code').className = 'c-code' + (denied ? d.shadow ? ' shadow' : ' hot' : d.code === 'ERROR' ? ' failed' : '');
  const text = (d.descriptor || []).map(e => visible(e.key) + '=' + visible(e.value)).join(', ');
  setText(field(tr, 'descriptor'), text);
  field(tr, 'descriptor').title = text;
  setText(field(tr, 'rule'), d.error || d.rule || 'no rule in ' + visible(d.domain));
  setText(field(tr, 'limit'), d.limit || '–');
  setText(field(tr, 'left'), d.limit && !d.error ? formatCount(d.remaining) : '–');
  setText(field(tr, 'source'), (d.source || '–') + (d.reason ? ` (${d.reason})` : ''));
  field(tr, 'source').title = d.caller ? 'from ' + visible(d.caller) : '';
  setText(field(tr, 'took'), formatDuration(d.duration_us / 1e6));
  return tr;
}
// visible replaces each invisible character, and each character that changes the direction of text, by \u{…}.
function visible(text) {
  return (text || '').replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, c => c === '\u200d' ? c : '\\u{' + c.codePointAt(0).toString(16) + '}');
}

function showDecisions() {
  if (feed.paused || feed.hovered || !feed.waiting.length) return noteDecisions();
  const body = byId('decisions');
  body.prepend(...feed.waiting.splice(0).reverse().map(showDecision));
  while (body.children.length > maxDecisions) body.lastElementChild.remove();
  noteDecisions();
}
function noteDecisions(problem) {
  if (problem) feed.problem = problem;
  const stopped = feed.paused ? 'Paused' : feed.hovered ? 'Paused under the pointer' : '';
  setText(byId('decisions-note'), feed.problem || stopped || (feed.missed ? `Newest first; ${formatCount(feed.missed)} more were too many to show` : byId('decisions').children.length ? 'Newest first' : 'Waiting for a decision'));
}

async function readDecisions() {
  feed.abort?.abort();
  feed.abort = null;
  if (!feed.visible || feed.paused || document.hidden) return;
  const abort = feed.abort = new AbortController();
  const q = new URLSearchParams([...new FormData(byId('decisions-form'))].filter(([, value]) => value));
  q.set('per_second', 20);
  try {
    const response = await fetch('/decisions?' + q, {signal: abort.signal});
    if (!response.ok) {
      const reason = (await response.text()).trim();
      if (byId('decisions-sign-in')) byId('decisions-sign-in').hidden = response.status !== 401;
      noteDecisions(response.status === 401 || response.status === 403 ? reason + '. rls tail shows live decisions in a terminal.' : reason);
      return;
    }
    feed.problem = '';
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (!line.trim()) continue;
        const d = JSON.parse(line);
        if (d.dropped !== undefined) feed.missed += d.dropped;
        else feed.waiting.push(d);
      }
      feed.missed += Math.max(feed.waiting.length - maxDecisions, 0);
      feed.waiting = feed.waiting.slice(-maxDecisions);
    }
  } catch { /* closed here, or the server went away */ }
  if (feed.abort === abort) setTimeout(readDecisions, 2000);
}

// ---- Start

function listen() {
  byId('rules-body').addEventListener('click', toggleRule);
  document.addEventListener('pointermove', showReadout);
  document.addEventListener('scroll', showReadout);
  byId('rules-form').addEventListener('submit', event => event.preventDefault());
  byId('filter').addEventListener('input', event => choose({filter: event.target.value.trim()}));
  byId('quiet-toggle').addEventListener('click', event => {
    event.preventDefault();
    choose({quiet: !choice.quiet});
  });
  for (const link of document.querySelectorAll('[data-sort]')) {
    link.addEventListener('click', event => {
      event.preventDefault();
      choose({sort: link.dataset.sort});
    });
  }
  const copy = byId('copy');
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener('click', async () => {
      await navigator.clipboard.writeText(byId('hint-command').textContent);
      setText(byId('announcement'), 'Copied');
      copy.textContent = 'Copied';
    });
  }

  const box = byId('decisions-box'), form = byId('decisions-form');
  box.hidden = form.hidden = false;
  noteDecisions();
  const restart = () => {
    feed.waiting = [];
    feed.missed = 0;
    feed.problem = '';
    byId('decisions').replaceChildren();
    readDecisions();
  };
  let pause; // waits for the end of typing, so that not every letter starts a new connection
  form.addEventListener('input', () => {
    clearTimeout(pause);
    pause = setTimeout(restart, 300);
  });
  form.addEventListener('submit', event => event.preventDefault());
  byId('decisions-pause').addEventListener('click', event => {
    feed.paused = !feed.paused;
    event.target.setAttribute('aria-pressed', feed.paused);
    event.target.textContent = feed.paused ? 'Go on' : 'Pause';
    noteDecisions();
    readDecisions();
  });
  box.addEventListener('pointerenter', () => { feed.hovered = true; noteDecisions(); });
  box.addEventListener('pointerleave', () => { feed.hovered = false; showDecisions(); });
  new IntersectionObserver(entries => {
    feed.visible = entries[entries.length - 1].isIntersecting;
    readDecisions();
  }).observe(byId('decisions-section'));
  document.addEventListener('visibilitychange', readDecisions);
}

localTimes(document);
listen();
connect();
findRules();
setInterval(() => {
  checkConnection();
  showDecisions();
}, 500);
setInterval(async () => {
  for (const link of document.querySelectorAll('.c-rule a[aria-expanded="true"]')) fetchPart(link.closest('tr'));
  for (const part of ['replicas', 'quotas']) {
    const response = await fetch(`/?part=${part}`).catch(() => null), section = byId(part);
    if (!response?.ok) return;
    // The server has escaped the text.
    section.innerHTML = await response.text();
    localTimes(section);
  }
}, 5000);
