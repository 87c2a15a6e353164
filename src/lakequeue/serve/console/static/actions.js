// What changes a queue. Each asks in a dialog that says what will happen to which queue, and to how many messages.

import { get, post, queuePath } from "./api.js";
import { count, el, instant, localValue, number, say, show, toast, zone } from "./dom.js";

const STEP = 1_000; // messages of one request of a redrive
const MARGIN = 5_000; // the earliest instant moves on while one reads
const TYPES = ["String", "Number", "Binary"];

// A dialog with a form. `go` does the work and answers what to tell; it may fail, which the dialog shows.
function ask({ title, parts, button, look = "first", go, again }) {
  const fault = el("p", { class: "trouble", role: "alert", hidden: true });
  const confirm = el("button", { type: "submit", class: look }, button);
  const cancel = el("button", { type: "button", click: () => dialog.close() }, "Cancel");
  const form = el("form", { method: "dialog", submit }, el("h2", { id: "asked" }, title), parts, fault, el("p", { class: "buttons" }, confirm, cancel));
  const dialog = el("dialog", { "aria-labelledby": "asked", close: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();

  function complain(error) {
    say(fault, error?.message ?? "");
    show(fault, Boolean(error));
  }

  async function submit(event) {
    event.preventDefault();
    if (confirm.disabled) return;
    confirm.disabled = true;
    complain(null);
    try {
      toast(await go());
      dialog.close();
      again();
    } catch (error) {
      confirm.disabled = false;
      complain(error);
    }
  }

  return { dialog, confirm, complain };
}

function field(label, input, hint) {
  return el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
}

export function destinations(found) {
  return found.destinations.map(({ queue, messages }) => `${count(messages, "message")} to ${queue}`).join(", ");
}

export function send(queue, again) {
  const body = el("textarea", { rows: "7", required: true, spellcheck: "false", class: "code" });
  const delay = el("input", { type: "number", min: "0", step: "1", placeholder: queue.attributes.DelaySeconds ?? "0" });
  const group = el("input", { type: "text", required: queue.fifo, autocomplete: "off", spellcheck: "false" });
  const dedup = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const rows = el("div", { class: "attributes" });
  const byContent = queue.attributes.ContentBasedDeduplication === "true";

  function add() {
    const input = (label) => el("input", { type: "text", placeholder: label, "aria-label": `${label} of the attribute`, autocomplete: "off", spellcheck: "false" });
    const type = el("select", { "aria-label": "Type of the attribute" }, TYPES.map((each) => el("option", {}, each)));
    const row = el("div", {}, input("Name"), type, input("Value"), el("button", { type: "button", "aria-label": "Remove the attribute", click: () => row.remove() }, "×"));
    rows.append(row);
    row.firstChild.focus();
  }

  async function go() {
    const attributes = {};
    for (const row of rows.children) {
      const [name, type, value] = row.children;
      attributes[name.value] = { DataType: type.value, [type.value === "Binary" ? "BinaryValue" : "StringValue"]: value.value };
    }
    const sent = await post(queuePath(queue.name, "/send"), {
      MessageBody: body.value,
      ...(delay.value === "" ? {} : { DelaySeconds: Number(delay.value) }),
      ...(group.value === "" ? {} : { MessageGroupId: group.value }),
      ...(dedup.value === "" ? {} : { MessageDeduplicationId: dedup.value }),
      ...(rows.childElementCount ? { MessageAttributes: attributes } : {}),
    });
    return `Sent ${sent.MessageId} to ${queue.name}.`;
  }

  ask({
    title: `Send a message to ${queue.name}`,
    parts: [
      field("Body", body),
      el(
        "div",
        { class: "pair" },
        queue.fifo ? null : field("Delay in seconds", delay, "empty: as the queue says"),
        field("Group id", group, queue.fifo ? "messages of a group keep their order" : "optional"),
        queue.fifo ? field("Deduplication id", dedup, byContent ? "empty: a hash of the body" : null) : null,
      ),
      el("p", { class: "legend" }, "Attributes ", el("button", { type: "button", class: "small", click: add }, "Add attribute")),
      rows,
      el("p", { class: "quiet" }, "The value of a binary attribute is written in base64."),
    ],
    button: "Send",
    go,
    again,
  });
  body.focus();
}

export async function purge(queue, again) {
  const typed = el("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", input: check });
  const what = el("p", { class: "what" }, "Counting…");
  const { dialog, confirm, complain } = ask({
    title: `Purge ${queue.name}?`,
    parts: [what, field("Type the name of the queue to go on", typed)],
    button: "Purge",
    look: "danger",
    go: async () => {
      await post(queuePath(queue.name, "/purge"), { name: typed.value });
      return `${queue.name} is purged.`;
    },
    again,
  });
  let counted = false;
  confirm.disabled = true;
  typed.focus();

  function check() {
    confirm.disabled = !counted || typed.value !== queue.name;
  }

  try {
    const { counts } = await get(queuePath(queue.name));
    const all = counts.visible + counts.in_flight + counts.delayed + counts.held;
    const kinds = [[counts.visible, "visible"], [counts.in_flight, "in flight"], [counts.delayed, "delayed"], [counts.held, "held"]];
    const each = kinds.filter(([value]) => value).map(([value, label]) => `${number(value)} ${label}`);
    const past = counts.rewindable
      ? ` No rewind can bring back the ${count(counts.rewindable, "deleted message")} of before, either.`
      : "";
    what.replaceChildren(
      el("strong", {}, count(all, "message")),
      ` of ${queue.name}${each.length ? ` (${each.join(", ")})` : ""} will be removed for good, and whatever is sent until then.${past}`,
    );
    say(confirm, `Purge ${count(all, "message")}`);
    counted = true;
    check();
  } catch (error) {
    if (dialog.open) complain(error);
  }
}

export function rewind(queue, again) {
  const earliest = Date.parse(queue.min_rewind_time) + MARGIN;
  const to = el("input", { type: "datetime-local", step: "0.001", required: true, input: preview, min: localValue(earliest) });
  const what = el("p", { class: "what", "aria-live": "polite" }, "Choose an instant.");
  const pick = (label, ago) => el("button", { type: "button", class: "small", click: () => choose(ago) }, label);
  const { confirm, complain } = ask({
    title: `Rewind ${queue.name}?`,
    parts: [
      field(`Make deleted messages visible again that were sent at or after (${zone()})`, to),
      el("p", { class: "picks" }, pick("5 min ago", 300), pick("1 h ago", 3600), pick("24 h ago", 86400), pick("As far as possible", Infinity)),
      what,
    ],
    button: "Rewind",
    go: async () => {
      const done = await post(queuePath(queue.name, "/rewind"), { to: chosen() });
      return `${count(done.messages, "message")} of ${queue.name} visible again.`;
    },
    again,
  });
  let asked = 0;
  confirm.disabled = true;
  to.focus();

  function chosen() {
    return to.value ? new Date(to.value).toISOString() : null;
  }

  function choose(ago) {
    const now = Date.now();
    to.value = localValue(Math.max(now - ago * 1000, Date.parse(queue.min_rewind_time) + (now - opened) + MARGIN));
    preview();
  }

  async function preview() {
    const turn = ++asked;
    confirm.disabled = true;
    complain(null);
    if (!chosen()) return say(what, "Choose an instant.");
    say(what, "Counting…");
    try {
      const found = await get(queuePath(queue.name, "/rewind"), { to: chosen() });
      if (turn !== asked) return;
      const since = zone() === "UTC" ? `${instant(found.to)} UTC` : `${instant(found.to)} (${found.to})`;
      what.replaceChildren(
        el("strong", {}, count(found.messages, "deleted message")),
        ` of ${queue.name} sent at ${since} or later will be visible in ${queue.name} again, in the old order. Messages that wait or are in flight stay as they are.`,
      );
      say(confirm, `Rewind ${count(found.messages, "message")}`);
      confirm.disabled = found.messages === 0;
    } catch (error) {
      if (turn !== asked) return;
      say(what, "");
      complain(error);
    }
  }

  const opened = Date.now();
}

export function redrive(queue, again) {
  const where = el("input", {
    type: "text",
    class: "code",
    placeholder: "empty: all of them",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    change: preview,
    input: () => ((asked += 1), (confirm.disabled = true)),
    keydown: (event) => {
      if (event.key === "Enter" && confirm.disabled) {
        event.preventDefault();
        preview();
      }
    },
  });
  const what = el("p", { class: "what", "aria-live": "polite" });
  const bar = el("progress", { hidden: true, "aria-label": "Messages moved" });
  let asked = 0;
  let found = { messages: 0, destinations: [] };
  let condition = null;
  const stopping = new AbortController();
  const { dialog, confirm, complain } = ask({
    title: `Redrive ${queue.name}?`,
    parts: [
      field("Only messages for which this SQL condition is true", where),
      el("p", { class: "picks" }, el("button", { type: "button", class: "small", click: preview }, "Count")),
      what,
      bar,
    ],
    button: "Redrive",
    go,
    again,
  });
  dialog.addEventListener("close", () => stopping.abort());
  confirm.disabled = true;
  where.focus();
  preview();

  async function preview() {
    const turn = ++asked;
    const text = where.value.trim();
    confirm.disabled = true;
    complain(null);
    say(what, "Counting…");
    try {
      const counted = await get(queuePath(queue.name, "/redrive"), { where: text }, stopping.signal);
      if (turn !== asked) return;
      [found, condition] = [counted, text];
      what.replaceChildren(
        el("strong", {}, count(found.messages, "message")),
        found.messages
          ? ` of ${queue.name} will be moved: ${destinations(found)}. There they are as if sent now, never received.`
          : ` of ${queue.name} can be moved: only visible ones go, that came as dead letters of a queue that is still there.`,
      );
      say(confirm, `Move ${count(found.messages, "message")}`);
      confirm.disabled = found.messages === 0;
    } catch (error) {
      if (turn !== asked || stopping.signal.aborted) return;
      say(what, "");
      complain(error);
    }
  }

  // No more than what was named, in steps: closing the dialog stops it.
  async function go() {
    let moved = 0;
    bar.max = found.messages;
    bar.value = 0;
    show(bar, true);
    where.disabled = true;
    try {
      while (moved < found.messages && !stopping.signal.aborted) {
        const step = Math.min(STEP, found.messages - moved);
        const done = await post(queuePath(queue.name, "/redrive"), { messages: step, ...(condition ? { where: condition } : {}) });
        moved += done.messages;
        bar.value = moved;
        if (!done.messages) break;
      }
    } finally {
      where.disabled = false;
      if (stopping.signal.aborted) again();
    }
    return `${count(moved, "message")} of ${queue.name} moved.`;
  }
}
