// A form for any model, made from its configuration: a field for each of its inputs.

import { asNumber, byId, clearErrors, labelled, make, showError } from "./dom.js";
import { ask } from "./server.js";

const FILES = ["image", "audio"];
const MOST_NUMBERS = 8; // of a list that are shown
const form = byId("fields");
let onSent;
let model;
let fields = []; // of {input, control, sample}

export function begin(sent) {
  onSent = sent;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  form.addEventListener("keydown", (event) => {
    const isText = event.target.matches("textarea:not([data-lines])");
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !isText) return;
    event.preventDefault();
    send();
  });
}

export function hide() {
  form.hidden = true;
}

/** Shows the form for another model. */
export async function show(described) {
  model = described;
  const response = await ask(`playground/models/${encodeURIComponent(model.name)}`);
  const { inputs, sample } = await response.json();
  if (model !== described) return; // another one has been chosen meanwhile
  fields = inputs.map((input) => field(input, sample[input.name]));
  const [used, others] = [true, false].map((is) => fields.filter((one) => (one.sample !== undefined) === is));
  byId("inputs").replaceChildren(...used.map((one) => one.block));
  byId("more-inputs").replaceChildren(...others.map((one) => one.block));
  byId("more").hidden = !others.length;
  byId("answer").replaceChildren();
  byId("answer-title").hidden = true;
  byId("took").textContent = "";
  clearErrors(form);
  form.hidden = false;
}

function field(input, sample) {
  const { control, hint } = controlOf(input, sample);
  control.name = input.name;
  control.id = `input-${input.name}`;
  const words = input.name.replaceAll("_", " ");
  return { input, control, sample, block: labelled(control, words, hint) };
}

function controlOf({ name, datatype, is_list: isList }, sample) {
  if (FILES.includes(name)) {
    const hint = sample === undefined ? "" : "without a file: a sample of the server's";
    return { control: make("input", { type: "file", accept: `${name}/*` }), hint };
  }
  if (datatype === "BOOL" && !isList) {
    const choices = ["", "true", "false"].map((one) => make("option", { value: one }, one || "as the model does"));
    const control = make("select", {}, ...choices);
    if (sample !== undefined) control.value = String(sample);
    return { control, hint: "" };
  }
  const value = [sample ?? ""].flat().join("\n");
  if (isList) {
    const control = make("textarea", { rows: 3, value, "data-lines": "" });
    return { control, hint: datatype === "BYTES" ? "one a line" : `${datatype}, one a line` };
  }
  if (datatype === "BYTES" && sample !== undefined) return { control: make("textarea", { rows: 2, value }), hint: "" };
  const control = make("input", { value, autocomplete: "off" });
  if (datatype !== "BYTES") control.inputMode = "decimal";
  return { control, hint: datatype === "BYTES" ? "" : datatype };
}

/** What a field has to send; undefined where it was left empty. */
async function valueOf({ input, control, sample }) {
  if (control.type === "file") return control.files.length ? base64(control.files[0]) : sample;
  const parse = input.datatype === "BYTES" ? (text) => text
    : input.datatype === "BOOL" ? (text) => ({ true: true, false: false })[text] ?? text
    : asNumber;
  if (!control.value) return undefined;
  if (!input.is_list) return parse(control.value);
  return control.value.split("\n").filter(Boolean).map(parse);
}

function base64(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.readAsDataURL(file);
  });
}

async function send() {
  clearErrors(form);
  const values = await Promise.all(fields.map(async (one) => [one.input.name, await valueOf(one)]));
  const body = Object.fromEntries(values.filter(([, value]) => value !== undefined));
  const path = `v2/models/${encodeURIComponent(model.name)}/generate`;
  onSent(path, body);
  const beganAt = performance.now();
  byId("took").textContent = "…";
  try {
    const response = await ask(path, body);
    showAnswer(await response.json());
    byId("took").textContent = `${Math.round(performance.now() - beganAt)} ms`;
  } catch (error) {
    byId("took").textContent = "";
    byId("answer").replaceChildren();
    byId("answer-title").hidden = true;
    showError(form, error, byId("fields-error"));
    if (error.status === 401) document.dispatchEvent(new Event("key-needed"));
  }
}

function showAnswer({ model_name: _, model_version: __, ...outputs }) {
  byId("answer").replaceChildren(...blocks(outputs));
  byId("answer-title").hidden = false;
}

/** Values under their names; lists of one length become the columns of one table. */
function blocks(values) {
  const found = Object.entries(values).map(([name, value]) => [name, parsed(value)]);
  const size = (value) => (Array.isArray(value) && value.length > 1 && !value.some(isObject) ? value.length : 0);
  const sizes = found.map(([, value]) => size(value));
  const height = sizes.find((one, at) => one && sizes.indexOf(one, at + 1) > 0);
  const columns = found.filter(([, value]) => size(value) === height);
  const others = found.filter((one) => !columns.includes(one)).map(([name, value]) =>
    make("div", {}, make("h4", {}, name.replaceAll("_", " ")), shown(value)));
  if (!height) return others;
  const row = (at) => Object.fromEntries(columns.map(([name, value]) => [name, value[at]]));
  return [table(Array.from({ length: height }, (_, at) => row(at))), ...others];
}

const isObject = (value) => value?.constructor === Object;

function shown(value) {
  if (isObject(value)) return make("div", { className: "inner" }, ...blocks(value));
  if (Array.isArray(value) && value.length && value.every(isObject)) return table(value);
  const first = Array.isArray(value) ? value.slice(0, MOST_NUMBERS).map(short).join(", ") : short(value);
  const more = Array.isArray(value) && value.length > MOST_NUMBERS ? `, … (${value.length})` : "";
  return make("p", { className: "value" }, first + more);
}

/** What JSON in a text says; any other value as it is. */
function parsed(value) {
  if (typeof value !== "string" || !/^[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function short(value) {
  if (Number.isFinite(value) && !Number.isInteger(value)) return value.toPrecision(4);
  return typeof value === "string" ? value : JSON.stringify(value ?? "");
}

function table(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  const cells = (row) => names.map((name) => make("td", {}, short(row[name])));
  const body = rows.map((row) => make("tr", {}, ...cells(row)));
  const made = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { className: "scrolls", tabIndex: 0, role: "group", "aria-label": "Table of the answer" }, made);
}
