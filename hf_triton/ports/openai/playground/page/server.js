// Requests to the server, its answers, and the same request for a terminal and for Python.

const KEY = "hf-triton-key"; // in sessionStorage: gone with the tab, sent to this origin alone
const KEY_VARIABLE = "HF_TRITON_KEY";
const BASE = new URL("..", location.href); // the page is BASE/playground/

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const useKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** An answer that says no; `param` is the field that it is about, if any. */
export class ServerError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answers ${status}`);
    this.status = status;
    this.param = error?.param ?? null;
  }
}

/** The response to a request, whose `body` is sent as JSON if there is one. */
export async function ask(path, body, signal) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  const method = body ? "POST" : "GET";
  const options = { method, headers, signal, body: body && JSON.stringify(body) };
  let response;
  try {
    response = await fetch(new URL(path, BASE), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, { message: "the server can't be reached" });
  }
  if (response.ok) return response;
  const failed = await response.json().catch(() => ({}));
  throw new ServerError(response.status, failed.error);
}

/** The objects of a stream of server-sent events, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (text + value).split("\n\n");
    text = pieces.pop();
    for (const piece of pieces) {
      const data = piece.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(200, event.error);
      yield event;
    }
  }
}

/** Prometheus' text as a function of a metric's name and model: the sum of its samples, or null. */
export function metricsOf(text) {
  const samples = [...text.matchAll(/^(\w+)\{(.*)\} (\S+)/gm)];
  const ofModel = (labels, model) => labels.includes(`model="${model}"`);
  const find = (name, model, label = "") =>
    samples.filter((one) => one[1] === name && ofModel(one[2], model) && one[2].includes(label));
  return {
    sum: (name, model) => {
      const found = [...find(name, model), ...find(name, `${model}_stream`)];
      return found.length ? found.reduce((sum, one) => sum + Number(one[3]), 0) : null;
    },
    labels: (name, model, label) => {
      const found = [...find(name, model, 'kind="loaded"'), ...find(name, `${model}_stream`, 'kind="loaded"')];
      const taken = found.filter((one) => Number(one[3])); // 0 of a version that is gone
      return [...new Set(taken.map((one) => one[2].match(`${label}="([^"]*)"`)?.[1]))];
    },
  };
}

/** The request as lines for a terminal. */
export function curl(path, body) {
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : "";
  const flag = body.stream ? "-N " : "";
  return `curl ${flag}'${new URL(path, BASE)}' \\
  -H 'Content-Type: application/json'${key} \\
  -d @- <<'JSON'
${JSON.stringify(body, null, 2)}
JSON
`;
}

/** The request in Python: by the openai package where it is one of OpenAI's. */
export function python(path, body) {
  return path.startsWith("v1/") ? pythonOfOpenAi(path, body) : pythonOfTriton(path, body);
}

function pythonOfOpenAi(path, body) {
  const isChat = path.endsWith("chat/completions");
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`);
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${new URL("v1", BASE)}", api_key=${hasKey() ? secret() : '"none"'})
stream = client.${isChat ? "chat.completions" : "completions"}.create(
${fields.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].${isChat ? "delta.content" : "text"} or "", end="", flush=True)
print()
`;
}

function pythonOfTriton(path, body) {
  const key = hasKey() ? `, "Authorization": "Bearer " + ${secret()}` : "";
  return `import json
${hasKey() ? "import os\n" : ""}import urllib.request

body = ${literal(body, "")}
headers = {"Content-Type": "application/json"${key}}
request = urllib.request.Request("${new URL(path, BASE)}", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as response:
    print(json.load(response))
`;
}

const secret = () => `os.environ["${KEY_VARIABLE}"]`;

/** A JSON value as Python writes it. JSON's strings are Python's too. */
function literal(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const isList = Array.isArray(value);
  const items = isList
    ? value.map((one) => literal(one, deeper))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, deeper)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (!items.length) return open + close;
  return `${open}\n${items.map((item) => `${deeper}${item},\n`).join("")}${indent}${close}`;
}

/** The same with the data of files left out: to be read, not to be pasted. */
export function shortened(text) {
  return text.replace(/[\w+/=]{2000,}/g, (data) => `${data.slice(0, 40)}… (${data.length} characters)`);
}
