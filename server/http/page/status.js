"use strict";
// The operator's view: what /metrics and /status/errors say now, and rates over what this page has seen of them.
// Behind an ingress over several servers both tell them apart by `replica`.

const $ = (id) => document.getElementById(id);
const EVERY = 2000; // milliseconds between two looks
const WINDOW = 60_000; // how far back a rate reaches
const GOOD = new Set(["stop", "length", "abort"]); // of request_success_total: all others are codes of errors
const STATES = ["up", "starting", "down", "failing"];

let looks = []; // [{at, counts}], the oldest first
let children = new Map(); // by name: {state, started, replaced}
let shown = null; // the last look, which a change of language draws again
let timer = 0;

// ---- reading ----

/** The lines of /metrics by name, without the prefix: [{labels, value}]. */
function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const parts = line.match(/^(?:pixelferry:)?(\w+)(?:\{(.*)\})? (\S+)$/);
    if (!parts) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1]).push({ labels, value: Number(parts[3]) });
  }
  return found;
}

/** The sum of a metric over all labels, or over those that `where` takes. */
function sum(metrics, name, where = () => true) {
  return (metrics.get(name) ?? []).filter((one) => where(one.labels)).reduce((all, one) => all + one.value, 0);
}

/** The ids of the replicas whose metrics these are; none of a server alone. */
function replicasOf(metrics) {
  return (metrics.get("ready") ?? []).map((one) => one.labels.replica).filter(Boolean).sort();
}

function countsOf(metrics) {
  return {
    requests: sum(metrics, "request_success_total"),
    errors: sum(metrics, "request_success_total", (labels) => !GOOD.has(labels.finished_reason)),
    tokens: sum(metrics, "generation_tokens_total"),
    prefixQueries: sum(metrics, "prefix_cache_queries_total"),
    prefixHits: sum(metrics, "prefix_cache_hits_total"),
    mediaQueries: sum(metrics, "mm_cache_queries_total"),
    mediaHits: sum(metrics, "mm_cache_hits_total"),
  };
}

/** By how much a counter grew within the window, and in how many seconds; null before there are two looks. */
function grown(name) {
  if (looks.length < 2) return null;
  const [first, last] = [looks[0], looks.at(-1)];
  return { by: last.counts[name] - first.counts[name], seconds: (last.at - first.at) / 1000 };
}

// ---- numbers as people read them ----

const round = (number) => (number >= 100 ? number.toFixed(0) : number >= 10 ? number.toFixed(1) : number.toFixed(2));
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = n < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  return `${power ? round(n / 1024 ** power) : n} ${units[power]}`;
}

function duration(seconds) {
  if (seconds < 120) return say("seconds", { n: Math.max(0, Math.round(seconds)) });
  if (seconds < 7200) return say("minutes", { n: Math.round(seconds / 60) });
  return say("hours", { n: Math.round(seconds / 3600) });
}

function rate(name) {
  const growth = grown(name);
  return growth ? round(growth.by / growth.seconds) : "–";
}

function ratio(name, of) {
  const [part, whole] = [grown(name), grown(of)];
  return whole && whole.by > 0 ? percent(part.by / whole.by) : "–";
}

// ---- drawing ----

const SVG = "http://www.w3.org/2000/svg";

/** The rates between neighbouring looks as a line. */
function line(name) {
  const rates = looks.slice(1).map((one, i) => [
    one.at - looks.at(-1).at + WINDOW, (one.counts[name] - looks[i].counts[name]) / (one.at - looks[i].at),
  ]);
  const most = Math.max(...rates.map(([, height]) => height), 1e-9);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WINDOW} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const drawn = document.createElementNS(SVG, "polyline");
  drawn.setAttribute("points", rates.map(([x, height]) => `${x.toFixed(0)},${(96 - 92 * height / most).toFixed(1)}`).join(" "));
  svg.append(drawn);
  return svg;
}

/** Rows of texts into the body of a table. What stays the same is left alone, so that it can be selected. */
function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, i) => {
    const row = body.rows[i] ?? body.insertRow();
    texts.forEach((text, j) => {
      const cell = row.cells[j] ?? row.insertCell();
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}

/** The table of that name: when, what `cells` makes of each entry, and by which id the log has it. */
function list(name, entries, cells) {
  $(`no-${name}`).hidden = entries.length > 0;
  $(`some-${name}`).hidden = entries.length === 0;
  const style = { dateStyle: "short", timeStyle: "medium" };
  fill($(name), entries.map((one) => [
    new Date(one.time).toLocaleString(document.documentElement.lang, style), ...cells(one),
    one.replica ? `${one.id} · ${one.replica}` : one.id,
  ]));
}

/** "queue 1.93 · prefill 1.97 (encode 1.41)": stages in their order, with two of their parts. */
function stagesOf(stages) {
  const parts = { prepare: "worker_queue", prefill: "encode" };
  return Object.entries(stages).filter(([name]) => !name.includes(".")).map(([name, seconds]) => {
    const part = stages[`${name}.${parts[name]}`];
    return `${name} ${seconds.toFixed(2)}${part ? ` (${parts[name]} ${part.toFixed(2)})` : ""}`;
  }).join(" · ");
}

function tiles({ metrics }) {
  const waiting = (metrics.get("num_requests_waiting") ?? []).filter((one) => one.value > 0);
  const capacity = sum(metrics, "shm_bytes_capacity");
  const leased = sum(metrics, "shm_bytes", (labels) => labels.state === "leased");
  return [
    [say("ready"), say(sum(metrics, "ready") ? "yes" : "no")],
    [say("running"), `${sum(metrics, "num_requests_running")}`],
    [say("waiting"), `${sum(metrics, "num_requests_waiting")}`, waiting.map((one) => `${one.labels.place} ${one.value}`).join(" · ")],
    [`${say("requests")} ∗`, rate("requests"), line("requests")],
    [`${say("tokensOut")} ∗`, rate("tokens"), line("tokens")],
    [`${say("failed")} ∗`, ratio("errors", "requests")],
    [say("kv"), percent(sum(metrics, "kv_cache_usage_perc") / Math.max(1, replicasOf(metrics).length))],
    [say("leases"), bytes(leased), say("ofAll", { all: bytes(capacity) })],
    [say("encoder"), bytes(sum(metrics, "mm_cache_bytes"))],
    [`${say("prefixHits")} ∗`, ratio("prefixHits", "prefixQueries")],
    [`${say("mediaHits")} ∗`, ratio("mediaHits", "mediaQueries")],
    [say("restarts"), `${sum(metrics, "child_restarts_total")}`],
  ];
}

/** A row for each replica. */
function rowsOfReplicas({ metrics, now }) {
  return replicasOf(metrics).map((replica) => {
    const of = (labels) => labels.replica === replica;
    const started = sum(metrics, "process_start_time_seconds", of);
    return [
      replica, say(sum(metrics, "ready", of) ? "yes" : "no"), started ? duration(now - started) : "–",
      `${sum(metrics, "num_requests_running", of)}`, `${sum(metrics, "num_requests_waiting", of)}`,
      percent(sum(metrics, "kv_cache_usage_perc", of)),
      bytes(sum(metrics, "shm_bytes", (labels) => of(labels) && labels.state === "leased")),
      bytes(sum(metrics, "mm_cache_bytes", of)),
    ];
  });
}

function draw() {
  if (shown === null) return;
  const { metrics, now, errors, slowest } = shown;
  const build = metrics.get("build_info")?.[0].labels.version;
  const name = metrics.get("num_requests_running")?.[0]?.labels.model_name;
  $("model").textContent = [name, build].filter(Boolean).join(" · ");
  $("tiles").replaceChildren(...tiles(shown).map(([title, value, beside]) => make("div", {}, make("dt", {}, title), make("dd", {}, value),
    ...(beside ? [make("dd", { class: "beside" }, beside)] : []))));
  const rows = rowsOfReplicas(shown);
  fill($("replicas"), rows);
  $("several").hidden = rows.length === 0;
  fill($("children"), [...children].map(([child, { state, started, replaced }]) => [
    child, say(`state_${state}`), started === null || state === "down" ? "–" : duration(now - started), replaced ? `${replaced}` : "–",
  ]));
  list("slowest", slowest, (one) => [
    one.route, `${one.status}`, one.seconds.toFixed(2), stagesOf(one.stages),
    say("tokensOf", { prompt: one.prompt_tokens, cached: one.cached_tokens, media: one.media_tokens, written: one.generation_tokens }),
  ]);
  list("errors", errors, (one) => [one.route, `${one.status}`, one.code, `${one.count ?? 1}`]);
  $("shown").hidden = false;
}

// ---- what changed since the last look ----

function nameOf(metrics, { replica, role, index }) {
  const alike = (metrics.get("child_state") ?? []).filter(({ labels }) => labels.role === role && labels.replica === replica);
  const name = alike.length === STATES.length ? role : `${role} ${index}`;
  return replica ? `${replica} · ${name}` : name;
}

/** The children as they are now; those whose process is another one than at the last look were replaced. */
function lookAtChildren(metrics) {
  const found = new Map();
  for (const { labels, value } of metrics.get("child_state") ?? []) {
    if (value) found.set(nameOf(metrics, labels), { state: labels.state, started: null, replaced: 0 });
  }
  for (const { labels, value } of metrics.get("child_start_time_seconds") ?? []) {
    const child = found.get(nameOf(metrics, labels));
    if (child) child.started = value;
  }
  const changes = [];
  for (const [name, child] of found) {
    const before = children.get(name);
    if (!before) continue;
    child.replaced = before.replaced + (before.started !== null && child.started !== before.started ? 1 : 0);
    if (child.state !== before.state || child.replaced !== before.replaced) changes.push(`${name}: ${say(`state_${child.state}`)}`);
  }
  children = found;
  return changes;
}

/** What a screen reader is told: that a child changed its state, and the newest error. */
function tell(changes, errors) {
  const newest = errors[0];
  const fresh = newest && shown && newest.id !== shown.errors[0]?.id;
  if (fresh) changes.push(`${say("errors")}: ${newest.route} ${newest.status} ${newest.code}`);
  if (changes.length) $("told").textContent = changes.join("; ");
}

function take(text, { errors, slowest = [] }, now) {
  const metrics = parse(text);
  const replicas = replicasOf(metrics);
  const begun = `${sum(metrics, "process_start_time_seconds")} ${replicas}`;
  if (shown && shown.begun !== begun) { // another server, or other replicas: their counters begin again
    looks = [];
    if (!replicas.length) children = new Map(); // a replica's children bear its name
  }
  const at = performance.now();
  looks = [...looks.filter((one) => at - one.at <= WINDOW), { at, counts: countsOf(metrics) }];
  tell(lookAtChildren(metrics), errors);
  shown = { metrics, errors, slowest, now, begun };
  draw();
}

// ---- looking ----

function trouble(text) {
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

/** A response that is good, or null once it was said why not. */
async function ask(path) {
  const response = await fetch(at(path), {
    headers: withKey(), cache: "no-store", signal: AbortSignal.timeout(10_000),
  });
  if (response.ok) return response;
  if (response.status === 401) {
    askForKey(look);
  } else {
    trouble(`${path}: HTTP ${response.status}`);
    timer = setTimeout(look, EVERY);
  }
  return null;
}

/** What take() needs, or null. Raises where the server cannot be reached. */
async function read() {
  const page = await ask("metrics");
  if (page === null) return null;
  const lately = await ask("status/errors");
  if (lately === null) return null;
  const date = Date.parse(page.headers.get("date")); // the server's clock: this one may be another
  return [await page.text(), await lately.json(), (Number.isNaN(date) ? Date.now() : date) / 1000];
}

async function look() {
  clearTimeout(timer);
  let found;
  try {
    found = await read();
  } catch { // the network's errors have no type of their own
    trouble(say("off"));
  }
  if (found === null) return; // it was said why
  if (found) {
    trouble("");
    take(...found);
  }
  if (!document.hidden) timer = setTimeout(look, EVERY);
}

function speakAll() {
  speak();
  document.title = `${say("status")} · Pixelferry`;
  draw();
}

$("language").addEventListener("click", changeLanguage);
$("to-chat").addEventListener("click", () => { // back to the tab of the chat that this page was opened from, where it stands still
  if (window.opener?.location.pathname === new URL($("to-chat").href).pathname) close();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && $("keys").hidden) look(); });
speakAll();
look();
