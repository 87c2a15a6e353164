// The page of one queue.

import { destinations, purge, redrive, rewind, send } from "./actions.js";
import { queueHash } from "./address.js";
import { get, queuePath } from "./api.js";
import { chart } from "./chart.js";
import { count, duration, el, instant, number, offset, setText, show, time } from "./dom.js";
import { queueLink } from "./list.js";
import { messages } from "./messages.js";
import { changeQueue, changeTags, deleteQueue } from "./queues.js";

const TILES = [
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["rewindable", "Rewindable"],
  ["oldest_age", "Oldest"],
];
const TABS = [
  ["messages", "Messages"],
  ["history", "History"],
  ["dead-letters", "Dead letters"],
  ["attributes", "Attributes"],
];
const SHARD = [
  ["shard", "Shard"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["commits", "Newest commits"],
  ["lost_races", "Lost races"],
];
const GROUP = [
  ["group_id", "Group", (value) => value ?? "no group"],
  ["visible", "Visible", number],
  ["in_flight", "In flight", number],
  ["oldest_age", "Oldest visible", duration],
  ["noisy", "Noisy", (value) => (value ? "noisy" : "")],
];
const SPANS = [[3, "3 h"], [24, "24 h"], [168, "7 d"]];
const CHART_INTERVAL = 60_000;
const SECONDS = new Set(["VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "ReceiveMessageWaitTimeSeconds", "RewindSeconds"]);
const INSTANTS = new Set(["CreatedTimestamp", "LastModifiedTimestamp"]);

export function queue(name, tab, signal, reload) {
  const values = TILES.map(() => el("dd"));
  const badges = el("span", { class: "badges" });
  const picture = chart();
  let hours = 3;
  let drawnAt = -Infinity;
  const spans = SPANS.map(([value, label]) =>
    el("button", { type: "button", "aria-pressed": String(value === hours), click: () => span(value) }, label),
  );
  const act = (label, action, open, style = "") =>
    [el("button", { type: "button", class: style, hidden: true, click: () => open(last, reload) }, label), action];
  const actions = [
    act("Send…", "SendMessage", send, "first"),
    act("Redrive…", "StartMessageMoveTask", redrive),
    act("Rewind…", "Rewind", rewind),
    act("Purge…", "PurgeQueue", purge, "danger"),
    act("Delete…", "DeleteQueue", deleteQueue, "danger"),
  ];
  const tabs = TABS.map(([key, label]) =>
    el("a", { href: queueHash(name, key), "aria-current": key === tab ? "page" : false }, label),
  );
  const rates = el("p", { class: "rates" });
  const missing = el("div", { class: "empty", role: "alert", hidden: true }, el("p", {}, `There is no queue named ${name}.`), el("p", {}, el("a", { href: "#/" }, "All queues")));
  const part = { messages: listOf, history: listOf, "dead-letters": deadLetters, attributes }[tab]();
  const page = el(
    "div",
    {},
    el("div", { class: "head" }, el("h1", { title: name }, name), badges, el("div", { class: "tools" }, actions.map(([button]) => button))),
    el("dl", { class: "tiles" }, TILES.map(([, label], index) => el("div", {}, el("dt", {}, label), values[index]))),
    el("div", { class: "card" }, el("div", { class: "spans", role: "group", "aria-label": "Hours shown" }, spans), picture.node, rates),
    el("nav", { class: "tabs", "aria-label": "Parts of the queue" }, tabs),
    part.root,
  );
  const root = el("section", {}, missing, page);
  let last = null;

  function listOf() {
    const found = messages(name, tab, signal, reload);
    const intro = el("p", { class: "note", hidden: tab !== "history" });
    return {
      root: el("div", {}, intro, found.root),
      focus: found.focus,
      async update(newest) {
        setText(
          intro,
          newest.min_rewind_time === null
            ? "Rewind is off, because RewindSeconds is 0: deleted messages are gone for good."
            : `${count(newest.counts.rewindable, "deleted message")} can be made visible again by a rewind, as far back as ${instant(newest.min_rewind_time)} ${offset(newest.min_rewind_time)}.`,
        );
        if (newest.may.ReceiveMessage) await found.update(newest);
        else forbidden(found.root, "ReceiveMessage");
      },
    };
  }

  function deadLetters() {
    const target = el("p");
    const sources = el("ul", { class: "plain" });
    const none = el("p", { class: "quiet" }, "This is not the dead-letter queue of any queue in this region.");
    const counted = el("p");
    const ask = el("button", { type: "button", click: preview }, "Count what a redrive would move");
    let known = "";
    async function preview() {
      ask.disabled = true;
      try {
        const found = await get(queuePath(name, "/redrive"), {}, signal);
        setText(counted, found.messages ? `A redrive would move ${destinations(found)}.` : "A redrive would move nothing.");
      } catch (error) {
        setText(counted, error.message);
      } finally {
        ask.disabled = false;
      }
    }
    return {
      root: el(
        "div",
        { class: "columns" },
        el("div", { class: "card" }, el("h2", {}, "Dead-letter queue"), target),
        el("div", { class: "card" }, el("h2", {}, "Source queues"), sources, none, el("p", { class: "buttons" }, ask), counted),
      ),
      async update(newest) {
        const state = JSON.stringify([newest.dead_letter_queue, newest.max_receive_count, newest.sources]);
        if (state === known) return;
        known = state;
        target.replaceChildren(
          ...(newest.dead_letter_queue === null
            ? ["None: the number of receives is not limited."]
            : [
                `A message that was received ${newest.max_receive_count === 1 ? "once" : count(newest.max_receive_count, "time")} goes to `,
                queueLink(newest.dead_letter_queue),
                " at the next receive.",
              ]),
        );
        sources.replaceChildren(...(newest.sources ?? []).map((source) => el("li", {}, queueLink(source))));
        show(none, !newest.sources?.length);
        if (newest.sources === null) setText(none, "This key may not do ListDeadLetterSourceQueues here.");
        show(ask, offered("StartMessageMoveTask", newest));
      },
    };
  }

  function attributes() {
    const rows = el("tbody");
    const change = el("button", { type: "button", hidden: true, click: () => changeQueue(last, reload) }, "Change attributes…");
    const tags = el("tbody");
    const retag = el("button", { type: "button", hidden: true, click: () => changeTags(last, reload) }, "Change tags…");
    const none = el("p", { class: "quiet" });
    const shards = el("tbody");
    const groups = el("tbody");
    const counted = el("p", { class: "quiet" });
    const numbers = (key) => ({ class: ["group_id", "noisy"].includes(key) ? null : "number" });
    const tenants = el("div", { class: "card wide", hidden: true }, el("h2", {}, "Message groups"), el("div", { class: "overflow" }, el("table", { class: "shards" }, el("thead", {}, el("tr", {}, GROUP.map(([key, label]) => el("th", { ...numbers(key), scope: "col" }, label)))), groups)), counted);
    let known = "";
    return {
      root: el(
        "div",
        { class: "columns" },
        el("div", { class: "card wide" }, el("h2", {}, "Attributes"), el("table", { class: "pairs" }, rows), el("p", { class: "buttons" }, change)),
        el("div", { class: "card" }, el("h2", {}, "Tags"), el("table", { class: "pairs" }, tags), none, el("p", { class: "buttons" }, retag)),
        el("div", { class: "card wide" }, el("h2", {}, "Shards"), el("div", { class: "overflow" }, el("table", { class: "shards" }, el("thead", {}, el("tr", {}, SHARD.map(([, label]) => el("th", { class: "number", scope: "col" }, label)))), shards))),
        tenants,
      ),
      async update(newest) {
        show(change, newest.may.SetQueueAttributes);
        show(retag, newest.tags !== null && newest.may.TagQueue && newest.may.UntagQueue && Object.entries(newest.tags).every(([key, value]) => !/[=\n]/.test(key) && !value.includes("\n"))); // others are no lines
        const parts = await get(queuePath(name, "/shards"), {}, signal);
        shards.replaceChildren(...parts.shards.map((shard) => el("tr", {}, SHARD.map(([key]) => el("td", { class: "number" }, number(shard[key]))))));
        const found = newest.may.ReceiveMessage ? await get(queuePath(name, "/groups"), {}, signal) : { groups: null };
        show(tenants, found.groups !== null);
        if (found.groups !== null) {
          groups.replaceChildren(...found.groups.map((group) => el("tr", {}, GROUP.map(([key, , shown]) => el("td", numbers(key), shown(group[key]))))));
          const limit = newest.attributes.GroupInFlightLimit;
          setText(counted, `${count(found.total, "group")}, ${number(found.noisy)} noisy, counted ${duration(found.seconds_ago)} ago.${limit ? ` At most ${count(Number(limit), "message")} of a group are in flight.` : ""}`);
        }
        const settings = Object.entries(newest.attributes).filter(([key]) => !key.startsWith("ApproximateNumber"));
        const state = JSON.stringify([settings, newest.tags]);
        if (state === known) return; // so that a selection stays
        known = state;
        const pair = ([key, value]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, formatted(key, value)));
        rows.replaceChildren(...settings.sort(([a], [b]) => (a < b ? -1 : 1)).map(pair));
        tags.replaceChildren(...Object.entries(newest.tags ?? {}).map(pair));
        setText(none, newest.tags === null ? "This key may not do ListQueueTags here." : "This queue has no tags.");
        show(none, !tags.childElementCount);
      },
    };
  }

  function showRates(found) {
    const parts = [["sent", "sent"], ["received", "received here"], ["deleted", "deleted"]];
    rates.replaceChildren(
      ...(found === null
        ? ["Rates are known after the server has seen the queue for a minute."]
        : [
            "Per minute: ",
            ...parts.flatMap(([key, label]) => [el("b", {}, rate(found[key])), ` ${label}  `]),
            el("span", {}, `over the last ${count(Math.round(found.minutes), "minute")}`),
          ]),
    );
    rates.title = "Received here: through this server; other consumers are not counted. Deleted: also what expired or was purged.";
  }

  function span(value) {
    hours = value;
    drawnAt = -Infinity;
    spans.forEach((button, index) => button.setAttribute("aria-pressed", String(SPANS[index][0] === hours)));
    reload();
  }

  return {
    root,
    title: name,
    focus: part.focus,
    async update() {
      try {
        last = await get(queuePath(name), {}, signal);
      } catch (error) {
        if (error.code !== "QueueDoesNotExist") throw error;
        show(missing, true);
        show(page, false);
        return null;
      }
      show(missing, false);
      show(page, true);
      TILES.forEach(([key], index) => {
        const value = last.counts[key];
        setText(values[index], key === "oldest_age" ? duration(value) : number(value));
        values[index].classList.toggle("none", !value);
      });
      const marks = [last.fifo ? "FIFO" : "standard", last.attributes.Profile, last.sources?.length ? "dead letters" : null].filter(Boolean);
      if (badges.dataset.marks !== marks.join()) {
        badges.dataset.marks = marks.join();
        badges.replaceChildren(...marks.map((mark) => el("span", { class: "badge" }, mark)));
      }
      for (const [button, action] of actions) {
        show(button, offered(action, last));
        button.disabled = action === "PurgeQueue" && empty(last.counts);
        button.title = button.disabled ? "There is nothing to purge." : "";
      }
      showRates(last.rates);
      await part.update(last);
      if (performance.now() - drawnAt > CHART_INTERVAL) {
        picture.update(await get(queuePath(name, "/points"), { hours }, signal));
        drawnAt = performance.now();
      }
      return last;
    },
  };
}

// Only what the key allows, and what can have an effect in this queue.
function offered(action, queue) {
  if (!queue.may[action]) return false;
  if (action === "Rewind") return queue.min_rewind_time !== null;
  if (action === "StartMessageMoveTask") {
    return queue.may.ReceiveMessage && (queue.sources === null || queue.sources.length > 0);
  }
  return true;
}

function empty(counts) {
  return !(counts.visible || counts.in_flight || counts.delayed || counts.held || counts.rewindable);
}

function rate(value) {
  return number(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
}

function forbidden(node, action) {
  node.replaceChildren(el("p", { class: "empty" }, `This key may not do ${action} here.`));
}

function formatted(key, value) {
  if (INSTANTS.has(key)) return time(new Date(Number(value) * 1000).toISOString());
  if (SECONDS.has(key) && Number(value) >= 60) return [`${number(Number(value))} s `, el("span", { class: "quiet" }, `(${duration(Number(value))})`)];
  if (SECONDS.has(key)) return `${value} s`;
  if (value.startsWith("{")) return el("span", { class: "code" }, value);
  return value;
}
