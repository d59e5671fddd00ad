// What the scripts of node share: node SCRIPT.mjs URL MODEL PACKAGES; each part prints a line.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const [, , url, model, packages] = process.argv;
const resolved = createRequire(`${packages}/package.json`);
export const load = (name) => import(pathToFileURL(resolved.resolve(name)).href);
const { tool } = await load("ai");
const { z } = await load("zod");

export const picture = readFileSync(new URL("../../examples/media/red-circle.png", import.meta.url));
export const pictureUrl = `data:image/png;base64,${picture.toString("base64")}`;
export const question = "What is in this picture?";
export const messages = [
  { role: "user", content: [{ type: "image", image: picture, mediaType: "image/png" }, { type: "text", text: question }] },
];
export const shape = z.object({
  form: z.enum(["circle", "square", "triangle"]), colour: z.enum(["red", "green", "blue"]), count: z.number().int().min(0).max(9),
});
export const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => `It is sunny in ${city}.`,
});

export async function run(parts) {
  let failed = 0;
  for (const [name, part] of Object.entries(parts)) {
    const error = await part().then(() => null, (reason) => reason);
    if (error) console.error(error);
    failed += error ? 1 : 0;
    console.log(`${name}: ${error ? "FAILED" : "works"}`);
  }
  process.exit(failed ? 1 : 0);
}
