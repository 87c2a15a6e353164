// Actions that change a queue. Each opens a dialog that says what will happen, to which queue and how many messages.

import { heldBy, queueHash } from "./address.js";
import { get, post, queuePath } from "./api.js";
import { runs } from "./consumers.js";
import { ask, askForName, field, lostHistory } from "./dialog.js";
import { count, duration, el, instant, localValue, number, offset, setText, show, toast, zone } from "./dom.js";

const STEP = 1_000; // messages that one redrive request moves
const MARGIN = 5_000; // in ms; the earliest instant advances while the user reads
export const KILLED = "a consumer was killed, or its timeout passed"; // as doctor says of letters without an error
const FREED = 200; // messages at most that one dialog frees
const TYPES = ["String", "Number", "Binary"];

export function destinations(found) {
  return found.destinations.map(({ queue, messages }) => `${count(messages, "message")} to ${queue}`).join(", ");
}

// `letter`: a dead letter of `letter.queue` that the user edits; it is deleted once it is sent.
export function send(queue, reload, letter = null) {
  const body = el("textarea", { rows: "7", required: true, spellcheck: "false", class: "code" });
  const delay = el("input", { type: "number", min: "0", step: "1", placeholder: queue.attributes.DelaySeconds ?? "0" });
  const group = el("input", { type: "text", required: queue.fifo, autocomplete: "off", spellcheck: "false", value: letter?.group_id });
  const dedup = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const rows = el("div", { class: "attributes" });
  const highest = Number(queue.attributes.Priorities ?? 1) - 1;
  const priority = el("input", { type: "number", name: "Priority", min: "0", max: String(highest), step: "1", placeholder: "0" });
  const unique = queue.fifo || "DeduplicationInterval" in queue.attributes || queue.attributes.DeduplicationUntilDeleted === "true";
  const byContent = queue.attributes.ContentBasedDeduplication === "true";

  function add(name, of = {}) {
    const input = (label, value) => el("input", { type: "text", placeholder: label, "aria-label": `${label} of the attribute`, autocomplete: "off", spellcheck: "false", value });
    const types = new Set([of.type ?? TYPES[0], ...TYPES]); // a dead letter may have one of its own, as Number.int
    const type = el("select", { "aria-label": "Type of the attribute" }, [...types].map((each) => el("option", {}, each)));
    const row = el("div", {}, input("Name", name), type, input("Value", of.value), el("button", { type: "button", "aria-label": "Remove the attribute", click: () => row.remove() }, "×"));
    rows.append(row);
    row.firstChild.focus();
  }

  async function go() {
    const attributes = {};
    for (const row of rows.children) {
      const [name, type, value] = row.children;
      attributes[name.value] = { DataType: type.value, [type.value.startsWith("Binary") ? "BinaryValue" : "StringValue"]: value.value };
    }
    const sent = await post(queuePath(queue.name, "/send"), {
      MessageBody: body.value,
      ...(delay.value === "" ? {} : { DelaySeconds: Number(delay.value) }),
      ...(group.value === "" ? {} : { MessageGroupId: group.value }),
      ...(dedup.value === "" ? {} : { MessageDeduplicationId: dedup.value }),
      ...(priority.value === "" ? {} : { Priority: Number(priority.value) }),
      ...(rows.childElementCount ? { MessageAttributes: attributes } : {}),
    });
    return `Sent ${sent.MessageId} to ${queue.name}${letter ? await removed() : ""}.`;
  }

  // The message is sent: a failure from here on must not look as if it were not.
  async function removed() {
    const done = await post(queuePath(letter.queue, "/messages/delete"), { ids: [letter.id] }).catch((error) => error);
    return done.messages ? `, and deleted from ${letter.queue}` : `; the dead letter stays in ${letter.queue}: ${done.message ?? "it is no longer visible"}`;
  }

  ask({
    title: letter ? `Edit and resend to ${queue.name}` : `Send a message to ${queue.name}`,
    parts: [
      letter && el("p", { class: "what" }, `What you send is a new message of ${queue.name}. The dead letter is then deleted from ${letter.queue}.`),
      field("Body", body, letter?.body.includes("\r") ? "line ends are sent as \\n" : null),
      el(
        "div",
        { class: "pair" },
        queue.fifo ? null : field("Delay in seconds", delay, "empty: the default of the queue"),
        field("Group id", group, queue.fifo ? "messages of a group keep their order" : "optional: the tenant"),
        unique ? field("Deduplication id", dedup, byContent ? "empty: a hash of the body" : null) : null,
        highest > 0 ? field("Priority", priority, `0 to ${highest}; higher ones are received first`) : null,
      ),
      el("p", { class: "legend" }, "Attributes ", el("button", { type: "button", class: "small", click: () => add() }, "Add attribute")),
      rows,
      el("p", { class: "quiet" }, "Write the value of a binary attribute in base64."),
    ],
    button: "Send",
    go,
    reload,
  });
  for (const [name, attribute] of Object.entries(letter?.attributes ?? {})) add(name, attribute);
  body.value = letter?.body ?? "";
  body.focus();
}

// Opens the dialog with a dead letter; what the list shows of it may be cut.
export async function resend(queue, [chosen], reload) {
  try {
    const letter = await get(queuePath(queue.name, `/messages/${encodeURIComponent(chosen.id)}`));
    send(await get(queuePath(letter.source_queue)), reload, { ...letter, queue: queue.name });
  } catch (error) {
    toast(error.message, "wrong");
  }
}

export function pause(queue, reload) {
  const reason = el("input", { type: "text", name: "reason", autocomplete: "off", placeholder: "paused" });
  const group = el("input", { type: "text", name: "group", autocomplete: "off", spellcheck: "false", placeholder: "empty: the whole queue" });
  ask({
    title: `Pause ${queue.name}?`,
    parts: [
      el("p", { class: "what" }, "Receives of all consumers find nothing until you resume it. Sends go on, and what is in flight is not touched."),
      field("Reason", reason, "shown wherever the pause is shown"),
      field("Message group", group, "only this group is paused; the others are served"),
    ],
    button: "Pause",
    go: async () => {
      await post(queuePath(queue.name, "/pause"), { reason: reason.value.trim(), ...(group.value ? { group: group.value } : {}) });
      return `${group.value ? `Group ${group.value} of ${queue.name}` : queue.name} is paused.`;
    },
    reload,
  });
  reason.focus();
}

export function purge({ name }, reload) {
  askForName({
    name,
    title: `Purge ${name}?`,
    button: (all) => `Purge ${all ?? ""}`,
    tell({ counts }) {
      const kinds = [[counts.visible, "visible"], [counts.in_flight, "in flight"], [counts.delayed, "delayed"], [counts.held, "held"], [counts.undecided, "undecided"]];
      const each = kinds.filter(([value]) => value).map(([value, label]) => `${number(value)} ${label}`);
      return ` of ${name}${each.length ? ` (${each.join(", ")})` : ""} will be removed for good, including messages that are sent until then.${lostHistory(counts)}`;
    },
    go: async (typed) => {
      await post(queuePath(name, "/purge"), { name: typed });
      return `${name} is purged. A compaction frees its space, at once: \`lakequeue compact --now 0\``;
    },
    reload,
  });
}

export function rewind(queue, reload) {
  const earliest = Date.parse(queue.min_rewind_time) + MARGIN;
  const to = el("input", { type: "datetime-local", name: "to", step: "0.001", required: true, input: preview, min: localValue(earliest) });
  const what = el("p", { class: "what", "aria-live": "polite" }, "Choose an instant.");
  const pick = (label, ago) => el("button", { type: "button", class: "small", click: () => choose(ago) }, label);
  const { confirm, showError } = ask({
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
    reload,
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
    showError(null);
    if (!chosen()) return setText(what, "Choose an instant.");
    setText(what, "Counting…");
    try {
      const found = await get(queuePath(queue.name, "/rewind"), { to: chosen() });
      if (turn !== asked) return;
      const since = `${instant(found.to)} ${offset(found.to)}`;
      what.replaceChildren(
        el("strong", {}, count(found.messages, "deleted message")),
        ` of ${queue.name} sent at ${since} or later will be visible in ${queue.name} again, in the old order. Messages that are waiting or in flight do not change.`,
      );
      setText(confirm, `Rewind ${count(found.messages, "message")}`);
      confirm.disabled = found.messages === 0;
    } catch (error) {
      if (turn !== asked) return;
      setText(what, "");
      showError(error);
    }
  }

  const opened = Date.now();
}

// The parameters of a request for the dead letters of a kind: of an error (null: of none) of a source queue.
function ofKind({ error, source_queue: source }) {
  return { ...(error === null ? { no_error: "1" } : { error }), ...(source === null ? {} : { source }) };
}

// The queues that a redrive moved messages to, as links.
function links(names) {
  return names.map((name, index) => [index ? ", " : "", el("a", { href: queueHash(name) }, name)]);
}

// If consumers receive from the queues that a redrive moves messages to.
async function receivers(names, signal) {
  const known = await Promise.all(names.map((name) => get(queuePath(name, "/consumers"), {}, signal)));
  const served = names.filter((_, index) => known[index].consumers.some(runs));
  if (!served.length) return ` No consumer of ${names.join(", ")} is known to run.`;
  return ` Consumers of ${served.join(", ")} are running: if the cause is not fixed, the messages come back.`;
}

// `filters`: those of the list of messages below, so that a redrive moves what is listed. `only`: the error and the
// source queue of the dead letters to move.
export function redrive(queue, reload, { text = "", where: listed = "" } = {}, only = null) {
  const errors = el("select", { name: "error", change: preview });
  const containing = el("input", { type: "search", name: "text", value: text, placeholder: "any text", autocomplete: "off", spellcheck: "false", change: preview });
  const where = el("input", {
    type: "text",
    name: "where",
    class: "code",
    placeholder: "empty: all messages",
    value: listed,
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
  let condition = {};
  const stopping = new AbortController();
  const { dialog, confirm, showError } = ask({
    title: `Redrive ${queue.name}?`,
    parts: [
      text || listed ? el("p", { class: "quiet" }, "The filters of the list are taken over.") : null,
      field("Only error", errors),
      field("Only messages with this text in body, id or group", containing),
      field("Only messages for which this SQL condition is true", where),
      el("p", { class: "picks" }, el("button", { type: "button", class: "small", click: preview }, "Count")),
      what,
      bar,
    ],
    button: "Redrive",
    go,
    reload,
  });
  dialog.addEventListener("close", () => stopping.abort());
  confirm.disabled = true;
  offer(only ? [only] : []);
  errors.focus();
  preview();
  get(queuePath(queue.name, "/errors"), {}, stopping.signal).then((known) => offer(known.errors), () => null); // the dialog works without it

  // The errors to choose from; what is chosen stays.
  function offer(known) {
    const value = errors.value || (only ? JSON.stringify(ofKind(only)) : "");
    const several = new Set(known.map((each) => each.source_queue)).size > 1;
    const label = (each) => `${each.error ?? KILLED}${several && each.source_queue ? ` of ${each.source_queue}` : ""} (${number(each.messages)})`;
    const options = known.map((each) => [JSON.stringify(ofKind(each)), label(each)]);
    errors.replaceChildren(...[["", "all"], ...options].map(([key, shown]) => el("option", { value: key, selected: key === value }, shown)));
  }

  async function preview() {
    const turn = ++asked;
    const chosen = { text: containing.value.trim(), where: where.value.trim(), ...(errors.value && JSON.parse(errors.value)) };
    confirm.disabled = true;
    showError(null);
    setText(what, "Counting…");
    try {
      const counted = await get(queuePath(queue.name, "/redrive"), chosen, stopping.signal);
      if (turn !== asked) return;
      [found, condition] = [counted, Object.fromEntries(Object.entries(chosen).filter(([, value]) => value))];
      const served = el("span");
      const targets = found.destinations.map((each) => each.queue);
      what.replaceChildren(
        el("strong", {}, count(found.messages, "message")),
        found.messages
          ? ` of ${queue.name} will be moved${found.destinations.length === 1 ? ` to ${found.destinations[0].queue}` : `: ${destinations(found)}`}. There they count as sent now and never received. A redrive runs handlers of ${targets.join(", ")} again: what a failed attempt has done happens twice.`
          : ` of ${queue.name} can be moved: a redrive moves only visible messages that are dead letters of an existing queue.`,
        served,
      );
      if (found.messages) receivers(targets, stopping.signal).then((text) => setText(served, text), () => null); // a key may not see them
      setText(confirm, `Move ${count(found.messages, "message")}`);
      confirm.disabled = found.messages === 0;
    } catch (error) {
      if (turn !== asked || stopping.signal.aborted) return;
      setText(what, "");
      showError(error);
    }
  }

  // Moves at most the number of messages that the dialog shows, in steps; closing the dialog stops it.
  async function go() {
    let moved = 0;
    bar.max = found.messages;
    bar.value = 0;
    show(bar, true);
    where.disabled = containing.disabled = errors.disabled = true;
    try {
      while (moved < found.messages && !stopping.signal.aborted) {
        const step = Math.min(STEP, found.messages - moved);
        const done = await post(queuePath(queue.name, "/redrive"), { messages: step, ...condition });
        moved += done.messages;
        bar.value = moved;
        if (!done.messages) break;
      }
    } finally {
      where.disabled = containing.disabled = errors.disabled = false;
      if (stopping.signal.aborted) reload();
    }
    return [`${count(moved, "message")} of ${queue.name} moved to `, links(found.destinations.map((each) => each.queue)), "."];
  }
}

// What became of chosen messages, in one line.
function told(done, verb) {
  const stayed = Object.entries(done.stayed).map(([state, each]) => `${number(each)} ${each === 1 ? "stays" : "stay"} ${state.replace("_", " ")}`);
  const gone = done.missing ? [`${number(done.missing)} no longer there`] : [];
  return `${[`${count(done.messages, "message")} ${verb}`, ...stayed, ...gone].join("; ")}.`;
}

function ids(chosen) {
  return chosen.map((message) => message.id);
}

function having(chosen, ...states) {
  return chosen.filter((message) => states.includes(message.state)).length;
}

export function deleteMessages(queue, chosen, reload) {
  const visible = having(chosen, "visible");
  const others = chosen.length - visible;
  const range = Number(queue.attributes.RewindSeconds ?? 0);
  ask({
    title: `Delete ${count(chosen.length, "message")} of ${queue.name}?`,
    parts: [
      el(
        "p",
        { class: "what" },
        el("strong", {}, count(visible, "visible message")),
        ` will be deleted${range ? `; a rewind can restore what was sent in the last ${duration(range)}` : " for good"}.`,
      ),
      others ? el("p", {}, `${count(others, "other message")} will stay: only visible messages can be deleted, and what is in flight belongs to its consumer.`) : null,
    ],
    button: `Delete ${count(visible, "message")}`,
    style: "danger",
    go: async () => told(await post(queuePath(queue.name, "/messages/delete"), { ids: ids(chosen) }), "deleted"),
    reload,
  });
}

// Gives back what a consumer holds whose process is gone.
// `killed`: what happens to its messages otherwise, if its process is known to be gone.
export async function freeHeld(queue, consumer, reload, killed = null) {
  const { messages, next } = await get(queuePath(queue.name, "/messages"), { ...heldBy(consumer), limit: FREED });
  if (!messages.length) return toast(`${consumer} holds no message of ${queue.name} any more.`);
  makeVisible(queue, messages, reload, `${consumer} has held ${messages.length === 1 ? "it" : "them"}${next ? ", and more: free those afterwards" : ""}.`, killed);
}

export function makeVisible(queue, chosen, reload, more = null, killed = null) {
  const delayed = having(chosen, "delayed");
  const taken = having(chosen, "in_flight");
  const also = el("input", { type: "checkbox", name: "in_flight" });
  ask({
    title: `Make messages of ${queue.name} visible?`,
    parts: [
      el("p", { class: "what" }, el("strong", {}, delayed ? count(delayed, "delayed message") : `${count(taken, "message")} in flight`), " will be visible at once."),
      delayed && taken ? el("label", { class: "check" }, also, el("span", {}, `Also ${count(taken, "message")} in flight`)) : null,
      more ? el("p", {}, more) : null,
      killed ? el("p", {}, `Its process was killed, so nothing runs ${taken === 1 ? "its handler" : "their handlers"} any more. Otherwise ${killed}.`) : null,
      taken && !killed ? el("p", { class: "quiet" }, `${taken === 1 ? "Its consumer is not told and goes" : "Their consumers are not told and go"} on; another one may receive ${taken === 1 ? "it" : "them"} meanwhile.`) : null,
    ],
    button: "Make visible",
    go: async () =>
      told(await post(queuePath(queue.name, "/messages/visible"), { ids: ids(chosen), in_flight: also.checked || !delayed }), "made visible"),
    reload,
  });
}

export function redriveMessages(queue, chosen, reload) {
  const letters = chosen.filter((message) => message.state === "visible" && message.source_queue !== null);
  const places = [...new Set(letters.map((message) => message.source_queue))].sort();
  ask({
    title: `Redrive ${count(letters.length, "message")} of ${queue.name}?`,
    parts: [
      el("p", { class: "what" }, el("strong", {}, count(letters.length, "visible dead letter")), ` will go back to ${places.join(", ")}, as sent now and never received.`),
      letters.length < chosen.length ? el("p", {}, `${count(chosen.length - letters.length, "other message")} will stay.`) : null,
    ],
    button: `Move ${count(letters.length, "message")}`,
    go: async () => {
      const done = await post(queuePath(queue.name, "/redrive"), { ids: ids(letters) });
      return [`${count(done.messages, "message")} of ${queue.name} moved to `, links(places), "."];
    },
    reload,
  });
}
