// The list of queues.

import { get } from "./api.js";
import { sparkline } from "./chart.js";
import { count, duration, el, number, Rows, setText, show } from "./dom.js";
import { createQueue } from "./queues.js";

const COLUMNS = [
  ["name", "Queue"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["oldest_age", "Oldest"],
];

// Kept while the page is open, so that the user returns to the same list; also in the address, which can be sent.
const kept = { text: "", after: "", before: [], sort: "name", down: false };

function fromAddress() {
  const given = new URLSearchParams(/^#\/\?(.*)$/.exec(location.hash)?.[1] ?? "");
  if (!given.size) return;
  const sort = given.get("sort") ?? "name";
  Object.assign(kept, { text: given.get("text") ?? "", after: given.get("after") ?? "", before: given.get("after") ? [""] : [] });
  Object.assign(kept, { sort: COLUMNS.some(([key]) => key === sort) ? sort : "name", down: given.has("down") });
}

function intoAddress() {
  if (!/^(#\/?(\?.*)?)?$/.test(location.hash)) return; // a link was followed, and its page is yet to come
  const shown = Object.entries({ text: kept.text, after: kept.after, sort: kept.sort === "name" ? "" : kept.sort, down: kept.down ? "1" : "" });
  const query = new URLSearchParams(shown.filter(([, value]) => value)).toString();
  if (query || location.hash.startsWith("#/?")) history.replaceState(null, "", query ? `#/?${query}` : "#/");
}

export function queueLink(name) {
  return el("a", { href: `#/q/${encodeURIComponent(name)}`, title: name }, name);
}

export function list(signal, reload) {
  fromAddress();
  const search = el("input", {
    type: "search",
    id: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter queues by name",
    autocomplete: "off",
    spellcheck: "false",
    input: () => {
      Object.assign(kept, { text: search.value.trim(), after: "", before: [] });
      reload();
    },
  });
  search.value = kept.text;
  const summary = el("p", { class: "summary" });
  const create = el("button", { type: "button", class: "first", hidden: true, click: createQueue }, "Create queue…");
  const span = el("span");
  const heads = COLUMNS.map(([key, label]) => {
    const button = el("button", { type: "button", class: "sort", click: () => sortBy(key) }, label);
    return el("th", { scope: "col", class: key === "name" ? "" : "number", "data-key": key }, button);
  });
  const body = el("tbody");
  const empty = el("p", { class: "empty", hidden: true });
  const first = el("button", { type: "button", click: () => turn("", []) }, "First page");
  const back = el("button", { type: "button", click: () => turn(kept.before.at(-1), kept.before.slice(0, -1)) }, "Previous");
  const next = el("button", { type: "button", click: () => turn(last.next, [...kept.before, kept.after]) }, "Next page");
  const pager = el("p", { class: "pager", hidden: true }, first, back, next);
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
    pager,
  );
  const rows = new Rows(body, (queue) => queue.name, row);
  let last = { queues: [], hours: 3, next: null };
  let deadLetterQueues = new Set();

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
        const marks = [newest.fifo ? "FIFO" : null, deadLetterQueues.has(newest.name) ? "dead letters" : null].filter(Boolean);
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
    Object.assign(kept, { sort: key, down: kept.sort === key ? !kept.down : key !== "name" });
    render();
  }

  function turn(after, before) {
    Object.assign(kept, { after, before });
    reload();
  }

  function render() {
    if (!signal.aborted) intoAddress();
    const value = (queue) => (kept.sort === "name" ? queue.name : (queue.counts?.[kept.sort] ?? -1));
    const sorted = [...last.queues].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
    rows.show(kept.down ? sorted.reverse() : sorted);
    for (const head of heads) {
      const order = head.dataset.key === kept.sort ? (kept.down ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", order);
    }
  }

  return {
    root,
    title: "Queues",
    focus: search,
    async update() {
      last = await get("queues", { text: kept.text, after: kept.after }, signal);
      deadLetterQueues = new Set(last.queues.map((queue) => queue.dead_letter_queue));
      setText(span, `${last.hours} h`);
      show(create, last.may.CreateQueue);
      render();
      const sum = (key) => last.queues.reduce((total, queue) => total + (queue.counts?.[key] ?? 0), 0);
      const here = last.total > last.queues.length ? `, ${number(last.queues.length)} on this page` : "";
      setText(
        summary,
        `${count(last.total, "queue")}${here} · ${number(sum("visible"))} visible · ${number(sum("in_flight"))} in flight`,
      );
      setText(empty, kept.text ? `No queue has “${kept.text}” in its name.` : "There are no queues yet.");
      show(empty, !last.queues.length);
      show(table, last.queues.length > 0);
      show(pager, Boolean(kept.after || last.next));
      first.disabled = back.disabled = !kept.after;
      next.disabled = !last.next;
      return last;
    },
  };
}
