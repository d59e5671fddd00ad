"use strict";
// The chat page: a conversation, what is about to be asked, and the stream of an answer.

const $ = (id) => document.getElementById(id);
const SAMPLES = [
  { file: "red-circle.png", type: "image/png", en: "What is this?", zh: "这是什么？" },
  { file: "red-circle.png", type: "image/png", en: "Where is the red circle?", zh: "红色圆形在哪里？" },
  { file: "shapes.png", type: "image/png", en: "How many shapes are there?", zh: "有几个图形？" },
  { file: "number.png", type: "image/png", en: "What number is it?", zh: "这是什么数字？" },
  { file: "moving-right.mp4", type: "video/mp4", en: "Which way does it move?", zh: "它往哪个方向移动？" },
  { file: "three-beeps.wav", type: "audio/wav", en: "How many beeps are there?", zh: "有几声哔声？" },
];
const SIGNS = { video: "▶", audio: "♪" };
const AGAIN = 3000; // milliseconds
const BY_TOUCH = matchMedia("(pointer: coarse)").matches; // its keyboard has no Shift+Enter: Enter starts a line

let served = null; // the entry of /v1/models, once it is known
let taken = null; // the kinds that the served model takes
let again = 0; // the timer of the next question for the model
let running = null; // the AbortController of the answer that is being written
let leaving = false; // the page was about to be left while it was written

// ---- the end in view ----

let follows = false; // whoever looks at the end goes on to see it

function toEnd() {
  follows = true;
  scrollTo(0, document.documentElement.scrollHeight);
}

addEventListener("scroll", () => {
  follows = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
}, { passive: true });
new ResizeObserver(() => { if (follows) toEnd(); }).observe($("turns"));

// ---- asking ----

function trouble(text) {
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

/** Ask what the form holds, with the voice that is being recorded. */
function ask() {
  if (running) return;
  if (!recorder) return send();
  thenSend = true;
  recorder.stop();
}

function send() {
  const text = $("text").value.trim();
  if ((!text && !chosen.length) || !numbersAreGood()) return;
  const turn = { role: "user", parts: [...chosen, ...(text ? [{ kind: "text", text }] : [])] };
  const before = editing ? turns.slice(0, turns.indexOf(editing.turn)) : turns;
  if (!mediaAreHere([...before, turn])) return;
  trouble("");
  if (editing) cutAt(turns.indexOf(editing.turn));
  add(turn);
  drawUser(turn);
  compose(editing?.draft ?? { text: "", media: [] });
  answer();
}

/** The sentence of an error as the server told it, with its field and, where `id` is given, the request's. */
function sentence(error, id, wait) {
  const message = (error.message ?? String(error)).replace(/ \(request \w+\)$/, ""); // a server's own fault has it in the sentence
  const facts = [];
  if (error.param) facts.push(`${say("field")}: ${error.param}`);
  if (id) facts.push(`${say("request")}: ${id}`);
  if (wait) facts.push(say("wait", { n: wait }));
  return message + (facts.length ? ` (${facts.join("; ")})` : "");
}

/** Those of `all` turns that are sent to the model: an answer that failed is left out, with its question. */
function sentOf(all) {
  const failed = (i) => all[i]?.role === "model" && !all[i].said;
  return all.filter((_, i) => !failed(i) && (i === all.length - 1 || !failed(i + 1)));
}

/** Whether `all` turns can be asked; names the media that a reload took. */
function mediaAreHere(all) {
  const lost = sentOf(all).flatMap((turn) => turn.parts ?? []).filter((part) => part.lost);
  if (lost.length) trouble(say("lostAsked", { names: lost.map((part) => part.name).join(", ") }));
  return lost.length === 0;
}

async function answer() {
  const settings = { parameters: parameters(), system: $("system").value };
  const turn = {
    role: "model", said: "", thought: "", begun: performance.now(), first: 0, settings,
    asked: sentOf(turns),
  };
  add(turn);
  drawModel(turn);
  keep();
  turn.text.classList.add("waiting");
  running = new AbortController();
  $("stop").hidden = false;
  $("send").setAttribute("aria-disabled", "true"); // a disabled one would lose the focus
  if (!$("ask").contains(document.activeElement)) $("stop").focus({ preventScroll: true }); // Retry and samples go from under it
  toEnd();
  try {
    const body = await readBody(turn, running.signal);
    turn.begun = performance.now();
    const response = await fetch(at("chat"), {
      method: "POST", headers: withKey({ "Content-Type": "application/json", "X-Pixelferry-Timings": "1" }), body,
      signal: running.signal,
    });
    if (!response.ok) await refused(response, turn);
    else await stream(response, turn);
  } catch (error) {
    if (error.name === "AbortError") turn.finish = "stopped";
    else if (error instanceof UnreadFile) turn.error = say("unread", { name: error.message });
    else turn.error = lost(turn.first ? "broke" : "gone");
  }
  if (leaving) await new Promise((resolve) => setTimeout(resolve, AGAIN)); // a page that goes breaks its streams first
  leaving = false;
  turn.ended = true;
  running = null;
  const leaves = document.activeElement === $("stop");
  $("stop").hidden = true;
  $("send").removeAttribute("aria-disabled");
  if (!turn.item.isConnected) return; // it was taken away
  showCosts(turn);
  endModel(turn);
  keep();
  if (leaves) turn.acts.firstChild.focus({ preventScroll: true });
  $("told").textContent = turn.error ?? `${say("answered")} ${turn.text.textContent.slice(0, 2000)}`;
}

/** What is told of a server that went away. Once it is there again it may serve another model. */
function lost(word) {
  readModel();
  return say(word);
}

async function refused(response, turn) {
  let error = { message: `HTTP ${response.status}` };
  try { error = (await response.json()).error ?? error; } catch { /* no JSON: the status says it */ }
  turn.error = sentence(error, response.headers.get("x-request-id"), response.headers.get("retry-after"));
  if (response.status === 401) askForKey(() => { readModel(); retry(turn); });
}

async function stream(response, turn) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let whole = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: [DONE]")) whole = true;
      else if (line.startsWith("data: ")) whole = heard(JSON.parse(line.slice(6)), turn, response) || whole;
    }
  }
  if (!whole) turn.error ??= lost("broke");
}

/** One event of a stream; true: it is an error, which ends it. */
function heard(event, turn, response) {
  if (event.error) {
    turn.error = sentence(event.error, response.headers.get("x-request-id"));
    return true;
  }
  turn.first ||= performance.now();
  if (event.usage) {
    turn.usage = event.usage;
    turn.boxes = event.boxes;
    turn.costs = event.media;
  }
  if (event.finish_reason) turn.finish = event.finish_reason;
  if (event.reasoning) {
    turn.thought += event.reasoning;
    turn.thinker.put(event.reasoning);
    turn.thoughts.hidden = false;
  }
  if (event.text) {
    turn.said += event.text;
    turn.writer.write(event.text);
  }
  return false;
}

// ---- the page ----

async function takeSample(sample) {
  if (running || !numbersAreGood()) return;
  let blob;
  try {
    const response = await fetch(at(`samples/${sample.file}`));
    if (!response.ok) throw new Error(response.statusText);
    blob = await response.blob();
  } catch {
    return trouble(say("gone"));
  }
  if (running) return; // it was pressed twice
  chosen = [];
  choose([new File([blob], sample.file, { type: sample.type, lastModified: 0 })]);
  for (const part of chosen) part.sample = sample.file;
  $("text").value = sample[language];
  send();
}

/** What can be added, and the samples of it. */
function showSamples() {
  const kinds = KINDS.filter((kind) => taken?.has(kind));
  $("add").hidden = $("how").hidden = kinds.length === 0;
  $("how").textContent = say("how", { kinds: new Intl.ListFormat(language).format(kinds.map((kind) => say(kind))) });
  $("welcome").firstElementChild.textContent = say(kinds.length || !taken ? "welcome" : "welcomeText");
  $("files").accept = kinds.map((kind) => `${kind}/*`).join(",");
  $("samples").replaceChildren(...SAMPLES.filter((one) => kinds.includes(one.type.split("/")[0])).map((sample) => {
    const kind = sample.type.split("/")[0];
    const shown = kind === "image" ? make("img", { src: `samples/${sample.file}`, alt: sample.file, loading: "lazy" })
      : make("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]);
    return make("li", {}, make("button", { type: "button", click: () => takeSample(sample) }, shown, sample[language]));
  }));
}

async function readModel() {
  clearTimeout(again);
  let response;
  try {
    response = await fetch(at("v1/models"), { headers: withKey() });
  } catch {
    again = setTimeout(readModel, AGAIN);
    return trouble(say("gone"));
  }
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) return askForKey(readModel);
  const waits = response.status >= 500; // it is asked again and again: an id would be read out each time
  if (waits) again = setTimeout(readModel, AGAIN);
  const id = waits ? null : response.headers.get("x-request-id");
  if (!response.ok) return trouble(sentence(body.error ?? { message: `HTTP ${response.status}` }, id));
  trouble("");
  const model = body.data[0];
  if (served?.id !== model.id) fields = null; // their defaults are a checkpoint's
  served = model;
  taken = new Set(model.architecture.input_modalities);
  const kinds = [...taken].map((kind) => say(kind)).join(", ");
  $("model").textContent = $("model").title = `${model.id} · ${say("takes", { kinds })}`;
  showBounds();
  $("record").hidden = !(taken.has("audio") && window.isSecureContext && navigator.mediaDevices && window.MediaRecorder);
  showSamples();
}

function speakAll() {
  speak();
  $("text").placeholder = say(BY_TOUCH ? "welcomeText" : "ask");
  showRecord();
  redraw();
  showBounds();
  showChosen();
  showSamples();
}

/** Whether a key belongs to an input method. Safari ends the composition before it tells the key that ended it. */
const composes = (event) => event.isComposing || event.keyCode === 229;

$("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !BY_TOUCH && !composes(event)) { event.preventDefault(); ask(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || composes(event)) return;
  if (running) running.abort();
  else if (editing) endEdit();
});
$("cancel").addEventListener("click", endEdit);
$("stop").addEventListener("click", () => running?.abort());
$("record").addEventListener("click", record);
$("files").addEventListener("change", (event) => { choose(event.target.files); event.target.value = ""; });
$("fresh").addEventListener("click", () => {
  running?.abort();
  cutAt(0);
  compose({ text: editing?.draft.text ?? $("text").value, media: [] });
  trouble("");
  $("text").focus();
});
$("language").addEventListener("click", () => { changeLanguage(); readModel(); });
addEventListener("beforeunload", (event) => {
  leaving = running !== null;
  if (wouldLose()) { event.preventDefault(); event.returnValue = true; }
});
addEventListener("pagehide", keep);
document.addEventListener("visibilitychange", () => { if (document.hidden) keep(); }); // a phone may end a page that is out of sight
$("more").addEventListener("change", keep);
$("more").addEventListener("toggle", readBounds);
document.addEventListener("paste", (event) => { if (pastesFiles(event.clipboardData)) { event.preventDefault(); choose(event.clipboardData.files); } });
for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { if (dragsFiles(event)) $("ask").classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("ask").classList.remove("over"); });
document.addEventListener("drop", (event) => { $("ask").classList.remove("over"); if (dragsFiles(event)) choose(event.dataTransfer.files); });
$("text").placeholder = say(BY_TOUCH ? "welcomeText" : "ask");
speak();
restore();
showBounds();
readModel();
