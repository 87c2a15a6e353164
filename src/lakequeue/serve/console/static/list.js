// The list of queues.

import { address, queueHash, showAddress } from "./address.js";
import { get } from "./api.js";
import { sparkline } from "./chart.js";
import { count, duration, el, number, Rows, setText, show } from "./dom.js";
import { pager } from "./pager.js";
import { createQueue } from "./queues.js";

const COLUMNS = [
  ["name", "Queue"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["oldest_age", "Oldest"],
];

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
  const span = el("span");
  const heads = COLUMNS.map(([key, label]) => {
    const button = el("button", { type: "button", class: "sort", click: () => sortBy(key) }, label);
    return el("th", { scope: "col", class: key === "name" ? "" : "number", "data-key": key }, button);
  });
  const body = el("tbody");
  const empty = el("p", { class: "empty", hidden: true });
  const pages = pager(kept, reload);
  const table = el(
    "table",
    { class: "queues" },
    el("thead", {}, el("tr", {}, heads, el("th", { scope: "col", class: "sparks" }, "Visible, ", span))),
    body,
  );
  const root = el(
    "section",
    {},
    el("div", { class: "head" }, el("h1", {}, "Queues"), summary, el("div", { class: "tools" }, search, create)),
    el("div", { class: "scroll" }, table),
    empty,
    pages.node,
  );
  const rows = new Rows(body, (queue) => queue.name, row);
  let last = { queues: [], hours: 3 };

  function row(queue) {
    const spark = sparkline();
    const badges = el("span", { class: "badges" });
    const cells = COLUMNS.slice(1).map(([, label]) => el("td", { class: "number", "data-label": label }));
    const fault = el("span", { class: "trouble" });
    const node = el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { class: "named" }, queueLink(queue.name), badges), fault),
      cells,
      el("td", { class: "sparks" }, spark.node),
    );
    return {
      nodes: [node],
      update(newest) {
        const marks = [newest.fifo ? "FIFO" : null, newest.dead_letters ? "dead letters" : null].filter(Boolean);
        if (badges.dataset.marks !== marks.join()) {
          badges.dataset.marks = marks.join();
          badges.replaceChildren(...marks.map((mark) => el("span", { class: "badge" }, mark)));
        }
        COLUMNS.slice(1).forEach(([key], index) => {
          const value = newest.counts?.[key] ?? null;
          const text = key === "oldest_age" ? duration(value) : value === null ? "–" : number(value);
          setText(cells[index], text);
          cells[index].classList.toggle("none", !value);
        });
        setText(fault, newest.error ?? "");
        spark.update(newest.depths, last.hours);
      },
    };
  }

  function sortBy(key) {
    const again = key === (kept.sort ?? "name");
    const down = again ? !kept.down : key !== "name";
    Object.assign(kept, { sort: key === "name" ? "" : key, down: down ? "1" : "", after: "" });
    showAddress(kept, 0);
    reload();
  }

  return {
    root,
    title: "Queues",
    focus: search,
    async update() {
      last = await get("queues", kept, signal);
      setText(span, `${last.hours} h`);
      show(create, last.may.CreateQueue);
      rows.show(last.queues);
      for (const head of heads) {
        head.setAttribute("aria-sort", head.dataset.key !== (kept.sort || "name") ? "none" : kept.down ? "descending" : "ascending");
      }
      const sum = (key) => last.queues.reduce((total, queue) => total + (queue.counts?.[key] ?? 0), 0);
      const here = last.total > last.queues.length ? `, ${number(last.queues.length)} on this page` : "";
      const order = last.counted === null ? "" : ` · sorted by counts of the last 2 minutes${last.counted ? `, for which ${count(last.counted, "queue")} ${last.counted === 1 ? "was" : "were"} counted` : ""}`;
      setText(
        summary,
        `${count(last.total, "queue")}${here} · ${number(sum("visible"))} visible · ${number(sum("in_flight"))} in flight${order}`,
      );
      setText(empty, kept.text ? `No queue has “${kept.text}” in its name.` : "There are no queues yet.");
      show(empty, !last.queues.length);
      show(table, last.queues.length > 0);
      pages.update(last.next);
      return last;
    },
  };
}
