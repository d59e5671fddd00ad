"use strict";
// Files that are dropped, pasted, picked or recorded, until they are asked about, and their previews.

const KINDS = ["image", "video", "audio"];

let chosen = []; // media of the next question
const urls = new Set(); // object URLs of all media shown

/** The kind of a medium, null for other files. Firefox calls each .ogg a video; the sound of a clip is read where clips are not taken. */
function kindOf(file) {
  const end = file.name.toLowerCase().split(".").pop();
  if (["ogg", "oga"].includes(end)) return "audio";
  const kind = (file.type || "").split("/")[0];
  if (kind === "video" && taken?.has("audio") && !taken.has("video")) return "audio";
  if (KINDS.includes(kind)) return kind;
  if (["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"].includes(end)) return "image";
  if (["mp4", "mov", "mkv", "webm", "avi", "ts"].includes(end)) return "video";
  if (["wav", "mp3", "flac", "opus", "m4a", "aac"].includes(end)) return "audio";
  return null;
}

/** All media of the conversation, of the next question, and of the draft that was put aside for it. */
function allMedia() {
  return [...chosen, ...(editing?.draft.media ?? []), ...turns.flatMap((turn) => turn.parts ?? [])].filter((part) => part.file);
}

/** A name that no other file has here: a copied request finds its files by their names, and pasted ones are all called alike. */
function ownName(file, kind) {
  const name = file.name || `${kind}.${file.type.split("/")[1] ?? "bin"}`;
  const same = (one) => one.file.name === file.name && one.file.size === file.size && one.file.lastModified === file.lastModified;
  const known = allMedia();
  const before = known.find(same);
  if (before) return before.name;
  const dot = name.lastIndexOf(".") > 0 ? name.lastIndexOf(".") : name.length;
  let own = name;
  for (let n = 2; known.some((one) => one.name === own); n += 1) own = `${name.slice(0, dot)}-${n}${name.slice(dot)}`;
  return own;
}

/** A medium that can be shown. */
function withUrl(part) {
  part.url = URL.createObjectURL(part.file);
  urls.add(part.url);
  return part;
}

/** A medium that a reload took, from the file that was chosen for it again. */
function putBack(part, file) {
  if (kindOf(file) !== part.kind) return trouble(say("otherKind", { name: file.name, kind: say(part.kind) }));
  part.name = ownName(file, part.kind);
  part.file = file;
  part.lost = false;
  withUrl(part);
  trouble("");
  redraw();
  showChosen();
}

function choose(files) {
  const wrong = [];
  for (const file of files) {
    const kind = kindOf(file);
    if (kind === null) wrong.push(say("unknownKind", { name: file.name }));
    else if (taken && !taken.has(kind)) wrong.push(say("notTaken", { name: file.name, kind: say(kind) }));
    else chosen.push(withUrl({ kind, file, name: ownName(file, kind) }));
  }
  trouble(wrong.join(" "));
  showChosen();
}

/** Whether a paste is files. A table comes with a picture of itself and is text; a file comes with its name as text on some systems. */
function pastesFiles(data) {
  const names = Array.from(data.files, (file) => file.name);
  const told = data.getData("text/plain").trim().split("\n");
  return names.length > 0 && (!data.types.includes("text/plain") || told.every((line) => names.some((name) => line.trim().endsWith(name))));
}

/** Whether files are dragged, which the page takes wherever they fall. Text falls into fields; a link elsewhere opens nothing. */
function dragsFiles(event) {
  const files = event.dataTransfer.types.includes("Files");
  if (files || !event.target.closest?.("textarea, input")) event.preventDefault();
  return files;
}

function preview(part) {
  if (part.lost) return make("span", { class: "lost" }, `${part.name}: ${say("lost")}`);
  if (part.kind === "image") return make("img", { src: part.url, alt: part.name, decoding: "async" });
  const one = make(part.kind, { src: part.url, controls: true, preload: "metadata", "aria-label": part.name });
  one.muted = part.kind === "video";
  return one;
}

/** Whether it is a recording of a sound, as a saved voice.webm. A clip has no size, too, where the browser lacks its codec. */
async function isVoice(file) {
  return file.name.toLowerCase().endsWith(".webm") && !/V_(?:VP|AV1|MPEG)/.test(await file.slice(0, 65536).text()); // no codec of pictures
}

function showChosen() {
  $("chosen").replaceChildren(...chosen.map((part) => {
    const shown = preview(part);
    shown.addEventListener("loadedmetadata", async () => {
      if (part.kind !== "video" || shown.videoWidth || !taken?.has("audio") || !await isVoice(part.file)) return;
      part.kind = "audio";
      showChosen();
    });
    return make("li", {}, shown, make("button", {
      type: "button", "aria-label": `${say("remove")} ${part.name}`, title: say("remove"),
      click: () => { chosen = chosen.filter((one) => one !== part); showChosen(); $("text").focus(); },
    }, "✕"));
  }));
  release();
}

/** Let go of the files that neither a turn nor the next question shows any more. */
function release() {
  const kept = new Set(allMedia().map((part) => part.url));
  for (const url of urls) if (!kept.has(url)) { URL.revokeObjectURL(url); urls.delete(url); }
}

// ---- recording ----

let recorder = null;
let permitting = false; // the browser asks whether it may
let thenSend = false; // the question waits for the end of the recording

async function record() {
  if (recorder) return recorder.stop();
  if (permitting) return;
  permitting = true;
  let sound = null;
  try {
    sound = await navigator.mediaDevices.getUserMedia({ audio: true });
    startRecording(sound);
  } catch {
    endRecording(sound);
    trouble(say("noMicrophone"));
  }
  permitting = false;
}

function startRecording(sound) {
  const parts = [];
  thenSend = false;
  recorder = new MediaRecorder(sound);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    const type = recorder.mimeType.split(";")[0];
    endRecording(sound);
    choose([new File(parts, `voice.${type.split("/")[1] ?? "webm"}`, { type: type.replace("video/", "audio/") })]);
    if (thenSend && !running) send();
  };
  recorder.start();
  showRecord();
}

function endRecording(sound) {
  for (const track of sound?.getTracks() ?? []) track.stop();
  recorder = null;
  showRecord();
}

function showRecord() {
  $("record").textContent = say(recorder ? "recording" : "record");
}
