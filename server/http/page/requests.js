"use strict";
// A conversation as the body of POST /chat, with its files, and as that of POST /v1/chat/completions.

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

/** The same request in OpenAI's form; pictures, clips and sounds are parts with a URL. */
function openaiBodyOf(turns, parameters, system, medium) {
  const content = (turn) => turn.parts.map((part) => {
    if (!part.file) return { type: "text", text: part.text };
    const type = `${part.kind}_url`;
    return { type, [type]: { url: medium(part) } };
  });
  const messages = turns.map((turn) => (turn.role === "user"
    ? { role: "user", content: turn.parts.some((part) => part.file) ? content(turn) : turn.parts[0].text }
    : { role: "assistant", content: turn.said }));
  if (system) messages.unshift({ role: "system", content: system });
  return { model: served.id, messages, stream: true, ...parameters };
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
