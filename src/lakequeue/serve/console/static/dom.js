// Creates elements, and formats numbers and instants. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// Changes only nodes whose text differs, so that selections and focus stay.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  node.hidden = !shown;
}

// Keeps a group of nodes for each item, in the order of the items; `make` returns { nodes, update }.
export class Rows {
  constructor(parent, key, make) {
    this.parent = parent;
    this.key = key;
    this.make = make;
    this.known = new Map();
  }

  show(items) {
    const wanted = new Set(items.map(this.key));
    for (const [key, row] of this.known) {
      if (!wanted.has(key)) {
        row.nodes.forEach((node) => node.remove());
        this.known.delete(key);
      }
    }
    let next = this.parent.firstChild;
    for (const item of items) {
      const key = this.key(item);
      let row = this.known.get(key);
      if (!row) this.known.set(key, (row = this.make(item)));
      row.update(item);
      for (const node of row.nodes) {
        if (node === next) next = next.nextSibling;
        else this.parent.insertBefore(node, next);
      }
    }
  }
}

const NUMBERS = new Intl.NumberFormat("en");

export function number(value) {
  return NUMBERS.format(value);
}

export function size(bytes) {
  return `${number(Math.round(bytes / 104_857.6) / 10)} MiB`;
}

export function rate(value) {
  return number(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
}

export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// Messages in any state, without the history.
export function stored(counts) {
  return counts.visible + counts.in_flight + counts.delayed + counts.held + counts.undecided;
}

// At most two units, as the commands print them: 6.2s, 1m30s, 3d4h.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(Math.max(0, seconds) * 10) / 10}s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (left >= size || parts.length) parts.push(left >= size ? `${Math.floor(left / size)}${unit}` : "");
    left %= size;
  }
  return parts.slice(0, 2).join("");
}

function two(value) {
  return String(value).padStart(2, "0");
}

// Marks the field of a form that an error is about, if it is about one; without an error, none.
export function markField(form, error) {
  for (const input of form.elements) {
    if (!input.name) continue;
    if (error?.field === input.name) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

// Where the page cannot use the clipboard, as over HTTP from elsewhere, the browser's older way works.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("The browser does not let this page copy.");
  }
}

// The text of an error: three lines of it, until a click shows all. A button holds no other buttons: commands are plain.
export function trouble(given) {
  const text = given.replaceAll("`", "");
  const node = el("button", { type: "button", class: "trouble", title: text, "aria-expanded": "false", click: () => node.setAttribute("aria-expanded", String(node.getAttribute("aria-expanded") !== "true")) }, el("span", { class: "clamped" }, text));
  return node;
}

// How commands begin where the operator types them, as the server says: shown are the short ones, copied are whole ones.
let prefix = "lakequeue";

export function setPrefix(text) {
  prefix = text ?? prefix;
}

// The prefix without lakequeue and its options, such as of a container: the files of a root are where lakequeue runs.
function place() {
  return /^((?:.*?\s)??)(?:\S*\/)?lakequeue(?: --\w.*)?$/.exec(prefix)?.[1] ?? "";
}

// A command, or another text to take away, with a button that copies it.
export function copied(text) {
  const whole = () => text.replace(/^lakequeue (?!--root)/, () => `${prefix} `).replace(/^cp -a /, () => `${place()}cp -a `);
  const click = () => copy(whole()).then(() => toast(`Copied: ${whole()}`, "done copied"), (error) => toast(error.message, "wrong"));
  return [el("code", {}, text), " ", el("button", { type: "button", class: "small", click }, "Copy")];
}

// A text whose commands in backticks can be copied. Changes only what differs.
export function setCommands(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(...text.split("`").flatMap((part, index) => (index % 2 ? copied(part) : [part])));
}

// In the time zone of the browser; the title has the same instant in UTC.
export function instant(text) {
  const at = new Date(text);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function clockTime(milliseconds, withDay, withSeconds) {
  const text = instant(milliseconds);
  return text.slice(withDay ? 5 : 11, withSeconds ? 19 : 16);
}

export function time(text) {
  return text ? el("time", { datetime: text, title: `${text} (UTC)` }, `${instant(text)} ${offset(text)}`) : "–";
}

// How long ago an instant was, as the browser's clock says; the exact instant is its title.
export function ago(text) {
  if (!text) return "–";
  return el("time", { datetime: text, title: `${instant(text)} ${offset(text)}`, class: "ago" }, sinceText(text));
}

// Brings all of them up to date at once, so that no two contradict each other.
export function updateAges() {
  for (const node of document.querySelectorAll("time.ago")) setText(node, sinceText(node.dateTime));
}

export function sinceText(text) {
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(Math.round(seconds))} ago`;
}

// The time zone at an instant, as UTC+01:00.
export function offset(text) {
  const minutes = -new Date(text).getTimezoneOffset();
  if (!minutes) return "UTC";
  const left = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(left / 60))}:${two(left % 60)}`;
}

// The value of a datetime-local field.
export function localValue(milliseconds) {
  const at = new Date(milliseconds);
  return `${instant(at).replace(" ", "T")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function zone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
}

// `of`: the action; a newer toast of it replaces the older one.
export function toast(text, kind = "done", of = "") {
  document.querySelectorAll(".toast").forEach((old) => old.matches(".copied") || (of && old.dataset.of === of) ? old.remove() : null);
  const commands = typeof text === "string" && text.includes("`");
  const node = el("p", { class: `toast ${kind}` }, commands ? null : text);
  node.dataset.of = of;
  if (commands) setCommands(node, text);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), commands ? 30_000 : 8_000);
}
