"use strict";
// The words of an answer as they come, and its boxes on their pictures.

const LONGEST = 4000; // characters of one block of an answer: a longer one would be laid out again with each token

// ---- the text: tags of boxes are no words ----

/** Writes an answer as it grows. What lies between <ref> and </ref> is marked; boxes themselves are not shown. */
class AnswerText {
  constructor(element) {
    this.element = element;
    this.held = ""; // what may be the beginning of a tag
    this.inBox = false;
    this.mark = null;
    this.marks = [];
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
    const whole = this.held + text;
    let from = 0;
    const tags = /<(\/?)(ref|box|quad)>/g;
    for (let tag = tags.exec(whole); tag; tag = tags.exec(whole)) {
      this.put(whole.slice(from, tag.index));
      from = tags.lastIndex;
      if (tag[2] !== "ref") this.inBox = !tag[1];
      else if (tag[1]) this.mark = null;
      else { this.mark = make("mark"); this.marks.push(this.mark); this.line.append(this.mark); }
    }
    const begun = whole.slice(from).match(/<\/?[a-z]{0,4}$/);
    const end = begun ? from + begun.index : whole.length;
    this.put(whole.slice(from, end));
    this.held = whole.slice(end);
  }

  put(text) {
    if (!text || this.inBox) return;
    if (this.mark) return this.mark.append(text);
    if (this.line.lastChild !== this.node) { this.node = document.createTextNode(""); this.line.append(this.node); }
    this.node.appendData(text);
    this.length += text.length;
    if (this.length > LONGEST) this.block();
  }

  end() {
    this.mark = null;
    this.inBox = false;
    this.put(this.held);
    this.held = "";
  }
}

// ---- boxes ----

/** Boxes onto their pictures; a word and its box light up together. */
function tieBoxes(turn) {
  const users = turn.asked.filter((one) => one.role === "user");
  const pictures = users.flatMap((one) => one.parts.filter((part) => part.kind === "image").map((part) => one.figures.get(part)));
  const marks = [...turn.writer.marks];
  for (const box of turn.boxes ?? []) {
    const holder = pictures[box.picture]?.querySelector(".picture");
    if (!holder) continue;
    const at = box.ref === null ? -1 : marks.findIndex((mark) => mark.textContent === box.ref);
    const mark = at < 0 ? null : marks.splice(at, 1)[0];
    const image = holder.querySelector("img");
    const draw = () => drawBox(holder, image, box, mark, turn);
    if (image.complete && image.naturalWidth) draw();
    else image.addEventListener("load", draw, { once: true });
  }
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
    label.style.left = `${(100 * Math.min(...points.map((p) => p[0]))) / width}%`;
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
