// Anthropic's package for Node, as its README shows it.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { SAID, assert, joined, tried } from "./tried.mjs";

const client = new Anthropic();
const asked = { model: "chat", max_tokens: 60, messages: [{ role: "user", content: SAID }] };
const script = [{ name: "weather", arguments: { city: "Rome" } }, "It rains."];
const content = `<script>${JSON.stringify(script)}</script>`;
const weather = betaZodTool({
  name: "weather",
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string() }),
  run: ({ city }) => `rain in ${city}`,
});
const working = {
  model: "agent", max_tokens: 4096, messages: [{ role: "user", content }], tools: [weather],
};

await tried("messages", async () => {
  const done = await client.messages.create(asked);
  assert(done.content[0].text && done._request_id, done);
});
await tried("messages.stream()", async () => {
  const stream = client.messages.stream(asked);
  await joined(stream, (event) => event.delta?.text);
  assert((await stream.finalMessage()).usage.output_tokens);
});
await tried("beta.messages.toolRunner()", async () => {
  const done = await client.beta.messages.toolRunner(working);
  assert(done.content[0].text === "It rains.", done);
});
await tried("beta.messages.toolRunner(), streamed", async () => {
  const reasons = [];
  for await (const stream of client.beta.messages.toolRunner({ ...working, stream: true }))
    reasons.push((await stream.finalMessage()).stop_reason);
  assert(reasons.join() === "tool_use,end_turn", reasons);
});
await tried("beta.messages.thread()", async () => {
  const { messages, tools, ...params } = working;
  const thread = client.beta.messages.thread({
    ...params, unsupportedRequestBehavior: "continue_unthreaded",
  });
  const send = (text) => thread.send({ role: "user", content: text });
  const first = await send(SAID);
  assert((await send(SAID)).usage.input_tokens > first.usage.input_tokens, first);
});
await tried("beta.messages.countTokens", async () => {
  const { max_tokens, ...counted } = working;
  assert((await client.beta.messages.countTokens(counted)).input_tokens);
});
await tried("models", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.display_name);
  assert(found.includes("chat"), found);
});
await tried("BadRequestError: a prompt that is too long", async () => {
  const long = { ...asked, messages: [{ role: "user", content: "one ".repeat(5000) }] };
  const error = await client.messages.create(long).catch((e) => e);
  assert(error instanceof Anthropic.BadRequestError && error.message.includes("too long"), error);
});
