// The AI SDK's default provider, and openai-node, on the Responses API: node with_ai_sdk_responses.mjs URL MODEL PACKAGES
import assert from "node:assert/strict";
import { load, messages, model, pictureUrl, question, run, shape, url, weather } from "./case.mjs";

const { generateObject, generateText, stepCountIs, streamText } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { default: OpenAI } = await load("openai");

const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const stateful = { model: provider(model), maxOutputTokens: 256, temperature: 0, maxRetries: 0 };
const common = { ...stateful, providerOptions: { openai: { store: false } } };
const again = { role: "user", content: question };

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model, max_output_tokens: 256, temperature: 0, store: false };
const input = [
  { role: "user", content: [{ type: "input_image", image_url: pictureUrl, detail: "auto" }, { type: "input_text", text: question }] },
];
const forecast = {
  type: "function", name: "weather", strict: true,
  parameters: {
    type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false,
  },
};

await run({
  async two_turns() {
    const first = await generateText({ ...common, system: "You see pictures.", messages });
    assert.match(first.text, /red/i);
    assert.equal(first.finishReason, "stop");
    const second = await generateText({ ...common, messages: [...messages, ...first.response.messages, again] });
    assert.ok(second.text);
    assert.ok(second.usage.inputTokens > first.usage.inputTokens && first.usage.outputTokens > 0);
  },
  async without_the_option() {
    // Its second turn refers to what was stored: the refusal gives the line to write.
    const first = await generateText({ ...stateful, messages });
    const second = generateText({ ...stateful, messages: [...messages, ...first.response.messages, again] });
    await assert.rejects(second, (error) => {
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /providerOptions: \{ openai: \{ store: false \} \}/);
      return true;
    });
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
    const round = {
      ...common, tools: { weather }, toolChoice: "required", prompt: "What is the weather in Paris?",
      stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => (stepNumber ? { toolChoice: "none" } : {}),
    };
    const whole = await generateText(round);
    const streamed = streamText(round);
    for (const [steps, text] of [[whole.steps, whole.text], [await streamed.steps, await streamed.text]]) {
      assert.equal(steps.length, 2);
      assert.equal(steps[0].toolResults[0].toolName, "weather");
      assert.ok(text);
    }
  },
  async openai_node() {
    const first = await client.responses.create({ ...asked, input });
    assert.match(first.output_text, /red/i);
    const second = await client.responses.create({ ...asked, input: [...input, ...first.output, again] });
    assert.ok(second.output_text && second.usage.input_tokens > first.usage.input_tokens);
    let text = "";
    for await (const event of await client.responses.create({ ...asked, input, stream: true })) {
      text += event.type === "response.output_text.delta" ? event.delta : "";
    }
    assert.match(text, /red/i);
    const events = client.responses.stream({ ...asked, input });
    assert.match((await events.finalResponse()).output_text, /red/i);
  },
  async openai_node_tools() {
    const prompt = [{ role: "user", content: "What is the weather in Paris?" }];
    const called = await client.responses.create({ ...asked, input: prompt, tools: [forecast], tool_choice: "required", parallel_tool_calls: false });
    const [call] = called.output;
    assert.equal(call.type, "function_call");
    const output = { type: "function_call_output", call_id: call.call_id, output: `Sunny in ${JSON.parse(call.arguments).city}.` };
    const said = await client.responses.create({ ...asked, input: [...prompt, ...called.output, output], tools: [forecast], tool_choice: "none" });
    assert.ok(said.output_text);
  },
  async openai_node_fifty_streams() {
    const one = async () => {
      let text = "";
      for await (const event of await client.responses.create({ ...asked, input, stream: true })) {
        text += event.type === "response.output_text.delta" ? event.delta : "";
      }
      return text;
    };
    for (const text of await Promise.all(Array.from({ length: 50 }, one))) assert.match(text, /red/i);
  },
});
