// The page of one queue.

import { destinations, purge, redrive, rewind, send } from "./actions.js";
import { get, queuePath } from "./api.js";
import { chart } from "./chart.js";
import { count, duration, el, instant, number, say, show, time } from "./dom.js";
import { queueLink } from "./list.js";
import { messages } from "./messages.js";

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
  ["letters", "Dead letters"],
  ["attributes", "Attributes"],
];
const SPANS = [[3, "3 h"], [24, "24 h"], [168, "7 d"]];
const CHART_EVERY = 60_000;
const SECONDS = new Set(["VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "ReceiveMessageWaitTimeSeconds", "RewindSeconds"]);
const INSTANTS = new Set(["CreatedTimestamp", "LastModifiedTimestamp"]);

export function queue(name, tab, signal, again) {
  const values = TILES.map(() => el("dd"));
  const badges = el("span", { class: "badges" });
  const picture = chart();
  let hours = 3;
  let drawnAt = -Infinity;
  const spans = SPANS.map(([value, label]) =>
    el("button", { type: "button", "aria-pressed": String(value === hours), click: () => span(value) }, label),
  );
  const act = (label, action, open, look = "") =>
    [el("button", { type: "button", class: look, disabled: true, click: () => open(last, again) }, label), action];
  const actions = [
    act("Send…", "SendMessage", send, "first"),
    act("Redrive…", "StartMessageMoveTask", redrive),
    act("Rewind…", "Rewind", rewind),
    act("Purge…", "PurgeQueue", purge, "danger"),
  ];
  const tabs = TABS.map(([key, label]) =>
    el("a", { href: `#/q/${encodeURIComponent(name)}/${key}`, "aria-current": key === tab ? "page" : false }, label),
  );
  const part = { messages: listOf, history: listOf, letters, attributes }[tab]();
  const root = el(
    "section",
    {},
    el("div", { class: "head" }, el("h1", { title: name }, name), badges, el("div", { class: "tools" }, actions.map(([button]) => button))),
    el("dl", { class: "tiles" }, TILES.map(([, label], index) => el("div", {}, el("dt", {}, label), values[index]))),
    el("div", { class: "card" }, el("div", { class: "spans", role: "group", "aria-label": "Hours shown" }, spans), picture.node),
    el("nav", { class: "tabs", "aria-label": "Parts of the queue" }, tabs),
    part.root,
  );
  let last = null;

  function listOf() {
    const found = messages(name, tab, signal, again);
    const intro = el("p", { class: "note", hidden: tab !== "history" });
    return {
      root: el("div", {}, intro, found.root),
      focus: found.focus,
      async update(newest) {
        say(
          intro,
          newest.min_rewind_time === null
            ? "Rewind is off: its RewindSeconds is 0, so deleted messages are gone for good."
            : `${count(newest.counts.rewindable, "deleted message")} can be made visible again by a rewind, as far back as ${instant(newest.min_rewind_time)}.`,
        );
        if (newest.may.ReceiveMessage) await found.update();
        else forbidden(found.root, "ReceiveMessage");
      },
    };
  }

  function letters() {
    const target = el("p");
    const sources = el("ul", { class: "plain" });
    const none = el("p", { class: "quiet" }, "No queue of this region names it as its dead-letter queue.");
    const counted = el("p");
    const ask = el("button", { type: "button", click: preview }, "Count what a redrive would move");
    let known = "";
    async function preview() {
      ask.disabled = true;
      try {
        const found = await get(queuePath(name, "/redrive"), {}, signal);
        say(counted, found.messages ? `A redrive would move ${destinations(found)}.` : "A redrive would move nothing.");
      } catch (error) {
        say(counted, error.message);
      } finally {
        ask.disabled = false;
      }
    }
    return {
      root: el(
        "div",
        { class: "columns" },
        el("div", { class: "card" }, el("h2", {}, "Where its dead letters go"), target),
        el("div", { class: "card" }, el("h2", {}, "Whose dead letters it takes"), sources, none, el("p", { class: "buttons" }, ask), counted),
      ),
      async update(newest) {
        const state = JSON.stringify([newest.dead_letter_queue, newest.max_receive_count, newest.sources]);
        if (state === known) return;
        known = state;
        target.replaceChildren(
          ...(newest.dead_letter_queue === null
            ? ["Nowhere: messages are received as often as it takes."]
            : [
                `A message that was received ${newest.max_receive_count === 1 ? "once" : count(newest.max_receive_count, "time")} goes to `,
                queueLink(newest.dead_letter_queue),
                " at the next receive.",
              ]),
        );
        sources.replaceChildren(...(newest.sources ?? []).map((source) => el("li", {}, queueLink(source))));
        show(none, !newest.sources?.length);
        if (newest.sources === null) say(none, "This key may not do ListDeadLetterSourceQueues here.");
        show(ask, newest.may.StartMessageMoveTask);
      },
    };
  }

  function attributes() {
    const rows = el("tbody");
    const tags = el("tbody");
    const none = el("p", { class: "quiet" });
    let known = "";
    return {
      root: el(
        "div",
        { class: "columns" },
        el("div", { class: "card wide" }, el("h2", {}, "Attributes"), el("table", { class: "pairs" }, rows)),
        el("div", { class: "card" }, el("h2", {}, "Tags"), el("table", { class: "pairs" }, tags), none),
      ),
      async update(newest) {
        const settings = Object.entries(newest.attributes).filter(([key]) => !key.startsWith("ApproximateNumber"));
        const state = JSON.stringify([settings, newest.tags]);
        if (state === known) return; // a selection stays
        known = state;
        const pair = ([key, value]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, told(key, value)));
        rows.replaceChildren(...settings.sort(([a], [b]) => (a < b ? -1 : 1)).map(pair));
        tags.replaceChildren(...Object.entries(newest.tags ?? {}).map(pair));
        say(none, newest.tags === null ? "This key may not do ListQueueTags here." : "There are none.");
        show(none, !tags.childElementCount);
      },
    };
  }

  function span(value) {
    hours = value;
    drawnAt = -Infinity;
    spans.forEach((button, index) => button.setAttribute("aria-pressed", String(SPANS[index][0] === hours)));
    again();
  }

  return {
    root,
    title: name,
    focus: part.focus,
    async update() {
      last = await get(queuePath(name), {}, signal);
      TILES.forEach(([key], index) => {
        const value = last.counts[key];
        say(values[index], key === "oldest_age" ? duration(value) : number(value));
        values[index].classList.toggle("none", !value);
      });
      const marks = [last.fifo ? "FIFO" : "standard", last.attributes.Profile, last.sources?.length ? "dead letters" : null].filter(Boolean);
      if (badges.dataset.marks !== marks.join()) {
        badges.dataset.marks = marks.join();
        badges.replaceChildren(...marks.map((mark) => el("span", { class: "badge" }, mark)));
      }
      for (const [button, action] of actions) {
        const reason = refusal(action, last);
        button.disabled = reason !== "";
        button.title = reason;
      }
      await part.update(last);
      if (performance.now() - drawnAt > CHART_EVERY) {
        picture.update(await get(queuePath(name, "/points"), { hours }, signal));
        drawnAt = performance.now();
      }
      return last;
    },
  };
}

function refusal(action, queue) {
  if (!queue.may[action]) return `This key may not do ${action} here.`;
  if (action === "Rewind" && queue.min_rewind_time === null) return "Rewind is off: RewindSeconds is 0.";
  return "";
}

function forbidden(node, action) {
  node.replaceChildren(el("p", { class: "empty" }, `This key may not do ${action} here.`));
}

function told(key, value) {
  if (INSTANTS.has(key)) return time(new Date(Number(value) * 1000).toISOString());
  if (SECONDS.has(key) && Number(value) >= 60) return [`${number(Number(value))} s `, el("span", { class: "quiet" }, `(${duration(Number(value))})`)];
  if (SECONDS.has(key)) return `${value} s`;
  if (value.startsWith("{")) return el("span", { class: "code" }, value);
  return value;
}
