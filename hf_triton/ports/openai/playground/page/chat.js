// Chats and completions: a text that comes piece by piece, and what it may be told to be like.

import { asNumber, byId, clearErrors, labelled, make, showError, Speaker } from "./dom.js";
import { ask, events } from "./server.js";

const OPTIONS = [
  { name: "temperature", label: "Temperature", value: "0.3" }, // the API's own 1 makes small models ramble
  { name: "max_tokens", label: "Max tokens" },
  { name: "top_p", label: "Top p" },
  { name: "seed", label: "Seed" },
  { name: "stop", label: "Stop at", isText: true },
];
const SHORTEST_MS = 50; // that tells a speed
const NO_TEMPLATE = /has no chat template/;
const form = byId("talk");
const turns = byId("turns");
const message = byId("message");
let onSent; // is told what is sent
let model;
let history = []; // of OpenAI's messages
let running; // the AbortController of the answer that is coming

export function begin(sent) {
  onSent = sent;
  const system = make("textarea", { name: "system", rows: 3 });
  byId("options").append(labelled(system, "System prompt"), ...OPTIONS.map(optionField));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  byId("stop-button").addEventListener("click", stop);
  byId("clear-button").addEventListener("click", () => {
    clear();
    message.focus();
  });
  byId("modes").addEventListener("change", showMode);
}

function optionField({ name, label, isText, value = "" }) {
  const field = make("input", { name, value, autocomplete: "off" });
  if (!isText) field.inputMode = "decimal";
  return labelled(field, label);
}

/** Shows the form for another model. */
export function show(described) {
  model = described;
  const [media] = model.media;
  byId("file-label").hidden = !media;
  byId("file-kind").textContent = media === "audio" ? "Sound" : "Image";
  byId("file").accept = media ? `${media}/*` : "";
  byId("modes").hidden = !(model.chats && model.completes);
  setMode(model.chats ? "chat" : "completion");
  clear();
  form.hidden = false;
}

export function hide() {
  stop();
  form.hidden = true;
  byId("modes").hidden = true;
}

const isChat = () => document.querySelector("input[name=mode]:checked").value === "chat";

function setMode(mode) {
  document.querySelector(`input[name=mode][value=${mode}]`).checked = true;
  showMode();
}

function showMode() {
  byId("message-label").textContent = isChat() ? "Message" : "Text to go on with";
  byId("field-system").closest(".field").hidden = !isChat();
  byId("clear-button").textContent = isChat() ? "New chat" : "Clear";
  clear();
}

function clear() {
  stop();
  history = [];
  turns.replaceChildren();
  byId("speed").textContent = "";
  clearErrors(form);
}

function stop() {
  running?.abort();
}

async function send() {
  const text = message.value;
  if (running || !text) return;
  clearErrors(form);
  const own = running = new AbortController();
  const earlier = history; // another one once the chat is cleared
  const asked = isChat() ? await chatRequest(text) : completionRequest(text);
  onSent(asked.path, asked.body);
  const answer = showTurns(text);
  byId("stop-button").disabled = false;
  message.value = "";
  try {
    await follow(asked, answer, own.signal);
    const said = { role: "assistant", content: answer.text() };
    if (asked.body.messages && said.content && history === earlier) history = [...asked.body.messages, said];
    byId("file").value = "";
  } catch (error) {
    answer.forget();
    message.value = text;
    fail(error, text);
  } finally {
    if (running === own) running = undefined;
    byId("stop-button").disabled = true;
  }
}

async function chatRequest(text) {
  const system = byId("field-system").value;
  const earlier = history.filter((one) => one.role !== "system");
  const first = system ? [{ role: "system", content: system }] : [];
  const messages = [...first, ...earlier, { role: "user", content: await content(text) }];
  return { path: "v1/chat/completions", body: { model: model.name, messages, ...options() } };
}

function completionRequest(text) {
  return { path: "v1/completions", body: { model: model.name, prompt: text, ...options() } };
}

/** The text, or with a file a list of parts. */
async function content(text) {
  const [file] = byId("file").files;
  if (!file || !model.media.length) return text;
  const url = await new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(file);
  });
  const part = model.media[0] === "image"
    ? { type: "image_url", image_url: { url } }
    : { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: file.name.split(".").pop() } };
  return [part, { type: "text", text }];
}

function options() {
  const given = OPTIONS.filter(({ name }) => form.elements[name].value.trim());
  const values = given.map(({ name, isText }) => {
    const { value } = form.elements[name];
    return [name, isText ? value : asNumber(value)];
  });
  return { ...Object.fromEntries(values), stream: true, stream_options: { include_usage: true } };
}

/** The new turns; what comes goes into the second. */
function showTurns(text) {
  const reasoning = make("p", { className: "reasoning", hidden: true }, "");
  const answer = make("p", {}, "");
  const asked = make("article", { className: "user", "aria-label": "You" }, make("p", {}, text));
  const answered = make("article", { className: "model", "aria-label": model.name }, reasoning, answer);
  if (!isChat()) turns.replaceChildren();
  turns.append(asked, answered);
  turns.scrollTop = turns.scrollHeight;
  const following = (change) => {
    const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
    change();
    if (follows) turns.scrollTop = turns.scrollHeight;
  };
  const grow = (place, more) => following(() => {
    place.hidden = false;
    place.firstChild.appendData(more);
  });
  return {
    add: (more) => grow(answer, more),
    reason: (more) => grow(reasoning, more),
    note: (note) => following(() => answered.append(make("p", { className: "hint" }, note))),
    text: () => answer.textContent,
    forget: () => { asked.remove(); answered.remove(); },
  };
}

/** Shows the answer as it comes, also as far as it came before it was stopped. */
async function follow({ path, body }, answer, signal) {
  const speaker = new Speaker();
  const beganAt = performance.now();
  let firstAt, usage, reason;
  try {
    for await (const event of events(await ask(path, body, signal))) {
      usage = event.usage ?? usage;
      const [choice] = event.choices;
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      if (choice.delta?.reasoning_content) answer.reason(choice.delta.reasoning_content);
      const more = choice.delta?.content ?? choice.text;
      if (!more) continue;
      firstAt ??= performance.now();
      answer.add(more);
      speaker.add(more);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    reason = "stopped";
  }
  const note = { length: "Ended by max tokens.", stopped: "Stopped." }[reason] ?? "";
  if (note) answer.note(note);
  speaker.end(note);
  showSpeed(usage, firstAt - beganAt, performance.now() - firstAt);
}

function showSpeed(usage, firstMs, restMs) {
  if (!usage) {
    byId("speed").textContent = "";
    return;
  }
  const count = usage.completion_tokens;
  const speed = count > 1 && restMs > SHORTEST_MS ? `, ${((count - 1) / restMs * 1000).toFixed(1)} tokens/s` : "";
  const first = Number.isFinite(firstMs) ? `, the first after ${(firstMs / 1000).toFixed(2)} s` : "";
  byId("speed").textContent = `${count} tokens${speed}${first}`;
}

function fail(error, text) {
  if (isChat() && NO_TEMPLATE.test(error.message)) {
    setMode("completion");
    message.value = text;
    error = { message: `${model.name} has no chat template: send a text that it goes on with.` };
  }
  const param = { messages: "message", prompt: "message" }[error.param] ?? error.param;
  showError(form, { message: error.message, param }, byId("talk-error"));
  if (error.status === 401) document.dispatchEvent(new Event("key-needed"));
}
