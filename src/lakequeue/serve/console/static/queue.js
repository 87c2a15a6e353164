// The page of one queue.

import { destinations, KILLED, pause, purge, redrive, rewind, send } from "./actions.js";
import { diedHash, lettersHash, queueHash } from "./address.js";
import { attention, pauseMark, resume } from "./attention.js";
import { FAILED, get, queuePath } from "./api.js";
import { chart, DEPTH, THROUGHPUT } from "./chart.js";
import { CONSUMER, runs, UNSEEN } from "./consumers.js";
import { count, duration, el, instant, number, offset, rate, setCommands, setText, show, stored, time } from "./dom.js";
import { queueLink, sharing } from "./list.js";
import { messages } from "./messages.js";
import { changeQueue, changeTags, deleteQueue } from "./queues.js";

const TILES = [
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["oldest_age", "Oldest"],
  ["held", "Held"],
  ["undecided", "Undecided"],
  ["rewindable", "Rewindable"],
];
const RARE = new Set(["held", "undecided", "rewindable"]); // tiles that are shown only where they are not zero
export const TABS = [
  ["messages", "Messages"],
  ["history", "History"],
  ["dead-letters", "Dead letters"],
  ["consumers", "Consumers"],
  ["attributes", "Attributes"],
];
const SHARD = [
  ["shard", "Shard"],
  ["visible", "Visible"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["held", "Held"],
  ["undecided", "Undecided"],
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
  const picture = chart(DEPTH, "Messages over time", 168);
  const speed = chart(THROUGHPUT, "Messages sent and deleted per minute over time", matchMedia("(min-width: 901px)").matches ? 168 : 96);
  show(speed.node, false); // nothing is known of a queue's first minute
  let hours = 3;
  let drawnAt = -Infinity;
  const spans = SPANS.map(([value, label]) =>
    el("button", { type: "button", "aria-pressed": String(value === hours), click: () => span(value) }, label),
  );
  const act = (label, action, open, style = "") =>
    [el("button", { type: "button", class: style, hidden: true, click: () => open(last, changed) }, label), action];
  const actions = [
    act("Send…", "SendMessage", send, "first"),
    act("Resume", "Resume", () => resume(name, null, changed)),
    act("Pause…", "Pause", pause),
    act("Redrive…", "StartMessageMoveTask", (...given) => redrive(...given, part.filters?.())),
    act("Rewind…", "Rewind", rewind),
    act("Purge…", "PurgeQueue", purge, "danger"),
    act("Delete…", "DeleteQueue", deleteQueue, "danger"),
  ];
  const tabs = TABS.map(([key, label]) =>
    el("a", { href: queueHash(name, key), "aria-current": key === tab ? "page" : false }, label),
  );
  const rates = el("p", { class: "rates" });
  const concerns = attention(signal, reload, name);
  const why = el("p");
  const missing = el("div", { class: "empty", role: "alert", hidden: true }, why, el("p", {}, el("a", { href: "#/" }, "All queues")));
  const unshown = el("span");
  const runbook = el("a", { href: "runbooks/damage" }, "Runbook");
  const fault = el("p", { class: "trouble", role: "alert", hidden: true }, unshown, " ", runbook);
  const part = { messages: listOf, history: listOf, "dead-letters": deadLetters, consumers, attributes }[tab]();
  const depths = el("div", { class: "card depths" }, el("div", { class: "spans", role: "group", "aria-label": "Hours shown" }, spans), picture.node, speed.node);
  const page = el(
    "div",
    { class: "queue" },
    el("div", { class: "head" }, el("h1", { title: name }, name), badges, el("fieldset", { class: "tools" }, actions.map(([button]) => button))),
    missing,
    el("dl", { class: "tiles" }, TILES.map(([, label], index) => el("div", {}, el("dt", {}, label), values[index]))),
    rates,
    concerns.node,
    depths,
    el("nav", { class: "tabs", "aria-label": "Parts of the queue" }, tabs),
    fault,
    part.root,
  );
  const root = el("section", {}, page);
  const faults = new Map();
  let last = null;

  // Reads all of the page anew, with what needs attention and the chart, once something was changed.
  function changed() {
    concerns.forget();
    drawnAt = -Infinity;
    reload();
  }

  function listOf() {
    const found = messages(name, tab, signal, reload, changed);
    const intro = el("p", { class: "note", hidden: tab !== "history" });
    return {
      root: el("div", {}, intro, found.root),
      focus: found.focus,
      filters: tab === "messages" ? found.filters : undefined,
      async update(newest) {
        setText(
          intro,
          newest.min_rewind_time === null
            ? "Rewind is off, because RewindSeconds is 0: deleted messages are gone for good."
            : `${count(newest.counts.rewindable, "deleted message")} can be made visible again by a rewind, as far back as ${instant(newest.min_rewind_time)} ${offset(newest.min_rewind_time)}.`,
        );
        if (newest.may.ReceiveMessage) await found.update(newest);
        else found.root.replaceChildren(el("p", { class: "empty" }, "This key may not do ReceiveMessage here."));
      },
    };
  }

  function deadLetters() {
    const target = el("p");
    const sources = el("ul", { class: "plain" });
    const none = el("p", { class: "quiet", hidden: true }, "This is not the dead-letter queue of any queue in this region.");
    const counted = el("p");
    const what = el("h2", {}, "Dead letters by error: counting…");
    const errors = el("tbody");
    const some = el("p", { class: "quiet" });
    const heads = ["Error", "Source queue", "Messages", "Newest text", ""];
    const kinds = el("div", { class: "card whole", hidden: true }, what, el("div", { class: "overflow" }, el("table", { class: "errors wide-cells" }, el("thead", {}, el("tr", {}, heads.map((label) => el("th", { scope: "col", class: label === "Messages" ? "number" : null }, label)))), errors)), some);
    const ask = el("button", { type: "button", hidden: true, click: preview }, "Count what a redrive would move");
    let known = "";
    let shown = "";

    function kind(letters) {
      const { error, source_queue: source, messages, text } = letters;
      const button = offered("StartMessageMoveTask", last) ? el("button", { type: "button", class: "small", "aria-label": `Redrive ${number(messages)} of ${error ?? "letters without an error"}`, click: () => redrive(last, changed, {}, letters) }, `Redrive ${number(messages)}…`) : null;
      const cells = [el("a", { href: lettersHash(name, error, source) }, error ?? KILLED), source === null ? "–" : queueLink(source), number(messages), el("div", { class: "clamped", title: text }, text), button];
      return el("tr", {}, cells.map((cell, index) => el("td", { class: ["", "", "number", "text", ""][index], "data-label": heads[index] }, cell)));
    }

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
        kinds,
        el("div", { class: "card" }, el("h2", {}, "Where messages of this queue go when they fail"), target),
        el("div", { class: "card" }, el("h2", {}, "Queues whose dead letters come here"), sources, none, el("p", { class: "buttons" }, ask), counted),
      ),
      async update(newest) {
        const state = JSON.stringify([newest.dead_letter_queue, newest.max_receive_count, newest.sources]);
        if (state !== known) showPolicies(newest);
        known = state;
        if (!newest.sources?.length || !newest.may.ReceiveMessage) return show(kinds, false);
        show(kinds, true); // also while they are counted
        const found = await get(queuePath(name, "/errors"), {}, signal);
        const counted = JSON.stringify([found.errors, newest.may]);
        if (counted !== shown) errors.replaceChildren(...found.errors.map(kind)); // else a selection and the focus stay
        shown = counted;
        const all = found.errors.reduce((sum, each) => sum + each.messages, 0);
        setText(what, `This is a dead-letter queue: ${count(all, "dead letter")} by error`);
        setText(some, found.tested ? `Counted over the newest ${number(found.tested)} messages.` : all ? "" : "No dead letter is visible.");
      },
    };

    function showPolicies(newest) {
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
    }
  }

  function consumers() {
    const active = el("tbody");
    const idle = el("p", { class: "note" });
    const heads = CONSUMER.map(([label, kind]) => el("th", { class: kind, scope: "col" }, label));
    const table = el("div", { class: "scroll", hidden: true }, el("table", { class: "wide-cells" }, el("thead", {}, el("tr", {}, heads)), active));
    return {
      root: el("div", {}, table, idle),
      async update() {
        const busy = await get(queuePath(name, "/consumers"), {}, signal);
        active.replaceChildren(...busy.consumers.map((each) => el("tr", {}, CONSUMER.map(([label, kind, shown]) => el("td", { class: kind, "data-label": label }, shown({ queue: name, ...each }))))));
        show(table, busy.total > 0);
        setText(idle, busy.total > busy.consumers.length ? `${number(busy.total)} consumers in all.` : busy.consumers.some(runs) ? UNSEEN : `No consumer of this queue runs. ${UNSEEN}`);
      },
    };
  }

  function attributes() {
    const rows = el("tbody");
    const change = el("button", { type: "button", hidden: true, click: () => changeQueue(last, changed) }, "Change attributes…");
    const tags = el("tbody");
    const retag = el("button", { type: "button", hidden: true, click: () => changeTags(last, reload) }, "Change tags…");
    const none = el("p", { class: "quiet" });
    const shards = el("tbody");
    const groups = el("tbody");
    const counted = el("p", { class: "quiet" });
    const numbers = (key) => ({ class: ["group_id", "noisy"].includes(key) ? null : "number" });
    const tenants = el("div", { class: "card wide", hidden: true }, el("h2", {}, "Message groups"), el("div", { class: "overflow" }, el("table", { class: "shards wide-cells" }, el("thead", {}, el("tr", {}, GROUP.map(([key, label]) => el("th", { ...numbers(key), scope: "col" }, label)))), groups)), counted);
    let known = "";
    return {
      root: el(
        "div",
        { class: "columns" },
        el("div", { class: "card wide" }, el("h2", {}, "Attributes"), el("table", { class: "pairs" }, rows), el("p", { class: "buttons" }, change)),
        el("div", { class: "card" }, el("h2", {}, "Tags"), el("table", { class: "pairs" }, tags), none, el("p", { class: "buttons" }, retag)),
        el("div", { class: "card wide" }, el("h2", {}, "Shards"), el("div", { class: "overflow" }, el("table", { class: "shards wide-cells" }, el("thead", {}, el("tr", {}, SHARD.map(([, label]) => el("th", { class: "number", scope: "col" }, label)))), shards))),
        tenants,
      ),
      async update(newest) {
        show(change, newest.may.SetQueueAttributes);
        show(retag, newest.tags !== null && newest.may.TagQueue && newest.may.UntagQueue && Object.entries(newest.tags).every(([key, value]) => !/[=\n]/.test(key) && !value.includes("\n"))); // others are no lines
        const parts = await get(queuePath(name, "/shards"), {}, signal);
        shards.replaceChildren(...parts.shards.map((shard) => el("tr", {}, SHARD.map(([key, label]) => el("td", { class: "number", "data-label": label }, number(shard[key]))))));
        const found = newest.may.ReceiveMessage ? await get(queuePath(name, "/groups"), {}, signal) : { groups: null };
        show(tenants, found.groups !== null);
        if (found.groups !== null) {
          groups.replaceChildren(...found.groups.map((group) => el("tr", {}, GROUP.map(([key, label, shown]) => el("td", { ...numbers(key), "data-label": label }, shown(group[key]))))));
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
        ? [speed.node.hidden && !faults.has(depths) ? "Rates are known after a minute." : ""]
        : [
            "Per minute: ",
            ...parts.flatMap(([key, label]) => [el("b", {}, rate(found[key])), ` ${label}  `]),
            el("span", {}, `over the last ${count(Math.round(found.minutes), "minute")}`),
            ...(found.stay === null ? [] : [". A message stays ", el("b", {}, duration(found.stay)), " on average."]),
          ]),
    );
    rates.title = "Received here: through this server; other consumers are not counted. Deleted: also what expired or was purged. Stays: from when it is visible to when it is deleted, by what waits and what is deleted.";
  }

  // Shows a part of the page, or why it cannot be read, so that the other parts stay.
  async function reading(node, read) {
    try {
      await read();
      faults.delete(node);
    } catch (error) {
      if (error.status !== FAILED) throw error;
      if (!faults.has(node)) concerns.forget(); // the server knows of the damage only now
      faults.set(node, error.message);
    }
    show(node, !faults.has(node));
    const missed = [[part.root, TABS.find(([key]) => key === tab)[1].toLowerCase()], [depths, "chart"]].filter(([of]) => faults.has(of)).map(([, label]) => label).join(", ");
    const said = [...new Set(faults.values())].join(" ");
    const damaged = concerns.isDamaged(name);
    setCommands(unshown, damaged ? `Not shown until the damage above is repaired: ${missed}.` : `${said} Not shown for this reason: ${missed}.`);
    show(runbook, damaged || said.includes(" is damaged")); // what needs attention says it some seconds later
    show(fault, faults.size > 0);
  }

  async function draw() {
    const found = await get(queuePath(name, "/points"), { hours }, signal);
    picture.update(found);
    speed.update(found);
    show(speed.node, found.points.some((point) => point.deleted !== null));
    drawnAt = performance.now();
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
        const absent = error.code === "QueueDoesNotExist";
        if (last === null) page.classList.add("unread");
        if (!absent && (error.status !== FAILED || last !== null)) throw error;
        page.classList.add("unread");
        show(page.firstChild, !absent);
        const found = absent ? null : await concerns.update().catch(() => null);
        setCommands(why, absent ? `There is no queue named ${name}.` : error.message);
        show(missing, !found?.concerns.length); // else what needs attention says more
        return found?.place ?? null;
      }
      show(missing, false);
      page.classList.remove("unread");
      show(page.firstChild, true);
      TILES.forEach(([key], index) => {
        const value = last.counts[key];
        setText(values[index], key === "oldest_age" ? duration(value) : number(value));
        values[index].classList.toggle("none", !value);
        show(values[index].parentNode, value || !RARE.has(key));
      });
      const marks = [last.fifo ? "FIFO" : "standard", last.attributes.Profile, last.sources?.length ? "dead letters" : null, last.attributes.RateLimit && `at most ${last.attributes.RateLimit}`].filter(Boolean);
      const state = JSON.stringify([marks, last.attributes.Table, last.died, last.pauses, last.may]);
      if (badges.dataset.marks !== state) {
        badges.dataset.marks = state;
        badges.replaceChildren(...marks.map((mark) => el("span", { class: "badge" }, mark)), ...places(last), ...last.pauses.map((each) => pauseMark(name, each, last.may.SetQueueAttributes && each.group !== null, changed)));
      }
      picture.now(last.counts);
      const letters = last.sources?.length && stored(last.counts) && offered("StartMessageMoveTask", last);
      const first = offered("Resume", last) ? "Resume" : letters ? "StartMessageMoveTask" : "SendMessage";
      for (const [button, action] of actions) {
        show(button, offered(action, last));
        button.classList.toggle("first", action === first);
        button.disabled = action === "PurgeQueue" && !(stored(last.counts) || last.counts.rewindable);
        button.title = button.disabled ? "There is nothing to purge." : "";
      }
      concerns.update().catch(() => {}); // a key may see the queue, and not the list; nothing waits for it
      await reading(part.root, () => part.update(last));
      if (performance.now() - drawnAt > CHART_INTERVAL) await reading(depths, draw);
      showRates(last.rates);
      return last;
    },
  };
}

// Badges of where messages go: into a delivery table, and to a dead-letter queue that has some.
function places({ name, attributes, dead_letter_queue: dead, died }) {
  const [letters, sources] = died ?? [];
  return [
    attributes.Table ? el("span", { class: "badge", title: attributes.Table }, `delivers into ${tail(attributes.Table)}`) : null,
    letters ? el("a", { class: "badge warn", href: diedHash(dead, name) }, `${number(letters)} of its messages ${letters === 1 ? "is" : "are"} in ${dead}`) : null,
    letters === null ? el("a", { class: "badge", href: diedHash(dead, name) }, sharing(dead, sources)) : null,
  ].filter(Boolean);
}

// The end of a long path.
function tail(path) {
  return path.length > 48 ? `…${path.slice(-47)}` : path;
}

// Only what the key allows, and what can have an effect in this queue.
function offered(action, queue) {
  if (action === "Pause" || action === "Resume") {
    return queue.may.SetQueueAttributes && isPaused(queue) === (action === "Resume");
  }
  if (!queue.may[action]) return false;
  if (action === "Rewind") return queue.min_rewind_time !== null;
  if (action === "StartMessageMoveTask") {
    return queue.may.ReceiveMessage && (queue.sources === null || queue.sources.length > 0);
  }
  return true;
}

function isPaused({ pauses }) {
  return pauses.some(({ group }) => group === null);
}

function formatted(key, value) {
  if (INSTANTS.has(key)) return time(new Date(Number(value) * 1000).toISOString());
  if (SECONDS.has(key) && Number(value) >= 60) return [`${number(Number(value))} s `, el("span", { class: "quiet" }, `(${duration(Number(value))})`)];
  if (SECONDS.has(key)) return `${value} s`;
  if (key === "MaximumMessageSize") {
    const unit = [[1_048_576, "MiB"], [1_024, "KiB"]].find(([bytes]) => Number(value) % bytes === 0);
    return [`${number(Number(value))} bytes`, unit && el("span", { class: "quiet" }, ` (${number(Number(value) / unit[0])} ${unit[1]})`)];
  }
  if (value.startsWith("{")) return el("span", { class: "code" }, value);
  return value;
}
