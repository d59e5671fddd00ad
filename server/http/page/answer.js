"use strict";
// The words of an answer as they come, and its boxes on their pictures.

const LONGEST = 4000; // characters of one block of an answer: a longer one would be laid out again with each token

// ---- the text ----

const POINT = "\\s*\\(\\s*-?[0-9]{1,18}\\s*,\\s*-?[0-9]{1,18}\\s*\\)\\s*";
const REGION = new RegExp(`^(?:<ref>((?:(?!</?(?:ref|box|quad)>)[^]){0,200})</ref>|<box>${POINT},${POINT}</box>|<quad>${POINT}(?:,${POINT}){3}</quad>)`);
const OPENING = ["<ref>", "<box>", "<quad>"];
const HELD = 300; // characters of what may still become a region

/**
 * Writes an answer as it grows. Names of regions are marked and boxes not shown; what is no whole region is text, as for the server.
 * Where the server gave no boxes in the end, because there is no picture or it was stopped, all of it is text.
 */
class AnswerText {
  constructor(element) {
    this.element = element;
    this.held = ""; // what may be the beginning of a region
    this.named = null; // the mark right before this place
    this.marks = []; // the mark of each box, or null, in the order of the boxes
    this.said = ""; // all of it
    this.tagged = false; // whether some of it is not shown
    this.block();
  }

  block() {
    this.line = make("span");
    this.node = document.createTextNode("");
    this.line.append(this.node);
    this.element.append(this.line);
    this.length = 0;
  }

  write(text) {
    this.said += text;
    let rest = this.held + text;
    for (;;) {
      const at = rest.indexOf("<");
      this.put(at < 0 ? rest : rest.slice(0, at));
      rest = at < 0 ? "" : rest.slice(at);
      const region = rest.match(REGION);
      if (region) this.region(region);
      else if (mayBecomeRegion(rest)) break;
      else this.put("<");
      rest = rest.slice(region ? region[0].length : 1);
    }
    this.held = rest;
  }

  region([tag, name]) {
    this.tagged = true;
    if (name === undefined) return this.marks.push(this.named);
    this.named = make("mark", {}, name);
    this.line.append(this.named);
    this.length += tag.length;
  }

  put(text) {
    if (!text) return;
    this.named = null;
    if (this.length > LONGEST) this.block();
    if (this.line.lastChild !== this.node) { this.node = document.createTextNode(""); this.line.append(this.node); }
    this.node.appendData(text);
    this.length += text.length;
  }

  end(boxes = []) {
    if (this.tagged && !boxes.length) {
      this.element.replaceChildren();
      this.block();
      this.held = this.said;
    }
    this.put(this.held);
    this.held = "";
  }
}

/** Nothing, too, which the next piece of the answer may go on with. */
function mayBecomeRegion(text) {
  return text.length < HELD && OPENING.some((tag) => tag.startsWith(text) || (text.startsWith(tag) && !/<\/?(?:ref|box|quad)>/.test(text.slice(1))));
}

// ---- boxes ----

/** Boxes onto their pictures; a word and its box light up together. */
function tieBoxes(turn) {
  const users = turn.asked.filter((one) => one.role === "user");
  const pictures = users.flatMap((one) => one.parts.filter((part) => part.kind === "image").map((part) => one.figures.get(part)));
  (turn.boxes ?? []).forEach((box, i) => {
    const holder = pictures[box.picture]?.querySelector(".picture");
    if (!holder) return;
    const image = holder.querySelector("img");
    const draw = () => drawBox(holder, image, box, turn.writer.marks[i], turn);
    if (image.complete && image.naturalWidth) draw();
    else image.addEventListener("load", draw, { once: true });
  });
}

const SVG = "http://www.w3.org/2000/svg";

function drawBox(holder, image, box, mark, turn) {
  const [width, height] = [image.naturalWidth, image.naturalHeight];
  let svg = holder.querySelector("svg");
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    holder.append(svg);
  }
  const points = box.kind === "box"
    ? [box.points[0], [box.points[1][0], box.points[0][1]], box.points[1], [box.points[0][0], box.points[1][1]]]
    : box.points;
  const group = document.createElementNS(SVG, "g");
  const shape = document.createElementNS(SVG, "polygon");
  shape.setAttribute("points", points.map((point) => point.join(",")).join(" "));
  group.append(shape);
  svg.append(group);
  const label = box.ref && make("span", { class: "label" }, box.ref);
  if (label) {
    const xs = points.map((p) => (100 * p[0]) / width);
    const [left, right] = [Math.min(...xs), 100 - Math.max(...xs)];
    label.style[right < left ? "right" : "left"] = `${Math.min(left, right)}%`; // there is more room on its other side
    label.style.maxWidth = `${100 - Math.min(left, right)}%`;
    label.style.top = `${(100 * Math.min(...points.map((p) => p[1]))) / height}%`;
    holder.append(label);
  }
  (turn.drawn ??= []).push(group, ...(label ? [label] : []));
  const light = (on) => () => { group.classList.toggle("on", on); mark?.classList.toggle("on", on); };
  if (mark) mark.tabIndex = 0;
  for (const one of mark ? [mark, group] : [group]) {
    for (const [event, on] of [["mouseenter", true], ["mouseleave", false], ["focus", true], ["blur", false]]) {
      one.addEventListener(event, light(on));
    }
  }
}
