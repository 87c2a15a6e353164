// The list of queues.

import { address, queueHash, showAddress } from "./address.js";
import { get } from "./api.js";
import { sparkline } from "./chart.js";
import { copy, count, duration, el, number, rate, Rows, setText, show, toast } from "./dom.js";
import { pager } from "./pager.js";
import { createQueue } from "./queues.js";

const COLUMNS = [
  ["name", "Queue"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["oldest_age", "Oldest"],
  ["sent", "Sent/min"],
  ["deleted", "Deleted/min"],
];
const RATES = ["sent", "deleted"];
const RARE = ["delayed", "held", ...RATES]; // columns that are shown only where they are not zero everywhere
const PARAMETERS = ["text", "sort", "down", "after"];
let kept = {}; // what the list shows, or showed last, so that the user returns to it

export function queueLink(name) {
  return el("a", { href: queueHash(name), title: name }, name);
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
    const title = key === "deleted" ? "By any consumer; also what expired or was purged" : null;
    const shown = RATES.includes(key) ? label : el("button", { type: "button", class: "sort", click: () => sortBy(key) }, label);
    return el("th", { scope: "col", class: key === "name" ? "" : `number at-${key}`, "data-key": key, title }, shown);
  });
  const body = el("tbody");
  const empty = el("div", { class: "empty", hidden: true });
  const pages = pager(kept, reload);
  const table = el(
    "table",
    { class: "queues" },
    el("thead", {}, el("tr", {}, heads, el("th", { scope: "col", class: "sparks" }, span))),
    body,
  );
  const root = el(
    "section",
    {},
    el("div", { class: "head" }, el("h1", {}, "Queues"), summary, el("div", { class: "tools" }, search, el("fieldset", {}, create))),
    el("div", { class: "scroll" }, table),
    empty,
    pages.node,
  );
  const rows = new Rows(body, (queue) => queue.name, row);
  let last = { queues: [] };
  let scale = null;

  function row(queue) {
    const spark = sparkline();
    const line = el("td", { class: "sparks" }, spark.node);
    const badges = el("span", { class: "badges" });
    const cells = COLUMNS.slice(1).map(([key, label]) => el("td", { class: `number at-${key}`, "data-label": label }));
    const fault = el("span", { class: "trouble" });
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
        const pauses = newest.pauses ?? [];
        const marks = [newest.fifo ? "FIFO" : null, letters ? count(letters, "dead letter") : letters === null ? null : "dead letters", ...pauses].filter(Boolean);
        if (badges.dataset.marks !== marks.join()) {
          badges.dataset.marks = marks.join();
          badges.replaceChildren(...marks.map((mark) => el("span", { class: `badge ${letters && mark !== "FIFO" && !pauses.includes(mark) ? "bad" : ""}` }, mark)));
        }
        COLUMNS.slice(1).forEach(([key], index) => {
          const value = valueOf(newest, key);
          const shown = key === "oldest_age" ? duration : RATES.includes(key) ? rate : number;
          setText(cells[index], value === null ? "–" : shown(value));
          cells[index].classList.toggle("none", !value);
        });
        setText(fault, newest.error ?? "");
        spark.update(newest.depths, scale);
        line.dataset.label = scale.label;
      },
    };
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
      last = await get("queues", { ...kept, sort: kept.sort || "trouble" }, signal);
      scale = scaleOf(last);
      setText(span, scale.label);
      show(create, last.may.CreateQueue);
      rows.show(last.queues);
      for (const key of RARE) table.classList.toggle(`no-${key}`, last.queues.every((queue) => !valueOf(queue, key)));
      for (const head of heads) {
        head.setAttribute("aria-sort", head.dataset.key !== kept.sort ? "none" : kept.down ? "descending" : "ascending");
      }
      const sum = (key) => last.queues.reduce((total, queue) => total + (queue.counts?.[key] ?? 0), 0);
      const here = last.total > last.queues.length ? `, ${number(last.queues.length)} on this page` : "";
      const order = last.counted === null ? "" : ` · sorted by counts of the last 2 minutes${last.counted ? `, for which ${count(last.counted, "queue")} ${last.counted === 1 ? "was" : "were"} counted` : ""}`;
      setText(
        summary,
        `${count(last.total, "queue")}${here} · ${number(sum("visible"))} visible · ${number(sum("in_flight"))} in flight${order}`,
      );
      if (!last.queues.length) empty.replaceChildren(...(kept.text ? [`No queue has “${kept.text}” in its name.`] : begin(last.root)));
      show(empty, !last.queues.length);
      show(table, last.queues.length > 0);
      pages.update(last.next);
      return last;
    },
  };
}

function valueOf({ counts, rates }, key) {
  return counts?.[key] ?? rates?.[key] ?? null;
}

// One scale for the sparklines of a list: from the first value that is known of any queue, up to the largest.
function scaleOf({ queues, hours }) {
  const lines = queues.map((queue) => queue.depths ?? []);
  const parts = Math.max(1, ...lines.map((values) => values.length));
  const since = Math.min(parts - 1, ...lines.map((values) => values.findIndex((value) => value !== null)).filter((index) => index >= 0));
  const most = Math.max(1, ...lines.flat());
  const span = duration((hours * 3_600 * (parts - since)) / parts);
  return { since, most, span, label: `Visible, last ${span}, up to ${number(most)}` };
}

// How to begin with an empty root.
function begin(root) {
  const line = (label, text) => el("p", {}, `${label} `, el("code", {}, text), " ", el("button", { type: "button", class: "small", click: () => copy(text).then(() => toast("Copied."), (error) => toast(error.message, "wrong")) }, "Copy"));
  return [
    el("p", {}, "There are no queues yet."),
    line("Create one:", `lakequeue ${root ? `--root '${root}' ` : ""}create orders`),
    line("Endpoint for SQS clients:", location.origin),
  ];
}
