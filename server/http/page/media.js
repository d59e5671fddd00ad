"use strict";
// Files that are dropped, pasted, picked or recorded, until they are asked about, and their previews.

const KINDS = { image: "image", video: "video", audio: "audio" };

let chosen = []; // media of the next question
const urls = new Set(); // object URLs of all media shown

function kindOf(file) {
  const kind = (file.type || "").split("/")[0];
  if (kind in KINDS) return kind;
  const end = file.name.toLowerCase().split(".").pop();
  if (["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"].includes(end)) return "image";
  if (["mp4", "mov", "mkv", "webm", "avi", "ts"].includes(end)) return "video";
  if (["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac"].includes(end)) return "audio";
  return null;
}

function choose(files) {
  const wrong = [];
  for (const file of files) {
    const kind = kindOf(file);
    if (kind === null) wrong.push(say("unknownKind", { name: file.name }));
    else if (!taken.has(kind)) wrong.push(say("notTaken", { name: file.name, kind: say(kind) }));
    else {
      const url = URL.createObjectURL(file);
      urls.add(url);
      chosen.push({ kind, file, name: file.name || `${kind}.${file.type.split("/")[1] ?? "bin"}`, url });
    }
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
  if (part.kind === "image") return make("img", { src: part.url, alt: part.name, decoding: "async" });
  const one = make(part.kind, { src: part.url, controls: true, preload: "metadata", "aria-label": part.name });
  one.muted = part.kind === "video";
  return one;
}

function showChosen() {
  $("chosen").replaceChildren(...chosen.map((part) => make("li", {}, preview(part), make("button", {
    type: "button", "aria-label": `${say("remove")} ${part.name}`, title: say("remove"),
    click: () => { chosen = chosen.filter((one) => one !== part); showChosen(); $("text").focus(); },
  }, "✕"))));
  release();
}

/** Let go of the files that neither a turn nor the next question shows any more. */
function release() {
  const kept = new Set([...chosen, ...turns.flatMap((turn) => turn.parts ?? [])].map((part) => part.url));
  for (const url of urls) if (!kept.has(url)) { URL.revokeObjectURL(url); urls.delete(url); }
}

// ---- recording ----

let recorder = null;

async function record() {
  if (recorder) return recorder.stop();
  let sound;
  try {
    sound = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch {
    return trouble(say("noMicrophone"));
  }
  const parts = [];
  recorder = new MediaRecorder(sound);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    const type = recorder.mimeType.split(";")[0];
    for (const track of sound.getTracks()) track.stop();
    recorder = null;
    $("record").textContent = say("record");
    const end = type.split("/")[1] ?? "webm";
    choose([new File(parts, `voice.${end}`, { type: type.replace("video/", "audio/") })]);
  };
  recorder.start();
  $("record").textContent = say("recording");
}
