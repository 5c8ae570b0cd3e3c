// Vercel's AI SDK with @ai-sdk/openai, whose default model speaks to /v1/responses.

import { createOpenAI } from "@ai-sdk/openai";
import { Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { SAID, assert, joined, tried } from "./tried.mjs";

const openai = createOpenAI();
const asked = { model: openai("chat"), prompt: SAID, maxOutputTokens: 200, maxRetries: 0 };
const weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string().max(9) }),
  execute: async () => "rain",
});

const forced = { type: "tool", toolName: "weather" };

await tried("generateText", async () => {
  const done = await generateText(asked);
  assert(done.text && done.usage.outputTokens, done);
});
await tried("streamText", async () => {
  await joined(streamText(asked).textStream, (text) => text);
});
await tried("generateText with an object", async () => {
  const schema = z.object({ happy: z.boolean() });
  const done = await generateText({ ...asked, output: Output.object({ schema }) });
  assert(typeof done.output.happy === "boolean", done);
});
await tried("generateText with a forced tool", async () => {
  const done = await generateText({ ...asked, tools: { weather }, toolChoice: forced });
  assert(done.toolResults[0].output === "rain", done);
});
await tried("generateText in steps with a tool", async () => {
  const done = await generateText({
    ...asked, tools: { weather }, stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : forced }),
  });
  assert(done.steps.length === 2, done);
});
await tried("openai.responses() with previousResponseId", async () => {
  const first = await generateText({ ...asked, model: openai.responses("chat") });
  const { responseId } = first.providerMetadata.openai;
  const providerOptions = { openai: { previousResponseId: responseId } };
  const second = await generateText({ ...asked, providerOptions });
  assert(second.usage.inputTokens > first.usage.inputTokens, [first.usage, second.usage]);
});
await tried("openai.chat()", async () => {
  assert((await generateText({ ...asked, model: openai.chat("chat") })).text);
});
await tried("openai.completion()", async () => {
  assert((await generateText({ ...asked, model: openai.completion("chat") })).text);
});
await tried("embedMany", async () => {
  const model = openai.embedding("embedding");
  const done = await embedMany({ model, values: ["A dog.", "A cat."], maxRetries: 0 });
  assert(done.embeddings.length === 2 && done.embeddings[0].length === 64, done);
});
