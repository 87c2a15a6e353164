// The list of queues.

import { address, queueHash, showAddress } from "./address.js";
import { attention, pauseMark } from "./attention.js";
import { DENIED, get } from "./api.js";
import { sparkline } from "./chart.js";
import { field } from "./dialog.js";
import { copied, count, duration, el, number, rate, Rows, setText, show, trouble } from "./dom.js";
import { pager } from "./pager.js";
import { createQueue } from "./queues.js";

const COLUMNS = [
  ["name", "Queue"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["undecided", "Undecided"],
  ["oldest_age", "Oldest"],
  ["consumers", "Consumers"],
  ["sent", "Sent/min"],
  ["deleted", "Deleted/min"],
];
const RATES = ["sent", "deleted"];
const UNSORTED = ["consumers", ...RATES];
const RARE = ["delayed", "held", "undecided", ...RATES]; // columns that are shown only where they are not zero everywhere
const TITLES = {
  consumers: "That run, or have messages in flight and are not known to be gone; those without a name, such as SQS clients, count as one",
  deleted: "By any consumer; also what expired or was purged",
};
const PARAMETERS = ["text", "sort", "down", "after"];
let kept = {}; // what the list shows, or showed last, so that the user returns to it

export function queueLink(name) {
  return el("a", { href: queueHash(name), title: name }, name);
}

// Of a queue whose own dead letters are not counted.
export function sharing(dead, sources) {
  return `shares ${dead} with ${count(sources - 1, "other queue")}`;
}

// `again`: the list was shown before, so that the address without parameters is what the user wants.
export function list(signal, reload, again) {
  const { given } = address(PARAMETERS);
  if (again || Object.keys(given).length) kept = given;
  else showAddress(kept);
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter queues by name",
    autocomplete: "off",
    spellcheck: "false",
    input: () => {
      Object.assign(kept, { text: search.value.trim(), after: "" });
      showAddress(kept);
      reload();
    },
  });
  search.value = kept.text ?? "";
  const summary = el("p", { class: "summary" });
  const create = el("button", { type: "button", class: "first", hidden: true, click: createQueue }, "Create queue…");
  const span = el("span"); // of the sparklines
  const heads = COLUMNS.map(([key, label]) => {
    const title = TITLES[key];
    const shown = UNSORTED.includes(key) ? label : el("button", { type: "button", class: "sort", click: () => sortBy(key) }, label);
    return el("th", { scope: "col", class: key === "name" ? "" : `number at-${key}`, "data-key": key, title }, shown);
  });
  const body = el("tbody");
  const empty = el("div", { class: "empty" }, "Loading…");
  const pages = pager(kept, reload);
  const table = el(
    "table",
    { class: "queues", hidden: true },
    el("thead", {}, el("tr", {}, heads, el("th", { scope: "col", class: "sparks" }, span))),
    body,
  );
  const concerns = attention(signal, reload);
  const parts = [
    concerns.node,
    el("div", { class: "head" }, el("h1", {}, "Queues"), summary, el("div", { class: "tools" }, search, el("fieldset", {}, create))),
    el("div", { class: "scroll" }, table),
    empty,
    pages.node,
  ];
  const root = el("section", {}, parts);
  const unlisted = byName();
  const rows = new Rows(body, (queue) => queue.name, row);
  const moving = new Set();
  let last = { queues: [] };
  let scale = null;

  function row(queue) {
    const spark = sparkline();
    const top = el("span", { class: "top" });
    const line = el("td", { class: "sparks" }, el("span", { class: "sparkline" }, spark.node, top));
    const badges = el("span", { class: "badges" });
    const cells = COLUMNS.slice(1).map(([key, label]) => el("td", { class: `number at-${key}`, "data-label": label }));
    const fault = el("span");
    const node = el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { class: "named" }, queueLink(queue.name), badges), fault),
      cells,
      line,
    );
    return {
      nodes: [node],
      update(newest) {
        const letters = newest.dead_letters;
        const [died, sources] = newest.died ?? []; // its messages in its dead-letter queue, and the queues that use it
        const marks = [
          newest.fifo && ["FIFO", ""],
          died ? [`${count(died, "message")} in ${newest.dead_letter_queue}`, "warn"] : died === null && [sharing(newest.dead_letter_queue, sources), ""],
          letters ? [count(letters, "dead letter"), "warn"] : letters === 0 && ["dead letters", ""],
          ...concerns.marks(newest.name),
        ].filter(Boolean);
        const state = JSON.stringify([marks, newest.pauses, newest.may]);
        if (badges.dataset.marks !== state) {
          badges.dataset.marks = state;
          const pauses = (newest.pauses ?? []).map((pause) => pauseMark(newest.name, pause, newest.may.Pause, changed));
          badges.replaceChildren(...marks.map(([mark, kind]) => el("span", { class: `badge ${kind}` }, mark)), ...pauses);
        }
        COLUMNS.slice(1).forEach(([key], index) => {
          const value = valueOf(newest, key);
          const shown = key === "oldest_age" ? duration : RATES.includes(key) ? rate : number;
          setText(cells[index], value === null ? "–" : shown(value));
          cells[index].classList.toggle("none", !value);
        });
        const error = newest.error && !concerns.isDamaged(newest.name) ? newest.error : null; // else what needs attention says it
        if (fault.dataset.error !== String(error)) fault.replaceChildren(...(error ? [trouble(error)] : []));
        fault.dataset.error = error;
        spark.update(newest.depths, scale);
        const most = Math.max(...(newest.depths ?? []).filter((value) => value !== null));
        setText(top, Number.isFinite(most) ? `max ${number(most)}` : "");
        top.title = "the largest value of the line";
      },
    };
  }

  function changed() {
    concerns.forget();
    reload();
  }

  function sortBy(key) {
    const down = key === kept.sort ? !kept.down : key !== "name";
    Object.assign(kept, { sort: key, down: down ? "1" : "", after: "" });
    showAddress(kept, 0);
    reload();
  }

  return {
    root,
    title: "Queues",
    focus: search,
    async update() {
      let failing = false;
      try {
        ({ failing } = await concerns.update());
        last = await get("queues", { ...kept, sort: kept.sort || "trouble" }, signal);
      } catch (error) {
        if (error.status === DENIED && !unlisted.isConnected) root.replaceChildren(unlisted);
        if (error.status === DENIED) throw Object.assign(error, { said: true });
        if (!last.queues.length) setText(empty, "The list of queues cannot be read.");
        throw Object.assign(error, { said: failing }); // what needs attention says it, with commands
      }
      if (unlisted.isConnected) root.replaceChildren(...parts);
      scale = scaleOf(last);
      setText(span, scale.label);
      show(create, last.may.CreateQueue);
      rows.show(last.queues);
      for (const key of RARE) {
        if (last.queues.some((queue) => valueOf(queue, key)) && RATES.includes(key)) moving.add(key); // they do not come and go
        table.classList.toggle(`no-${key}`, !moving.has(key) && last.queues.every((queue) => !valueOf(queue, key)));
      }
      for (const head of heads) {
        head.setAttribute("aria-sort", head.dataset.key !== kept.sort ? "none" : kept.down ? "descending" : "ascending");
      }
      const sum = (value) => last.queues.reduce((total, queue) => total + (value(queue) ?? 0), 0);
      const letters = sum((queue) => queue.dead_letters);
      const visible = sum((queue) => (queue.dead_letters ? 0 : queue.counts?.visible));
      const kinds = [`${number(visible)} visible`, letters && count(letters, "dead letter"), `${number(sum((queue) => queue.counts?.in_flight))} in flight`];
      const here = last.total > last.queues.length ? `, ${number(last.queues.length)} on this page` : "";
      const order = last.counted === null ? "" : ` · sorted by counts of the last 2 minutes${last.counted ? `, for which ${count(last.counted, "queue")} ${last.counted === 1 ? "was" : "were"} counted` : ""}`;
      setText(
        summary,
        `${count(last.total, "queue")}${here} · ${kinds.filter(Boolean).join(" · ")}${order}`,
      );
      if (!last.queues.length) empty.replaceChildren(...(kept.text ? [`No queue has “${kept.text}” in its name.`] : begin(last.command)));
      show(empty, !last.queues.length);
      show(table, last.queues.length > 0);
      pages.update(last.next);
      return last;
    },
  };
}

function valueOf({ counts, rates, consumers }, key) {
  if (key === "consumers") return consumers;
  return counts?.[key] ?? rates?.[key] ?? null;
}

// The time that the sparklines of a list span: from the first value that is known of any queue.
function scaleOf({ queues, hours }) {
  const lines = queues.map((queue) => queue.depths ?? []);
  const parts = Math.max(1, ...lines.map((values) => values.length));
  const since = Math.min(parts - 1, ...lines.map((values) => values.findIndex((value) => value !== null)).filter((index) => index >= 0));
  const span = duration((hours * 3_600 * (parts - since)) / parts);
  return { since, span, label: `Visible, last ${span}` };
}

// For a key that may not list queues: a queue of which the user knows the name.
function byName() {
  const name = el("input", { type: "text", name: "queue", required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const submit = (event) => {
    event.preventDefault();
    location.hash = queueHash(name.value.trim());
  };
  const open = el("p", { class: "buttons" }, el("button", { type: "submit", class: "first" }, "Open"));
  return el("form", { class: "card signing", submit }, el("h1", {}, "Queues"), el("p", { class: "quiet" }, "This key may not list queues. It may see a queue that it has permissions for, by its name."), field("Name of the queue", name), open);
}

// How to begin with an empty root.
function begin(command) {
  const line = (label, text) => el("p", {}, `${label} `, copied(text));
  return [
    el("p", {}, "There are no queues yet."),
    line("Create one:", `${command} create orders`),
    line("Endpoint for SQS clients:", location.origin),
  ];
}
