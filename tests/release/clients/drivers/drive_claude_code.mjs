// Claude Code, without a terminal: the model is one that writes what its user's text says.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { assert, tried } from "./tried.mjs";

const settings = {
  ANTHROPIC_MODEL: "agent",
  ANTHROPIC_DEFAULT_HAIKU_MODEL: "agent",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", // nothing else is in reach
};

// Its answer, with these tools allowed, in a folder and a home of its own.
function claude(folder, script, ...options) {
  const text = `Do it. <script>${JSON.stringify(script)}</script>`;
  const program = join(process.cwd(), "node_modules", ".bin", "claude");
  const env = { ...process.env, ...settings, HOME: folder };
  return execFileSync(program, ["-p", text, ...options],
    { cwd: folder, env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

function emptyFolder() {
  return mkdtempSync(join(process.env.OUTPUT, "claude-"));
}

function call(name, args) {
  return { name, arguments: args };
}

await tried("claude -p: a file is written, edited and shown", async () => {
  const folder = emptyFolder();
  const file_path = join(folder, "a.txt");
  const said = claude(folder, [
    call("Write", { file_path, content: "one\n" }),
    call("Edit", { file_path, old_string: "one", new_string: "two" }),
    call("Bash", { command: "cat a.txt", description: "Show it" }),
    "It says two.",
  ], "--allowedTools", "Write,Edit,Bash");
  assert(said.includes("It says two."), said);
  assert(readFileSync(file_path, "utf8") === "two\n", said);
});
await tried("claude -p: an agent of its own, a search that Anthropic would run", async () => {
  const agent = { description: "Greet", prompt: "Hello", subagent_type: "general-purpose" };
  const script = [call("WebSearch", { query: "rain" }), call("Agent", agent), "Greeted."];
  const said = claude(emptyFolder(), script,
    "--allowedTools", "WebSearch,Agent", "--output-format", "stream-json", "--verbose");
  assert(said.includes('"tool_name":"WebSearch"') || said.includes('"name":"WebSearch"'), said);
  assert(!said.includes('"is_error":true') && said.includes("Greeted."), said.slice(-2000));
});
await tried("claude -p --json-schema", async () => {
  const schema = { type: "object", properties: { happy: { type: "boolean" } }, required: ["happy"] };
  const said = claude(emptyFolder(), [call("StructuredOutput", { happy: true })],
    "--json-schema", JSON.stringify(schema), "--output-format", "json");
  assert(JSON.parse(said).structured_output?.happy === true, said);
});
await tried("claude -p --continue", async () => {
  const folder = emptyFolder();
  claude(folder, ["Well"]);
  assert(claude(folder, ["Well again"], "--continue").includes("Well again"));
});
