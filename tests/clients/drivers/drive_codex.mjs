// OpenAI's Codex as people start it: its provider in config.toml, a task on the command line.
// What the model writes is in the task (tests/clients/agent); all else is real.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { assert, tried } from "./tried.mjs";

const home = `${process.env.HOME}/codex`;
const work = `${process.env.OUTPUT}/work`;
const codex = new URL("node_modules/.bin/codex", import.meta.url).pathname;
const options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"];
const patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-helo\n+hello\n*** End Patch";

mkdirSync(home, { recursive: true });
writeFileSync(`${home}/config.toml`, `
model = "agent"
model_provider = "triton"
model_context_window = 131072
[model_providers.triton]
name = "Triton"
base_url = "${process.env.OPENAI_BASE_URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
`);

// The events of a turn in a folder of its own; the last thing said ends it.
function run(script, ...more) {
  const task = `Mend a.txt. <script>${JSON.stringify(script)}</script>`;
  const said = execFileSync(codex, ["exec", ...more, ...options, task], {
    cwd: work, env: { ...process.env, CODEX_HOME: home }, encoding: "utf8", timeout: 240000,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const events = said.trim().split("\n").map((line) => JSON.parse(line));
  const ended = events.filter((one) => one.type === "item.completed").map((one) => one.item);
  const items = ended.filter((one) => one.type !== "error"); // it knows nothing of such a model
  assert(items.at(-1).text === script.at(-1), events);
  return { items, usage: events.at(-1).usage };
}

const shell = (cmd) => ({ name: "exec_command", arguments: { cmd } });

rmSync(work, { recursive: true, force: true });
mkdirSync(work);
writeFileSync(`${work}/a.txt`, "helo\n");
await tried("exec with commands and a patch", async () => {
  const cmd = `apply_patch <<'EOF'\n${patch}\nEOF`;
  const { items, usage } = run([shell("cat a.txt"), shell(cmd), "It is mended."]);
  assert(items[0].aggregated_output === "helo\n", items);
  assert(readFileSync(`${work}/a.txt`, "utf8") === "hello\n", items);
  assert(usage.input_tokens && usage.output_tokens, usage);
});
await tried("exec resume", async () => {
  const { items } = run([shell("echo again > b.txt"), "Done again."], "resume", "--last");
  assert(readFileSync(`${work}/b.txt`, "utf8") === "again\n", items);
});
await tried("a tool of a namespace", async () => {
  const name = "close_agent";
  run([{ name, arguments: { target: "00000000-0000-0000-0000-000000000000" } }, "No such one."]);
});
await tried("exec --output-schema", async () => {
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] };
  const file = `${process.env.OUTPUT}/schema.json`;
  writeFileSync(file, JSON.stringify({ ...schema, additionalProperties: false }));
  run(['{"ok": true}'], "--output-schema", file);
});
