// opencode as people start it: its provider in opencode.json, a task on the command line.
// What the model writes is in the task (tests/clients/agent); all else is real.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { assert, tried } from "./tried.mjs";

const work = `${process.env.OUTPUT}/work`;
const opencode = new URL("node_modules/.bin/opencode", import.meta.url).pathname;
const long = "It says two. ".repeat(100).trim(); // longer than an answer is by default
// It works where PWD is; its list of models is not in reach.
const env = { ...process.env, PWD: work, OPENCODE_DISABLE_MODELS_FETCH: "1" };

mkdirSync(work, { recursive: true });
writeFileSync(`${work}/opencode.json`, JSON.stringify({
  provider: {
    triton: {
      npm: "@ai-sdk/openai-compatible",
      options: { baseURL: process.env.OPENAI_BASE_URL },
      models: { agent: {} },
    },
  },
  model: "triton/agent",
}));

// What it says of a task done in that folder; it would escape the quotes of one long argument.
function run(script, ...options) {
  const task = `Do it. <script>${JSON.stringify(script)}</script>`;
  return execFileSync(opencode, ["run", ...options, ...task.split(" ")],
    { cwd: work, env, encoding: "utf8", timeout: 240000, stdio: ["ignore", "pipe", "pipe"] });
}

const call = (name, args) => ({ name, arguments: args });

await tried("run: a file is written, edited and copied", async () => {
  const filePath = `${work}/a.txt`;
  const said = run([
    call("write", { filePath, content: "one\n" }),
    call("edit", { filePath, oldString: "one", newString: "two" }),
    call("bash", { command: "cat a.txt > b.txt", description: "Copy it" }),
    long,
  ]);
  assert(said.includes(long), said);
  assert(readFileSync(`${work}/b.txt`, "utf8") === "two\n", said);
});
await tried("run: an agent of its own", async () => {
  const task = { description: "Greet", prompt: "Hello", subagent_type: "general" };
  const said = run([call("task", task), "Greeted."], "--format", "json");
  assert(said.includes("Greeted.") && said.includes('"status":"completed"'), said);
});
await tried("run --continue", async () => {
  assert(run(["Well again"], "--continue").includes("Well again"));
});
