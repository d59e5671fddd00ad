"use strict";
// The fields of parameters: their defaults and bounds as /openapi.json has them, and what was typed.

const NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "seed"];
const BOUNDLESS = 2 ** 31 - 1; // a bound so far away is not shown

let fields = null; // NativeParameters of /openapi.json, once they were read

/** Whether each number can be sent as it was typed; says which cannot. The server judges its range. */
function numbersAreGood() {
  for (const name of NUMBERS) {
    const field = $(name);
    const whole = field.value === "" || field.step !== "1" || Number.isSafeInteger(Number(field.value));
    if (whole && !field.validity.badInput) continue;
    trouble(say(whole ? "noNumber" : "noWhole", { name, most: Number.MAX_SAFE_INTEGER }));
    $("more").open = true;
    field.focus();
    return false;
  }
  return true;
}

function parameters() {
  const found = {};
  for (const name of NUMBERS) {
    if ($(name).value !== "") found[name] = Number($(name).value);
  }
  if ($("stop_text").value) found.stop = $("stop_text").value;
  return found;
}

// ---- defaults and bounds

/** Read them when the fold is opened first: the document is long, and most chats need none of it. */
async function readBounds() {
  if (fields || !$("more").open) return;
  try {
    const response = await fetch(at("openapi.json"), { headers: withKey() });
    if (!response.ok) return; // a key is asked for, or a proxy keeps the document: the fields work without it
    fields = (await response.json()).components.schemas.NativeParameters.properties;
  } catch {
    return; // whatever else the page asks says that the server is gone
  }
  showBounds();
}

/** A number's bounds: {low, high, open}, where open bounds are no values themselves. */
function boundsOf(schema) {
  const { minimum, exclusiveMinimum: open, maximum } = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  return { low: minimum ?? open, high: maximum, open: open !== undefined };
}

function rangeOf({ low, high, open }) {
  if (low === undefined || low < -BOUNDLESS) return say("anyWhole");
  const bounded = high !== undefined && high < BOUNDLESS;
  return say(open ? (bounded ? "aboveUpTo" : "above") : bounded ? "fromTo" : "from", { low, high });
}

/** Into each field its default, below it its range. max of temperature stands in the page: the server has none. */
function showBounds() {
  for (const name of [...NUMBERS, "stop_text"]) {
    const standard = fields?.[name]?.default ?? say(`default_${name}`);
    const rest = name === "max_tokens" && served ? say("restOf", { n: served.max_model_len }) : null;
    $(name).placeholder = rest ?? standard;
  }
  for (const name of fields ? NUMBERS : []) {
    const bounds = boundsOf(fields[name]);
    if (Math.abs(bounds.low) < BOUNDLESS) $(name).min = bounds.low;
    if (bounds.high < BOUNDLESS) $(name).max = bounds.high;
    const noise = name === "temperature" ? say("noise", { most: $(name).max }) : "";
    $(`${name}-range`).textContent = rangeOf(bounds) + noise;
  }
}
