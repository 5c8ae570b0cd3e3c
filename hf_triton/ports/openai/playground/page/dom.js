// Elements, errors beside their fields, and what a screen reader says. No text ever becomes markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (those with a dash, and `role`) and children. */
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** A field's label, control and the place of its error, in one block. */
export function labelled(control, text, hint = "") {
  control.id ||= `field-${control.name}`;
  const error = make("p", { className: "error", id: `${control.id}-error`, hidden: true });
  control.setAttribute("aria-describedby", error.id);
  const label = make("label", { for: control.id }, text);
  if (hint) label.append(" ", make("span", { className: "hint" }, hint));
  return make("div", { className: "field" }, label, control, error);
}

/** Shows an error beside the field that it names, else in `elsewhere`. */
export function showError(form, error, elsewhere) {
  const found = error.param ? form.elements.namedItem(error.param.split(/[.[]/)[0]) : null;
  const place = found?.id && byId(`${found.id}-error`);
  if (!place) {
    elsewhere.textContent = error.message;
    elsewhere.hidden = false;
    return;
  }
  place.textContent = error.message;
  place.hidden = false;
  found.setAttribute("aria-invalid", "true");
  const folded = found.closest("details");
  if (folded) folded.open = true;
  found.focus();
}

export function clearErrors(form) {
  for (const place of form.querySelectorAll(".error")) place.hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

/** A number where the text is one; else the text, which the server refuses in its own words. */
export function asNumber(text) {
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

const QUIET_MS = 2000;

/** Has a text that grows read out sentence by sentence, not token by token. */
export class Speaker {
  constructor() {
    this.pending = "";
    this.spokenAt = performance.now();
  }

  add(text) {
    this.pending += text;
    const end = this.pending.search(/[.!?:\n](?=[^.!?:]*$)/);
    if (end >= 0 && performance.now() - this.spokenAt > QUIET_MS) this.say(end + 1);
  }

  end(last) {
    this.pending += ` ${last}`;
    this.say(this.pending.length);
  }

  say(length) {
    byId("spoken").textContent = this.pending.slice(0, length);
    this.pending = this.pending.slice(length);
    this.spokenAt = performance.now();
  }
}
