// The AI SDK's provider for servers like OpenAI's, and openai-node beside it: node with_ai_sdk.mjs URL MODEL PACKAGES
import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { load, messages, model, picture, pictureUrl, question, run, shape, url, weather } from "./case.mjs";

const { generateObject, generateText, stepCountIs, streamText } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { default: OpenAI } = await load("openai");

const again = "What colour is it?";
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
  async turns() {
    const first = await generateText({ ...common, messages });
    const asked = [...messages, ...first.response.messages, { role: "user", content: again }];
    assert.match((await generateText({ ...common, messages: asked })).text, /red/i);
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
    const { message } = (await client.chat.completions.create(asked)).choices[0];
    assert.match(message.content, /red/i);
    const second = { ...asked, messages: [...asked.messages, message, { role: "user", content: again }] };
    assert.match((await client.chat.completions.create(second)).choices[0].message.content, /red/i);
    const streamed = async () => {
      let text = "";
      for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
        text += chunk.choices[0]?.delta?.content ?? "";
      }
      return text;
    };
    const texts = await Promise.all(Array.from({ length: 50 }, streamed));
    assert.equal(texts.filter((text) => /red/i.test(text)).length, 50);
    const tools = [{
      type: "function",
      function: {
        name: "weather", description: "The weather in a city.",
        parameters: {
          type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"],
          additionalProperties: false,
        },
      },
    }];
    const call = { ...asked, max_tokens: 256, tools, messages: [{ role: "user", content: "What is the weather in Paris?" }] };
    const called = (await client.chat.completions.create({ ...call, tool_choice: "required" })).choices[0].message;
    const results = called.tool_calls.map(({ id, function: { arguments: said } }) => (
      { role: "tool", tool_call_id: id, content: `It is sunny in ${JSON.parse(said).city}.` }
    ));
    const told = { ...call, tool_choice: "none", messages: [...call.messages, called, ...results] };
    assert.ok((await client.chat.completions.create(told)).choices[0].message.content);
  },
  async node_transcriptions() {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
    const file = () => createReadStream(new URL("../../examples/media/three-beeps.wav", import.meta.url));
    const asked = { model, prompt: "How many beeps do you hear?" };
    assert.match((await client.audio.transcriptions.create({ ...asked, file: file() })).text, /3/);
    let text = "", last;
    for await (last of await client.audio.transcriptions.create({ ...asked, file: file(), stream: true })) {
      text += last.delta ?? "";
    }
    assert.ok(last.text === text && text.includes("3"));
  },
};

await run(parts);
