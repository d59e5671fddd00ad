"use strict";
// What this tab keeps of a chat, so that a reload shows it again: its turns, the parameters, and
// media where they have room.

const CHAT = `pixelferry-chat-1 ${new URL(".", document.baseURI).pathname}`; // below another path may be another server
const LASTS = storage instanceof Storage; // false: the browser keeps nothing over a reload

let whole = true; // whether all turns were kept the last time
let room = Infinity; // characters of which a medium may be: one of so many had no room
let names = 0; // of media that were kept

function put(name, text) {
  try {
    storage.setItem(name, text);
    return true;
  } catch { // QuotaExceededError: a browser gives some megabytes
    return false;
  }
}

function partToKeep({ kind, text, name, file, kept, sample }) {
  if (kind === "text") return { kind, text };
  const { name: fileName, type, size, lastModified } = file;
  return { kind, name, kept, sample, file: { name: fileName, type, size, lastModified } };
}

function turnToKeep(turn) {
  if (turn.role === "user") return { role: "user", parts: turn.parts.map(partToKeep) };
  const { role, said, thought, usage, boxes, costs, settings } = turn;
  const end = turn.ended ? { finish: turn.finish, error: turn.error } : { finish: "stopped" }; // with the page
  return {
    role, said, thought, usage, boxes, costs, settings, ...end,
    first: turn.first ? turn.first - turn.begun : 0,
    asked: turn.asked.map((one) => turns.indexOf(one)),
  };
}

function keepTurns() {
  const form = Object.fromEntries([...NUMBERS, "stop_text", "system"].map((name) => [name, $(name).value]));
  const kept = { turns: turns.map(turnToKeep), form };
  if (turns.length || Object.values(form).some(Boolean)) return put(CHAT, JSON.stringify(kept));
  storage.removeItem(CHAT);
  return true;
}

/** Media that were read and have room, then the turns; where these have none, media make it, the newest first. */
function keep() {
  if (!LASTS) return;
  const media = turns.flatMap((turn) => turn.parts ?? []).filter((part) => part.file && !part.lost);
  letGo(new Set(media.map((part) => part.kept)));
  for (const part of media) {
    if (part.kept || !part.data || part.data.length >= room) continue;
    const name = `${CHAT} ${names += 1}`;
    if (put(name, part.data)) part.kept = name;
    else room = part.data.length;
  }
  while (!(whole = keepTurns())) {
    const part = media.findLast((one) => one.kept);
    if (!part) return storage.removeItem(CHAT); // an older one is another chat
    storage.removeItem(part.kept);
    room = Math.min(room, part.data.length);
    part.kept = undefined;
  }
}

/** Remove the media that stand in no turn any more. */
function letGo(stays) {
  for (const name of Object.keys(storage)) {
    if (!name.startsWith(`${CHAT} `) || stays.has(name)) continue;
    storage.removeItem(name);
    room = Infinity;
  }
}

/** Whether leaving the page, or loading it again, takes something: it is not sent or not whole, or has no room. */
function wouldLose() {
  keep();
  const unsent = recorder || editing || chosen.length || $("text").value.trim();
  const homeless = allMedia().some((part) => !part.lost && !part.kept) || (turns.length && !(LASTS && whole));
  return Boolean(running || unsent || homeless);
}

// ---- showing it again ----

function partKept(part) {
  if (part.kind === "text") return part;
  const data = part.kept && storage.getItem(part.kept);
  if (!data) return { ...part, kept: undefined, lost: true };
  names = Math.max(names, Number(part.kept.split(" ").at(-1)));
  const bytes = Uint8Array.from(atob(data.slice(data.indexOf(",") + 1)), (one) => one.charCodeAt(0));
  return withUrl({ ...part, data, file: new File([bytes], part.file.name, part.file) });
}

function restore() {
  const found = LASTS && storage.getItem(CHAT);
  if (!found) return;
  const { turns: kept, form } = JSON.parse(found);
  for (const [name, value] of Object.entries(form)) $(name).value = value;
  for (const one of kept) {
    if (one.role === "user") add({ ...one, parts: one.parts.map(partKept) });
    else add({ ...one, asked: one.asked.map((i) => turns[i]), begun: 0, ended: true });
  }
  redraw();
  for (const turn of turns) if (turn.role === "model") showCosts(turn);
  const lost = allMedia().filter((part) => part.lost);
  if (lost.length) $("told").textContent = lost.map((part) => `${part.name}: ${say("lost")}`).join(" ");
}
