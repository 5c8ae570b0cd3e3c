// The page: the models and what they do now, which one is asked, and what was sent last.

import * as chat from "./chat.js";
import { byId, make } from "./dom.js";
import * as form from "./form.js";
import { ask, curl, metricsOf, python, shortened, useKey } from "./server.js";

const LOOK_EVERY_MS = 3000;
const LOOKS_AT_READY = 4; // at the metrics for each at the models while none is loading: callers have limits
const rows = new Map(); // a model's name -> its row and cells
let models = [];
let chosen; // a model's name
let shownState; // of the chosen model, as its form was made for: "ready" where it can be asked
let numLooks = 0;
let hasMetrics = true;
let sent; // {path, body}
const counted = new Map(); // a model's name -> how many tokens it had computed, and when

async function look() {
  try {
    if (numLooks++ % LOOKS_AT_READY === 0 || models.some((model) => model.state === "loading")) {
      models = (await (await ask("playground/models")).json()).models;
      showModels();
      byId("key-form").hidden = true;
    }
    await lookAtLoad();
  } catch (error) {
    numLooks = 0;
    if (error.status === 401) needKey();
    else say(error.message);
  }
}

async function lookAtLoad() {
  if (!hasMetrics) return;
  try {
    showLoad(metricsOf(await (await ask("metrics")).text()));
  } catch (error) {
    if (error.status !== 404) throw error;
    hasMetrics = false; // Triton is elsewhere
  }
}

function say(text) {
  if (byId("summary").textContent !== text) byId("summary").textContent = text;
}

function showModels() {
  const names = models.map((model) => model.name);
  if (names.join() !== [...rows.keys()].join()) {
    rows.clear();
    for (const name of names) rows.set(name, row(name));
    byId("models").replaceChildren(...[...rows.values()].flatMap((one) => one.elements));
  }
  for (const model of models) {
    const { cells } = rows.get(model.name);
    cells.task.textContent = model.task ?? "";
    cells.state.className = `state ${model.state}`;
    cells.state.textContent = model.state;
    cells.reason.textContent = model.reason ?? "";
    cells.reason.parentElement.hidden = model.state !== "failed";
    cells.version.textContent = (model.versions ?? []).join(", ");
  }
  const wanted = decodeURIComponent(location.hash.slice(1));
  const ready = models.filter(canBeAsked);
  say(`${ready.length} of ${models.length} ${models.length === 1 ? "model is" : "models are"} ready`);
  const first = ready.find((model) => model.chats) ?? ready[0];
  choose([wanted, chosen, first?.name].find((name) => names.includes(name)));
}

// One that is asleep is loaded for the first request.
function canBeAsked(model) {
  return model.state === "ready" || model.state === "asleep";
}

function row(name) {
  const button = make("button", { type: "button", "aria-pressed": "false" }, name);
  button.addEventListener("click", () => {
    history.replaceState(null, "", `#${encodeURIComponent(name)}`);
    choose(name);
    byId("model").focus();
  });
  const task = make("span", { className: "hint" });
  const state = make("span");
  const cell = (className) => make("td", { className });
  const [version, device, load] = [cell("wide"), cell("wide"), cell("")];
  const reason = make("td", { className: "failed", colSpan: 3 });
  const named = make("tr", {}, make("th", { scope: "row" }, button, " ", task), make("td", {}, state), version, device, load);
  const elements = [named, make("tr", { className: "reason", hidden: true }, reason)];
  return { elements, button, cells: { task, state, reason, version, device, load } };
}

function choose(name) {
  const model = models.find((one) => one.name === name);
  if (!model) return;
  const isReady = canBeAsked(model);
  const state = isReady ? "ready" : model.state;
  if (chosen === name && shownState === state) return;
  const isNew = chosen !== name;
  [chosen, shownState] = [name, state];
  for (const [other, { button }] of rows) button.setAttribute("aria-pressed", String(other === name));
  byId("model").hidden = false;
  byId("model-title").textContent = name;
  byId("not-ready").hidden = isReady;
  byId("not-ready").textContent = `${name} can't be asked now: ${model.reason ?? model.state}`;
  if (isNew) {
    chat.hide();
    form.hide();
  }
  if (isReady) (model.chats || model.completes ? chat : form).show(model)?.catch((error) => say(error.message));
}

function showLoad(metrics) {
  for (const { name } of models) {
    const { cells } = rows.get(name);
    const sum = (metric) => metrics.sum(`hf_triton_${metric}`, name);
    cells.device.textContent = metrics.labels("hf_triton_memory_bytes", name, "device").join(", ");
    const speed = speedOf(name, sum("generated_tokens_total") ?? sum("input_tokens_total"));
    const slots = sum("kv_slots");
    const counts = [
      [speed, "tokens/s"],
      [sum("waiting"), "waiting"],
      [sum("open_requests"), "requests"],
      [sum("kv_slots_used"), `of ${slots} slots`],
    ].filter(([count]) => count !== null);
    const isIdle = counts.length && counts.every(([count]) => !count);
    const idle = slots ? `idle · ${slots} slots` : "idle"; // 0 of a model that sleeps
    cells.load.textContent = isIdle ? idle : counts.map((one) => one.join(" ")).join(" · ");
  }
}

/** Tokens a second since the last look; null where there is no count or no earlier one. */
function speedOf(name, count) {
  const before = counted.get(name);
  if (count === null) return null;
  const now = performance.now();
  counted.set(name, { count, now });
  if (!before) return 0;
  const speed = Math.max(0, (count - before.count) / (now - before.now) * 1000);
  return speed >= 10 || !speed ? Math.round(speed) : speed.toFixed(1);
}

function showSent(path, body) {
  sent = { path, body };
  byId("request").hidden = false;
  byId("snippet").textContent = shortened(snippet());
}

function snippet() {
  const write = document.querySelector("input[name=language]:checked").value === "curl" ? curl : python;
  return write(sent.path, sent.body);
}

async function copy() {
  const text = snippet();
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page without TLS, or without leave: as it was done before there was a clipboard
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    byId("copy").focus();
  }
  byId("copy").textContent = "Copied";
  byId("spoken").textContent = "Copied";
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 2000);
}

function needKey() {
  if (!byId("key-form").hidden) return;
  byId("key-form").hidden = false;
  say("This server needs a key");
  byId("key").focus();
}

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  numLooks = 0;
  await look();
  const refused = !byId("key-form").hidden;
  byId("key-error").hidden = !refused;
  byId("key-error").textContent = "The server refuses this key";
  if (!refused) byId("key").value = "";
});
document.addEventListener("key-needed", needKey);
window.addEventListener("hashchange", showModels);
byId("request").addEventListener("change", () => showSent(sent.path, sent.body));
byId("copy").addEventListener("click", copy);
chat.begin(showSent);
form.begin(showSent);

for (;;) {
  if (!document.hidden && byId("key-form").hidden) await look();
  await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
}
