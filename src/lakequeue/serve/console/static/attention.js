// What needs attention: a card above the list of queues, and the marks of queues in the list.

import { redrive } from "./actions.js";
import { lettersHash, queueHash } from "./address.js";
import { get, post, queuePath } from "./api.js";
import { ago, copied, el, setText, show, toast } from "./dom.js";

const INTERVAL = 15_000;
const SHOWN = 5; // items of each kind, until the user asks for all
const KINDS = {
  unreadable: ["Cannot be read", "messages"],
  expiring: ["Deleted for good soon", "messages"],
  full: ["At a limit", "attributes"],
  stuck: ["A handler may hang", "consumers"],
  undecided: ["Undecided deliveries", "messages"],
  "schedule fails": ["Schedules that fail", "#/schedules"],
  "schedule overdue": ["Overdue schedules", "#/schedules"],
  unread: ["Nobody receives", "messages"],
  "dead letters": ["Dead letters", "dead-letters"],
  growing: ["Growing", "messages"],
  paused: ["Paused", "messages"],
};
const MARKS = { unreadable: ["cannot be read", "bad"], expiring: ["deleted soon", "bad"], full: ["at a limit", "bad"], stuck: ["handler may hang", "warn"], undecided: ["undecided", "warn"], unread: ["nobody receives", "warn"], growing: ["growing", "warn"] };

export async function resume(name, group, reload) {
  try {
    await post(queuePath(name, "/resume"), group === null ? {} : { group });
    toast(`${group === null ? name : `Group ${group} of ${name}`} is resumed.`);
    reload();
  } catch (error) {
    toast(error.message, "wrong");
  }
}

// A badge of a pause, with a button that ends it if the key may do that.
export function pauseMark(name, { group, reason, since }, may, reload) {
  const what = group === null ? "paused" : `group ${group} paused`;
  return el(
    "span",
    { class: "badge paused" },
    el("span", { title: reason }, what, since ? [" ", ago(since)] : null, reason === "paused" ? null : `: ${reason}`),
    may ? el("button", { type: "button", class: "small", "aria-label": `Resume ${group === null ? name : `group ${group} of ${name}`}`, click: () => resume(name, group, reload) }, "Resume") : null,
  );
}

// The words of a cure; its commands are code, and the queues of a full disk are links.
function cureOf({ cure, commands = [], queues = [] }) {
  const links = queues.map((name, index) => [`${index ? "," : ":"} ${name} `, [index ? ", " : ": ", el("a", { href: queueHash(name) }, name), " "]]);
  const parts = [];
  let rest = cure;
  for (const [text, shown] of [...commands.map((command) => [command, copied(command)]), ...links]) {
    const at = rest.indexOf(text);
    if (at < 0) continue;
    parts.push(rest.slice(0, at), shown);
    rest = rest.slice(at + text.length);
  }
  return el("span", { class: "quiet" }, " – ", parts, rest);
}

// The dead letters of each error, which lead to them.
function errorsOf({ queue, errors = {} }) {
  const found = Object.entries(errors);
  if (!found.length) return null;
  const links = found.slice(0, SHOWN).map(([error, number], index) => [index ? ", " : "", el("a", { href: lettersHash(queue, error) }, `${number} ${error}`)]);
  return [": ", links, found.length > SHOWN ? ` and ${found.length - SHOWN} more` : ""];
}

// Where a concern is looked into; the message of an unknown process can be made visible in the list of messages.
function place({ kind, queue, commands }, tab) {
  const unknown = kind === "stuck" && !commands.some((command) => command.startsWith("py-spy"));
  if (tab.startsWith("#")) return tab;
  return unknown ? queueHash(queue, "messages", { state: "in_flight" }) : queueHash(queue, tab);
}

// `only`: the queue whose concerns are shown, on its own page, which has the buttons itself.
export function attention(signal, reload, only = null) {
  const items = el("div", { class: "concerns" });
  const fine = el("p", { class: "quiet" });
  const node = el("section", { class: "card attention", "aria-label": "What needs attention" }, el("h2", {}, "Needs attention"), items, fine);
  const opened = new Set();
  let found = { root: [], concerns: [], total: 0 };
  let readAt = -Infinity;
  let drawn = "";

  function again() {
    readAt = -Infinity;
    reload();
  }

  async function openRedrive(queue) {
    try {
      redrive(await get(queuePath(queue), {}, signal), again);
    } catch (error) {
      toast(error.message, "wrong");
    }
  }

  function item(concern, tab) {
    const { text, queue, kind, may } = concern;
    const words = queue === undefined ? text : el("a", { href: place(concern, tab) }, text);
    const act = (label, click) => el("button", { type: "button", class: "small", click }, label);
    const button = !may || only !== null ? null : kind === "paused" ? act("Resume", () => resume(queue, concern.group, again)) : act("Redrive…", () => openRedrive(queue));
    return el("li", {}, words, errorsOf(concern), cureOf(concern), button && [" ", button]);
  }

  function group(kind, list) {
    const [label, tab] = KINDS[kind];
    const some = opened.has(kind) ? list : list.slice(0, SHOWN);
    const more = el("button", { type: "button", class: "small", click: () => (opened.add(kind), draw()) }, `Show all ${list.length}`);
    return el("div", { class: kind.replace(" ", "-") }, el("h3", {}, `${label} (${list.length})`), el("ul", {}, some.map((each) => item(each, tab))), some.length < list.length ? more : null);
  }

  function draw() {
    const state = JSON.stringify([found, [...opened]]);
    if (state === drawn) return; // so that a selection stays
    drawn = state;
    const kinds = Object.keys(KINDS).map((kind) => [kind, found.concerns.filter((each) => each.kind === kind)]);
    const storage = found.root.length ? [el("div", { class: found.full ? "root full" : "root" }, el("h3", {}, found.full ? "The disk is full" : "Storage"), el("ul", {}, found.root.map((each) => item(each))))] : [];
    const queues = kinds.filter(([, list]) => list.length).map(([kind, list]) => group(kind, list));
    items.replaceChildren(...(found.urgent ? [...storage, ...queues] : [...queues, ...storage]));
    const left = found.total - found.concerns.length;
    setText(fine, left > 0 ? `${left} more; lakequeue doctor lists all.` : "");
    show(fine, left > 0);
    show(node, items.childElementCount > 0);
  }

  show(node, false);
  return {
    node,
    marks: (name) => found.concerns.filter((each) => each.queue === name && MARKS[each.kind]).map((each) => MARKS[each.kind]),
    async update() {
      if (performance.now() - readAt < INTERVAL) return;
      readAt = performance.now();
      found = await get("attention", only === null ? {} : { queue: only }, signal);
      draw();
    },
  };
}
