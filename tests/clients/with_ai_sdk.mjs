// The AI SDK's provider for servers like OpenAI's, and openai-node beside it: node with_ai_sdk.mjs URL MODEL PACKAGES
import assert from "node:assert/strict";
import { load, messages, model, pictureUrl, question, run, shape, url, weather } from "./case.mjs";

const { generateObject, generateText, stepCountIs, streamText } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { default: OpenAI } = await load("openai");

const provider = createOpenAICompatible({
  name: "pixelferry", baseURL: `${url}/v1`, supportsStructuredOutputs: true, includeUsage: true,
});
const common = { model: provider(model), maxOutputTokens: 256, temperature: 0, maxRetries: 0 };

const parts = {
  async chat() {
    assert.match((await generateText({ ...common, messages })).text, /red/i);
  },
  async stream() {
    const answer = streamText({ ...common, messages });
    const pieces = [];
    for await (const piece of answer.textStream) pieces.push(piece);
    assert.match(pieces.join(""), /red/i);
    assert.ok((await answer.usage).outputTokens > 0);
  },
  async structured() {
    const { object } = await generateObject({ ...common, messages, schema: shape });
    assert.deepEqual(shape.parse(object), object);
  },
  async tools() {
    const answer = await generateText({
      ...common, tools: { weather }, toolChoice: "required", prompt: "What is the weather in Paris?",
      stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => (stepNumber ? { toolChoice: "none" } : {}),
    });
    assert.equal(answer.steps.length, 2);
    assert.equal(answer.steps[0].toolResults[0].toolName, "weather");
    assert.ok(answer.text);
  },
  async openai_node() {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
    const content = [
      { type: "image_url", image_url: { url: pictureUrl } },
      { type: "text", text: question },
    ];
    const asked = { model, max_tokens: 64, temperature: 0, messages: [{ role: "user", content }] };
    assert.match((await client.chat.completions.create(asked)).choices[0].message.content, /red/i);
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    assert.match(text, /red/i);
  },
};

await run(parts);
