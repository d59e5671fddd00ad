"use strict";
// A request as a program to copy. It runs in any folder; where a file of the user's is missing,
// it says which, and stops. The page's own samples it fetches from the server.

const WHERE = "run this in the folder that holds it"; // the programs are in English, as their names are

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
const sampleUrl = (part) => at(`samples/${part.sample}`);

/** The body of an answer's question; `form` is bodyOf or openaiBodyOf. */
function askedBody({ asked, settings }, form, medium) {
  return form(asked, settings.parameters, settings.system, medium);
}

// ---- curl ----

/** The body cut where media stand: one text more than there are media. */
function pieces(turn) {
  const media = [];
  const mark = crypto.getRandomValues(new Uint32Array(4)).join("-"); // which no question holds
  const json = JSON.stringify(askedBody(turn, bodyOf, (part) => (media.push(part), mark)));
  return { cut: json.split(`"${mark}"`), media };
}

/** Lines that stop the program where a file is missing, and that fetch the page's own samples into variables. */
function readyLines(media) {
  const lines = [];
  const files = new Set(media.filter((part) => !part.sample).map((part) => shellQuoted("./" + part.name)));
  if (files.size) {
    lines.push(`for file in ${[...files].join(" ")}; do`);
    lines.push(`  [ -r "$file" ] || { printf '%s\\n' "$file is missing: ${WHERE}" >&2; exit 1; }`, "done");
  }
  media.forEach((part, i) => {
    if (!part.sample) return;
    const fetching = `curl -sSf ${shellQuoted(sampleUrl(part))}`;
    lines.push(`medium${i}=$(${fetching} | base64 | tr -d '\\n')`, `[ -n "$medium${i}" ] || exit 1`);
  });
  return lines;
}

/** In a subshell, whose `exit` leaves the terminal open. */
function asCurl(turn, key) {
  const { cut, media } = pieces(turn);
  const lines = ["(", ...readyLines(media), "{"];
  cut.forEach((text, i) => {
    const begin = i ? '"' : "";
    const end = i < media.length ? `"${headOf(media[i])}` : "";
    lines.push(`  printf '%s' ${shellQuoted(begin + text + end)}`);
    if (i === media.length) return;
    const file = `base64 < ${shellQuoted("./" + media[i].name)} | tr -d '\\n'`;
    lines.push(media[i].sample ? `  printf '%s' "$medium${i}"` : `  ${file}`);
  });
  lines.push(`} | curl -sS -N ${shellQuoted(at("chat"))} -H 'Content-Type: application/json' \\`);
  if (key) lines.push('  -H "Authorization: Bearer $PIXELFERRY_API_KEY" \\');
  lines.push("  --data-binary @-", ")");
  return lines.join("\n") + "\n";
}

// ---- Python and JavaScript ----

/** A value as a program's literal, with its texts and numbers by `spelled`; media are calls of `data`. */
function literal(value, spelled, indent = "") {
  const deeper = indent + "  ";
  if (value instanceof Medium) return value.read(spelled);
  if (Array.isArray(value)) return "[" + value.map((one) => literal(one, spelled, deeper)).join(", ") + "]";
  if (value !== null && typeof value === "object") {
    const rows = Object.entries(value).map(([name, one]) => `${deeper}${spelled(name)}: ${literal(one, spelled, deeper)}`);
    return "{\n" + rows.join(",\n") + `\n${indent}}`;
  }
  return spelled(value);
}

class Medium {
  constructor(part) {
    this.sample = Boolean(part.sample);
    this.place = part.sample ? sampleUrl(part) : part.name;
    this.type = typeOf(part);
  }

  read(spelled) {
    const call = this.sample ? (spelled === ascii ? "await fetched" : "fetched") : "data";
    return `${call}(${spelled(this.place)}, ${spelled(this.type)})`;
  }
}

/** The body with its media as Medium, and which of the two functions that read them it needs. */
function bodyAndReaders(turn, form, { data, fetched }) {
  const media = [];
  const body = askedBody(turn, form, (part) => (media.push(new Medium(part)), media.at(-1)));
  const readers = [media.some((one) => !one.sample) && data, media.some((one) => one.sample) && fetched];
  return { body, readers: readers.filter(Boolean).join("\n\n") };
}

const PYTHON_READERS = {
  data: `
def data(path, kind):
    try:
        with open(path, "rb") as file:
            return f"data:{kind};base64," + base64.b64encode(file.read()).decode()
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}: ${WHERE}")
`,
  fetched: `
def fetched(url, kind):
    try:
        with urllib.request.urlopen(url) as answer:
            return f"data:{kind};base64," + base64.b64encode(answer.read()).decode()
    except OSError as error:
        sys.exit(f"{url}: {error}")
`,
};

function asPython(turn, key) {
  const { body, readers } = bodyAndReaders(turn, bodyOf, PYTHON_READERS);
  const headers = ['"Content-Type": "application/json"'];
  if (key) headers.push('"Authorization": "Bearer " + os.environ["PIXELFERRY_API_KEY"]');
  return `import base64
import json
import os
import sys
import urllib.error
import urllib.request

${readers && `${readers}

`}body = ${literal(body, asciiOfPython)}
request = urllib.request.Request(${asciiOfPython(at("chat"))}, json.dumps(body).encode(), {${headers.join(", ")}})
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

const OPENAIS = new Set(["model", "messages", "stream", "max_tokens", "temperature", "top_p", "seed", "stop"]);

function asOpenaiPython(turn, key) {
  const { body, readers } = bodyAndReaders(turn, openaiBodyOf, PYTHON_READERS);
  const own = Object.entries(body).filter(([name]) => OPENAIS.has(name));
  const others = Object.entries(body).filter(([name]) => !OPENAIS.has(name)); // the SDK knows no such arguments
  if (others.length) own.push(["extra_body", Object.fromEntries(others)]);
  const rows = own.map(([name, value]) => `        ${name}=${literal(value, asciiOfPython, "        ")},`);
  const given = key ? 'os.environ["PIXELFERRY_API_KEY"]' : '"none"';
  return `# pip install openai
import base64
import os
import sys
import urllib.request

import openai

${readers && `${readers}

`}client = openai.OpenAI(base_url=${asciiOfPython(at("v1"))}, api_key=${given})
try:
    answer = client.chat.completions.create(
${rows.join("\n")}
    )
    for event in answer:
        if event.choices:
            print(event.choices[0].delta.content or "", end="", flush=True)
except openai.OpenAIError as error:
    sys.exit(str(error))
print()
`;
}

const JAVASCRIPT_READERS = {
  data: `
const data = (path, kind) => {
  try {
    return \`data:\${kind};base64,\` + readFileSync(path).toString("base64");
  } catch (error) {
    console.error(\`\${path}: \${error.code}: ${WHERE}\`);
    process.exit(1);
  }
};
`,
  fetched: `
const fetched = async (url, kind) => {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(\`\${url}: HTTP \${answer.status}\`);
  return \`data:\${kind};base64,\` + Buffer.from(await answer.arrayBuffer()).toString("base64");
};
`,
};

function asJavaScript(turn, key) {
  const { body, readers } = bodyAndReaders(turn, bodyOf, JAVASCRIPT_READERS);
  const headers = ['"Content-Type": "application/json"'];
  if (key) headers.push("Authorization: `Bearer ${process.env.PIXELFERRY_API_KEY}`");
  return `// Save as chat.mjs; node chat.mjs
import { readFileSync } from "node:fs";
${readers}
const body = ${literal(body, ascii)};
const answer = await fetch(${ascii(at("chat"))}, {
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

function asOpenaiJavaScript(turn, key) {
  const { body, readers } = bodyAndReaders(turn, openaiBodyOf, JAVASCRIPT_READERS);
  const given = key ? "process.env.PIXELFERRY_API_KEY" : '"none"';
  return `// npm install openai; save as chat.mjs; node chat.mjs
import { readFileSync } from "node:fs";
import OpenAI from "openai";
${readers}
const client = new OpenAI({ baseURL: ${ascii(at("v1"))}, apiKey: ${given} });
try {
  const answer = await client.chat.completions.create(${literal(body, ascii, "  ")});
  for await (const event of answer) process.stdout.write(event.choices[0]?.delta.content ?? "");
  console.log();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
`;
}

const PROGRAMS = {
  curl: asCurl, Python: asPython, JavaScript: asJavaScript,
  "OpenAI Python": asOpenaiPython, "OpenAI JavaScript": asOpenaiJavaScript,
};
