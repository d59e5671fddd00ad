"use strict";
// A conversation as the body of POST /chat, and the same request as a program to copy, which names the files it reads.

/** One part of a turn: a medium with its file, or text. */
function partOf(part, medium) {
  return part.file ? { [part.kind]: medium(part) } : { text: part.text };
}

/** The body of a request; `medium` says what stands in a medium's place. */
function bodyOf(turns, parameters, system, medium) {
  const users = turns.filter((turn) => turn.role === "user");
  const answers = turns.filter((turn) => turn.role === "model");
  const inputs = users.map((turn) => turn.parts.map((part) => partOf(part, medium)));
  const body = { inputs: inputs.at(-1) };
  if (users.length > 1) body.history = inputs.slice(0, -1).map((one, i) => ({ inputs: one, text: answers[i].said }));
  if (system) body.system = system;
  if (Object.keys(parameters).length) body.parameters = parameters;
  body.stream = true;
  return body;
}

/** A file that is gone, was changed since it was chosen, or is more than a text holds. */
class UnreadFile extends Error {
  constructor(part) {
    super(part.name);
  }
}

/** A file as a data: URL. */
function dataUrl(file, signal) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => (reader.result ? resolve(reader.result) : reject(new Error("too large")));
    reader.onerror = () => reject(reader.error);
    reader.onabort = () => reject(signal.reason);
    signal.addEventListener("abort", () => reader.abort(), { once: true });
    reader.readAsDataURL(file);
  });
}

/** The JSON that asks an answer's question, with its files. Raises UnreadFile, and the reason of `signal`. */
async function readBody({ asked, settings }, signal) {
  const media = asked.flatMap((one) => one.parts ?? []).filter((part) => part.file);
  for (const part of media) {
    try {
      part.data ??= await dataUrl(part.file, signal);
    } catch (error) {
      throw signal.aborted ? error : new UnreadFile(part);
    }
  }
  try {
    return JSON.stringify(bodyOf(asked, settings.parameters, settings.system, (part) => part.data));
  } catch { // together they are more
    throw new UnreadFile(media.sort((a, b) => b.file.size - a.file.size)[0]);
  }
}

/** JSON in ASCII, which is a literal of JavaScript, too. */
function ascii(value) {
  return inAscii(JSON.stringify(value));
}

/** A literal of Python, to which the two halves of a character beyond U+FFFF are no name of a file. */
function asciiOfPython(value) {
  if (typeof value !== "string") return { true: "True", false: "False", null: "None" }[value] ?? ascii(value);
  const long = (c) => "\\U" + c.codePointAt(0).toString(16).padStart(8, "0");
  return inAscii(JSON.stringify(value).replace(/[\u{10000}-\u{10ffff}]/gu, long));
}

function inAscii(json) {
  return json.replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function shellQuoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

const typeOf = (part) => part.file.type || "application/octet-stream";
const headOf = (part) => `data:${typeOf(part)};base64,`;

/** The body cut where media stand: one text more than there are media. */
function pieces(body) {
  const media = [];
  const mark = crypto.getRandomValues(new Uint32Array(4)).join("-"); // which no question holds
  const json = JSON.stringify(body((part) => (media.push(part), mark)));
  return { cut: json.split(`"${mark}"`), media };
}

function asCurl(url, key, body) {
  const { cut, media } = pieces(body);
  // Without its files nothing is sent: what the page's samples are the server gives, others are the user's.
  const files = new Map(media.map((part) => [shellQuoted("./" + part.name), part]));
  const lines = files.size ? ["# Run this in the directory of its files."] : [];
  for (const [file, { name, file: { lastModified } }] of files) {
    if (lastModified === 0) lines.push(`[ -r ${file} ] || curl -sSf -O ${shellQuoted(url.replace(/chat$/, `samples/${name}`))}`);
  }
  lines.push(files.size ? `ls ${[...files.keys()].join(" ")} > /dev/null && {` : "{");
  cut.forEach((text, i) => {
    const begin = i ? '"' : "";
    const end = i < media.length ? `"${headOf(media[i])}` : "";
    lines.push(`  printf '%s' ${shellQuoted(begin + text + end)}`);
    if (i < media.length) lines.push(`  base64 < ${shellQuoted("./" + media[i].name)} | tr -d '\\n'`);
  });
  lines.push(`} | curl -sS -N ${shellQuoted(url)} -H 'Content-Type: application/json' \\`);
  if (key) lines.push('  -H "Authorization: Bearer $PIXELFERRY_API_KEY" \\');
  lines.push("  --data-binary @-");
  return lines.join("\n") + "\n";
}

/** A value as a program's literal, with its texts and numbers by `spelled`; media are calls of `data`. */
function literal(value, spelled, indent = "") {
  const deeper = indent + "  ";
  if (value instanceof Medium) return `data(${spelled(value.name)}, ${spelled(value.type)})`;
  if (Array.isArray(value)) return "[" + value.map((one) => literal(one, spelled, deeper)).join(", ") + "]";
  if (value !== null && typeof value === "object") {
    const rows = Object.entries(value).map(([name, one]) => `${deeper}${spelled(name)}: ${literal(one, spelled, deeper)}`);
    return "{\n" + rows.join(",\n") + `\n${indent}}`;
  }
  return spelled(value);
}

class Medium {
  constructor(part) {
    this.name = part.name;
    this.type = typeOf(part);
  }
}

function asPython(url, key, body) {
  const headers = ['"Content-Type": "application/json"'];
  if (key) headers.push('"Authorization": "Bearer " + os.environ["PIXELFERRY_API_KEY"]');
  return `import base64
import json
import os
import sys
import urllib.error
import urllib.request


def data(path, kind):
    with open(path, "rb") as file:
        return f"data:{kind};base64," + base64.b64encode(file.read()).decode()


body = ${literal(body((part) => new Medium(part)), asciiOfPython)}
request = urllib.request.Request(${asciiOfPython(url)}, json.dumps(body).encode(), {${headers.join(", ")}})
try:
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    sys.exit(event["error"]["message"])
                print(event.get("text", ""), end="", flush=True)
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
print()
`;
}

function asJavaScript(url, key, body) {
  const headers = ['"Content-Type": "application/json"'];
  if (key) headers.push("Authorization: `Bearer ${process.env.PIXELFERRY_API_KEY}`");
  return `// Save as chat.mjs; node chat.mjs
import { readFileSync } from "node:fs";

const data = (path, kind) => \`data:\${kind};base64,\` + readFileSync(path).toString("base64");

const body = ${literal(body((part) => new Medium(part)), ascii)};
const answer = await fetch(${ascii(url)}, {
  method: "POST", headers: { ${headers.join(", ")} }, body: JSON.stringify(body),
});
if (!answer.ok) throw new Error(await answer.text());
let held = "";
for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (held + piece).split("\\n");
  held = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue;
    const event = JSON.parse(line.slice(6));
    if (event.error) throw new Error(event.error.message);
    process.stdout.write(event.text ?? "");
  }
}
console.log();
`;
}

const PROGRAMS = { curl: asCurl, Python: asPython, JavaScript: asJavaScript };
