// OpenAI's package for Node, as its README shows it.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { EXPECTED, PROMPT, SAID, assert, joined, tried } from "./tried.mjs";

const client = new OpenAI();
const asked = {
  model: "chat",
  messages: [{ role: "user", content: SAID }],
  max_completion_tokens: 60,
};
const Answer = z.object({ happy: z.boolean() });

await tried("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert(names.includes("demo"), names);
});
await tried("completions", async () => {
  const done = await client.completions.create({
    model: "demo", prompt: PROMPT, max_tokens: 12, temperature: 0,
  });
  assert(done.choices[0].text === EXPECTED, done);
});
await tried("chat", async () => {
  const done = await client.chat.completions.create(asked);
  assert(done.choices[0].message.content, done);
});
await tried("chat.completions.stream()", async () => {
  const stream = client.chat.completions.stream(asked);
  await joined(stream, (chunk) => chunk.choices[0]?.delta?.content);
  assert(await stream.finalContent());
});
await tried("chat.completions.parse()", async () => {
  const format = zodResponseFormat(Answer, "answer");
  const done = await client.chat.completions.parse({ ...asked, response_format: format });
  assert(typeof done.choices[0].message.parsed.happy === "boolean", done);
});
await tried("chat.completions.runTools()", async () => {
  const schema = { type: "object", properties: {}, additionalProperties: false };
  const weather = { name: "weather", parameters: schema, function: async () => "rain" };
  const runner = client.chat.completions.runTools({
    ...asked, tools: [{ type: "function", function: weather }],
  });
  assert((await runner.finalChatCompletion()).choices[0].message);
});
await tried("responses", async () => {
  const done = await client.responses.create({ model: "chat", input: SAID });
  assert(done.output_text, done);
});
await tried("responses.stream()", async () => {
  const stream = client.responses.stream({ model: "chat", input: SAID });
  await joined(stream, (event) => event.type === "response.output_text.delta" && event.delta);
  assert((await stream.finalResponse()).output_text);
});
await tried("responses.parse()", async () => {
  const format = zodTextFormat(Answer, "answer");
  const done = await client.responses.parse({ model: "chat", input: SAID, text: { format } });
  assert(typeof done.output_parsed.happy === "boolean", done);
});
await tried("embeddings", async () => {
  const done = await client.embeddings.create({ model: "embedding", input: "A dog." });
  assert(done.data[0].embedding.length === 64, done);
});
await tried("BadRequestError: context_length_exceeded", async () => {
  const long = [{ role: "user", content: "one ".repeat(5000) }];
  const error = await client.chat.completions.create({ ...asked, messages: long }).catch((e) => e);
  assert(error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded", error);
});
