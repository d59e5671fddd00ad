"use strict";
// The turns of the conversation as they are shown: a question with its media, an answer with its facts and what can be done with it.

const SOON = 4000; // milliseconds

let turns = []; // {role: "user", parts} and {role: "model", said, ...}
let editing = null; // {turn, draft}: the question in the form is this turn's, and the draft was put aside for it
let sure = null; // the button whose next press drops later answers, too

function figure(part, turn) {
  if (part.lost) return make("figure", {}, make("figcaption", {}, preview(part)), fileAgain(part));
  const cost = turn.media?.get(part);
  const facts = cost ? [say("medium", cost), ...(cost.width ? [say("sized", cost)] : [])] : [];
  const shown = part.kind === "image" ? make("span", { class: "picture" }, preview(part)) : preview(part);
  return make("figure", {}, shown, make("figcaption", {}, part.name, facts.length ? ` · ${facts.join(" · ")}` : "",
    " ", make("a", { href: part.url, download: part.name, "aria-label": `${say("save")} ${part.name}`, title: say("save") }, "⤓")));
}

/** A button that takes the file of a medium which a reload took. */
function fileAgain(part) {
  const field = make("input", {
    type: "file", class: "unseen", accept: `${part.kind}/*`,
    change: () => { for (const file of field.files) putBack(part, file); },
  });
  return make("label", { class: "button" }, field, say("addAgain"));
}

/** A question as the form holds it. */
function draftOf(turn) {
  const texts = turn.parts.filter((part) => !part.file).map((part) => part.text);
  return { text: texts.join("\n"), media: turn.parts.filter((part) => part.file) };
}

function drawUser(turn) {
  const { text, media } = draftOf(turn);
  turn.figures = new Map(media.map((part) => [part, figure(part, turn)]));
  turn.item.replaceChildren(
    make("span", { class: "unseen" }, `${say("you")}: `),
    make("div", { class: "media" }, ...turn.figures.values()),
    make("div", { class: "text" }, text),
    make("div", { class: "acts" }, make("button", { type: "button", click: () => edit(turn) }, say("edit"))),
  );
}

/** Draw an answer that has ended, or that is about to begin. */
function drawModel(turn) {
  turn.text = make("div", { class: "text" });
  turn.thoughts = make("details", { class: "thoughts quiet", hidden: !turn.thought }, make("summary", {}, say("thoughts")), make("div"));
  turn.facts = make("p", { class: "facts quiet" });
  turn.acts = make("div", { class: "acts" });
  turn.item.replaceChildren(make("span", { class: "unseen" }, `${say("model")}: `), turn.thoughts, turn.text, turn.facts, turn.acts);
  turn.thinker = new AnswerText(turn.thoughts.lastChild);
  turn.thinker.put(turn.thought);
  turn.writer = new AnswerText(turn.text);
  turn.writer.write(turn.said);
  if (turn.ended) endModel(turn);
}

function endModel(turn) {
  turn.writer.end(turn.boxes);
  turn.text.classList.remove("waiting");
  const facts = [];
  const first = ((turn.first - turn.begun) / 1000).toFixed(2);
  if (turn.usage) {
    const { prompt_tokens: prompt, completion_tokens: written, prompt_tokens_details: details } = turn.usage;
    const spent = turn.usage.timings?.decode; // as the server saw it: a busy browser reads many tokens at once
    facts.push(say("facts", {
      prompt, written, cached: details?.cached_tokens ?? 0, first,
      rate: written > 1 && spent > 0 ? ((written - 1) / spent).toFixed(1) : "–",
    }));
  } else if (turn.first) {
    facts.push(say("first", { first }));
  }
  if (turn.finish === "length") facts.push(say("length"));
  if (turn.finish === "stopped") facts.push(say("stopped"));
  if (!turn.said) facts.unshift(...(turn.error ? [] : [say("noAnswer")]), say("untold"));
  turn.facts.textContent = facts.join(" · ");
  if (turn.error) turn.facts.before(make("p", { class: "wrong" }, turn.error));
  tieBoxes(turn);
  const copied = make("div");
  const programs = Object.keys(PROGRAMS).map((name) => make("button", {
    type: "button", "aria-label": `${say("copyAs")} ${name}`, click: () => copyAs(name, turn, copied),
  }, name));
  turn.acts.replaceChildren(
    make("button", { type: "button", click: (event) => event.detail < 2 && retry(turn) }, say("retry")), make("span", { class: "quiet" }, say("copyAs")), ...programs,
  );
  turn.acts.after(copied);
}

/** All turns again: in another language, or with a medium that is back. */
function redraw() {
  for (const turn of turns) if (turn.role === "user") drawUser(turn);
  for (const turn of turns) if (turn.role === "model" && turn.ended) { turn.drawn = []; drawModel(turn); }
}

function add(turn) {
  turn.item = make("li", { class: turn.role });
  turns.push(turn);
  $("turns").append(turn.item);
  showKept();
}

/** A chat is kept in this tab alone: while it stands, other pages open beside it. */
function showKept() {
  const stands = turns.length > 0;
  $("welcome").hidden = stands;
  $("to-status").target = stands ? "_blank" : "";
}

/** Take turns away from this one on. */
function cutAt(index) {
  for (const turn of turns.splice(index)) {
    for (const one of turn.drawn ?? []) one.remove();
    turn.item.remove();
  }
  showKept();
  release();
  keep();
}

/** Put a question into the form: a draft, or that of a turn which is edited. */
function compose({ text, media }, edited = null) {
  editing = edited;
  $("text").value = text;
  chosen = media;
  showChosen();
  $("editing").hidden = !editing;
  for (const turn of turns) turn.item.classList.toggle("edited", turn === editing?.turn);
}

/** The turn stays, with all behind it, until its question is sent again. */
function edit(turn) {
  running?.abort();
  compose(draftOf(turn), { turn, draft: editing?.draft ?? { text: $("text").value, media: chosen } });
  $("told").textContent = say("editing");
  $("text").focus();
}

function endEdit() {
  compose(editing.draft);
  $("text").focus();
}

function retry(turn) {
  if (running || !turns.includes(turn) || !numbersAreGood()) return;
  const index = turns.indexOf(turn);
  if (!mediaAreHere(turns.slice(0, index))) return;
  const later = turns.slice(index + 1).filter((one) => one.role === "model").length;
  const button = turn.acts.firstChild;
  if (later && sure !== button) return makeSure(button, later);
  trouble("");
  cutAt(index);
  if (editing && !turns.includes(editing.turn)) compose(editing.draft);
  answer();
}

/** Let a button say what its next press drops, for a while. */
function makeSure(button, later) {
  sure = button;
  button.textContent = $("told").textContent = say("drop", { n: later });
  setTimeout(() => {
    if (sure === button) sure = null;
    button.textContent = say("retry");
  }, SOON);
}

/** What each medium cost, under its picture; the server tells them in order, without the oldest if the model's window dropped them. */
function showCosts(turn) {
  const users = turn.asked.filter((one) => one.role === "user");
  const parts = users.flatMap((one) => one.parts.filter((part) => part.file).map((part) => [one, part]));
  const costs = turn.costs ?? [];
  costs.forEach((cost, i) => {
    const [user, part] = parts[parts.length - costs.length + i];
    user.media ??= new Map();
    const known = user.media.has(part);
    user.media.set(part, cost);
    if (known) return;
    const drawn = user.figures.get(part);
    const fresh = figure(part, user);
    drawn.querySelector("figcaption").replaceWith(fresh.querySelector("figcaption"));
  });
}

// ---- copying ----

async function copyAs(name, turn, place) {
  const program = PROGRAMS[name](turn, storage.getItem(KEY));
  try {
    await navigator.clipboard.writeText(program);
    place.replaceChildren(make("p", { class: "quiet", role: "status" }, say("copied")), make("pre", { class: "code", tabindex: "0" }, program));
  } catch { // no permission, or no secure context
    const code = make("pre", { class: "code", tabindex: "0" }, program);
    place.replaceChildren(make("p", { class: "quiet", role: "status" }, say("select")), code);
    getSelection().selectAllChildren(code);
  }
}
