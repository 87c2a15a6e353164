// A list of messages with filters, for stored and for deleted messages.

import { address, queueHash, showAddress } from "./address.js";
import { get, queuePath } from "./api.js";
import { copied, count, el, instant, localValue, markField, number, offset, Rows, setText, show, sinceText, time, zone } from "./dom.js";
import { queueLink } from "./list.js";
import { pager } from "./pager.js";
import { selection } from "./selection.js";

const STATES = [
  ["", "Any state"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["moving", "Moving"],
  ["undecided", "Undecided"],
];
const COLUMNS = "message_id, body, state, receive_count, sent_at, visible_at, age, group_id, dedup_id, source_queue, dead_letter_reason, consumer, message_attributes";
const ORDERS = [
  ["", "Oldest first"],
  ["newest", "Newest first"],
];

// `changed`: called once the user has changed messages; `reload` is enough for other filters.
export function messages(name, listName, signal, reload, changed) {
  const deleted = listName === "history";
  const { given } = address([deleted ? "since" : "state", "order", "text", "where", "after"]);
  const choice = (name, label, options) => el("select", { name, "aria-label": label, change: apply }, options.map(([value, shown]) => el("option", { value, selected: value === (given[name] ?? "") }, shown)));
  const state = choice("state", "State", STATES);
  const order = choice("order", "Order", ORDERS);
  const since = el("input", { type: "datetime-local", name: "since", step: "1", "aria-label": `Sent at or after, ${zone()}`, title: `Sent at or after, ${zone()}` });
  const text = el("input", { type: "search", name: "text", placeholder: "Text in body, id or group", "aria-label": "Text in body, id or group", autocomplete: "off", spellcheck: "false" });
  const where = el("input", {
    type: "text",
    name: "where",
    class: "code",
    placeholder: "SQL condition, such as receive_count > 2 AND body LIKE '%card%'",
    "aria-label": "SQL condition",
    title: `Columns: ${COLUMNS}. A field of JSON: dead_letter_reason->>'$.error' = 'ValueError'`,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
  });
  const clear = el("button", { type: "reset" }, "Clear");
  const wide = matchMedia("(min-width: 641px)").matches || Object.keys(given).some((key) => given[key] && key !== "after");
  const form = el("form", { class: "filters", submit: apply, reset }, deleted ? since : state, order, text, where, el("button", { type: "submit" }, "Apply"), clear);
  const fault = el("p", { class: "trouble", id: "wrong", role: "alert", hidden: true });
  where.setAttribute("aria-describedby", "wrong");
  const note = el("p", { class: "note" });
  const pages = pager(given, reload, note);
  const body = el("tbody");
  const chosen = selection(name, listName, signal, changed);
  const heads = deleted ? ["Sent", "Group", "Body"] : ["Sent", "State", "Received", "Consumer", "Group", "Reason", "Body"];
  const table = el(
    "table",
    { hidden: true, class: `messages ${listName}` },
    el(
      "thead",
      {},
      el("tr", {}, el("th", { class: "pick" }, chosen.all), el("th", { class: "toggle" }, el("span", { class: "unseen" }, "Details")), heads.map((label) => el("th", { scope: "col", class: `at-${label.toLowerCase()}${label === "Received" ? " number" : ""}` }, label))),
    ),
    body,
  );
  const filters = el("details", { class: "filtering", open: wide }, el("summary", {}, "Filters"), form);
  const root = el("div", {}, filters, fault, chosen.node, el("div", { class: "scroll" }, table), pages.node);
  let linked = !deleted && Boolean(given.text || given.where || given.state);
  const rows = new Rows(body, (message) => message.id, row);
  let columns = heads.length + 2; // that are shown; one more than that would be a further column
  text.value = given.text ?? "";
  where.value = given.where ?? "";
  if (given.since) since.value = localValue(Date.parse(given.since));

  function apply(event) {
    event.preventDefault();
    Object.assign(given, deleted ? { since: since.value && new Date(since.value).toISOString() } : { state: state.value });
    Object.assign(given, { order: order.value, text: text.value, where: where.value.trim(), after: "" });
    showAddress(given, 0);
    setText(note, "Searching…"); // what it said does not belong to these filters
    show(note, true);
    show(fault, false);
    reload();
  }

  // The form resets to what the address had; clear is none of it, but for the order.
  function reset(event) {
    for (const input of [state, since, text, where]) input.value = "";
    apply(event);
  }

  function row(first) {
    let message = first;
    let open = false;
    const details = el("td", { colspan: columns });
    const below = el("tr", { class: "details", hidden: true }, details);
    const toggle = el("button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-label": `Details of ${first.id}`, click: toggleDetails });
    const cells = heads.map((label) => el("td", { class: label === "Received" ? "number" : `at-${label.toLowerCase()}`, "data-label": label }));
    const cell = Object.fromEntries(heads.map((label, index) => [label, cells[index]]));
    const mark = el("span", { class: "state" });
    cell.State?.append(mark);
    const box = chosen.box(first.id);
    const node = el("tr", { class: "message" }, el("td", { class: "pick" }, box), el("td", { class: "toggle" }, toggle), cells);
    node.addEventListener("click", (event) => {
      // selecting text is not a click on the row
      if (!event.target.closest("a, button, .pick") && !String(getSelection())) toggleDetails();
    });
    let shown = null;

    function toggleDetails() {
      open = !open;
      toggle.setAttribute("aria-expanded", String(open));
      show(below, open);
      if (open && !shown) {
        shown = detail(name, listName, message, signal, chosen.actions(first.id));
        shown.update(message);
        details.replaceChildren(shown.node);
      }
    }

    return {
      nodes: [node, below],
      update(newest) {
        message = newest;
        if (cell.Sent.dataset.zone !== offset(newest.sent_at)) {
          cell.Sent.title = `${instant(newest.sent_at)} ${offset(newest.sent_at)}`;
          cell.Sent.dataset.zone = offset(newest.sent_at);
        }
        setText(cell.Sent, sinceText(newest.sent_at));
        setText(mark, newest.state.replace("_", " "));
        mark.className = `state ${newest.state}`;
        if (cell.Received) setText(cell.Received, number(newest.receive_count));
        if (cell.Consumer) setText(cell.Consumer, newest.consumer ?? "–");
        setText(cell.Group, newest.group_id ?? "–");
        if (cell.Reason) setText(cell.Reason, newest.dead_letter_reason ? reason(newest.dead_letter_reason) : "–");
        setText(cell.Body, newest.body.slice(0, 300));
        shown?.update(newest);
      },
    };
  }

  return {
    root,
    focus: text,
    filters: () => given,
    async update(queue) {
      let found = { messages: [], next: null, tested: null };
      let wrong = null;
      try {
        found = await get(queuePath(name, `/${listName}`), given, signal);
      } catch (error) {
        if (!error.field) throw error;
        wrong = error;
      }
      // what was shown does not belong to a condition that is none
      setText(fault, wrong?.message ?? "");
      show(fault, wrong !== null);
      markField(form, wrong);
      rows.show(found.messages);
      if (linked) filters.scrollIntoView(); // once: a link to some messages leads to them
      linked = false;
      const hidden = [found.messages.every((message) => message.group_id === null), !deleted && found.messages.every((message) => !message.dead_letter_reason), !deleted && found.messages.every((message) => !message.consumer)];
      table.classList.toggle("no-group", hidden[0]);
      table.classList.toggle("no-reason", hidden[1]);
      table.classList.toggle("no-consumer", hidden[2]);
      columns = heads.length + 2 - hidden.filter(Boolean).length;
      for (const cell of body.querySelectorAll("tr.details > td")) cell.colSpan = columns;
      chosen.update(queue, found.messages);
      show(note, wrong === null);
      const filtered = Boolean(given.state || given.since || given.text || given.where);
      const kind = deleted ? "deleted message" : "message";
      const none = given.after ? `No further ${kind}${filtered ? " passes the filters" : ""}` : filtered ? `No ${kind} passes the filters` : deleted ? "No deleted message can be rewound" : "The queue is empty";
      const passing = filtered ? ` that ${found.messages.length === 1 ? "passes" : "pass"} the filters` : "";
      const some = `${given.after ? "" : given.order ? "The newest " : "The oldest "}${count(found.messages.length, kind)}${passing}`;
      const all = `${count(found.messages.length, kind)}${passing}`;
      const rest = found.tested ? `, of ${number(found.tested)} that were read; the next page reads on` : found.next ? "; there are more" : "";
      setText(note, `${!found.messages.length ? none : found.next ? some : all}${rest}.`);
      pages.update(found.next);
      show(table, found.messages.length > 0);
      clear.disabled = !filtered && !text.value && !where.value;
    },
  };
}

// Details of a message; the body is cut until the user asks for all of it.
function detail(name, listName, first, signal, actions) {
  const body = el("pre", { tabindex: "0", "aria-label": "Body" }, first.body);
  const visible = el("dd");
  const received = el("dd");
  const consumer = el("dd");
  const state = el("dd");
  const release = el("p", { hidden: true }, "If no process works on it any more, it can be freed, so that it is visible at once: ", copied(`lakequeue reschedule ${name} ${first.id} --in-flight`));
  const fault = el("p", { class: "trouble", role: "alert", hidden: true });
  const whole = el("button", { type: "button", click: fetchWhole }, `Show all ${count(first.length, "character")}`);
  const pretty = el("button", { type: "button", "aria-pressed": "false", click: format }, "Indent JSON");
  const attributes = el("tbody");
  const values = el("table", { class: "pairs" }, el("thead", {}, el("tr", {}, ["Attribute", "Type", "Value"].map((label) => el("th", { scope: "col" }, label)))), attributes);
  let message = first;

  function draw() {
    setText(body, message.body);
    attributes.replaceChildren(
      ...Object.entries(message.attributes).map(([key, { type, value }]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, type), el("td", { class: "code" }, value))),
    );
    show(values, attributes.childElementCount > 0);
    show(whole, message.cut);
    show(pretty, !message.cut && indented(message.body) !== null);
  }

  async function fetchWhole() {
    whole.disabled = true;
    try {
      message = await get(queuePath(name, `/${listName}/${encodeURIComponent(first.id)}`), {}, signal);
      show(fault, false);
      draw();
      body.focus();
    } catch (error) {
      setText(fault, error.message);
      show(fault, true);
    } finally {
      whole.disabled = false;
    }
  }

  function format() {
    const on = pretty.getAttribute("aria-pressed") !== "true";
    pretty.setAttribute("aria-pressed", String(on));
    setText(body, on ? indented(message.body) : message.body);
  }

  function pair(label, ...value) {
    return el("div", {}, el("dt", {}, label), value[0] instanceof Element && value[0].tagName === "DD" ? value : el("dd", {}, ...value));
  }

  const facts = el(
    "dl",
    { class: "facts" },
    pair("Message id", el("a", { class: "code", href: queueHash(name, listName, { text: first.id }), title: "A link to this message" }, first.id)),
    pair("Sent", time(first.sent_at), ` (${sinceText(first.sent_at)})`),
    listName === "history" ? null : [pair("State", state), pair("Visible at", visible), pair("Received", received), pair("Consumer", consumer)],
    first.group_id === null ? null : pair("Group", el("span", { class: "code" }, first.group_id)),
    first.source_queue === null ? null : pair("Source queue", queueLink(first.source_queue)),
    pair("Length", count(first.length, "character")),
    first.dead_letter_reason === null ? null : pair("Reason", el("dd", { class: "failure" }, failure(first.dead_letter_reason))),
    first.attempts.length === 0 ? null : pair("Failed attempts", el("dd", { class: "failure" }, attempts(first.attempts, first.dead_letter_reason)), el("dd", { class: "quiet" }, "The last 10, each up to 1 KiB. The log of the consumer has the stack trace of the last one at its time, with this message id. Earlier ones may be of a whole batch for a delivery table.")),
  );
  draw();
  return {
    node: el("div", { class: "detail" }, facts, release, values, body, fault, el("p", { class: "buttons" }, actions, whole, pretty)),
    update(newest) {
      setText(state, newest.state.replace("_", " "));
      show(release, newest.state === "in_flight");
      setText(visible, newest.visible_at ? `${instant(newest.visible_at)} ${offset(newest.visible_at)}` : "–");
      setText(consumer, newest.consumer ?? (newest.state === "in_flight" ? "it gave no name" : "–"));
      setText(received, ["never", "once", "twice"][newest.receive_count] ?? count(newest.receive_count, "time"));
    },
  };
}

// A failure: when and where, and its text with its own line breaks.
function failure(each) {
  return [el("div", { class: "quiet" }, time(each.at), ` (${sinceText(each.at)}) · ${each.consumer}`), el("pre", { tabindex: "0" }, reason(each))];
}

// Failures in their order. A text that is the same as the one above, at first that of `last`, is shown once.
function attempts(all, last) {
  return all.map((each, index) => (reason(each) === reason(all[index - 1] ?? last ?? {}) ? [el("div", { class: "quiet" }, time(each.at), ` (${sinceText(each.at)}) · ${each.consumer}: the same`)] : failure(each)));
}

function reason({ error, text }) {
  return text ? `${error}: ${text}` : error;
}

function indented(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}
