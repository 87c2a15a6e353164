// What needs attention: a card above the list of queues, and the marks of queues in the list.

import { freeHeld, KILLED, pause, redrive } from "./actions.js";
import { keepLonger } from "./queues.js";
import { lettersHash, queueHash } from "./address.js";
import { get, post, queuePath } from "./api.js";
import { runs } from "./consumers.js";
import { ago, copied, count, el, number, Rows, setCommands, setText, show, size, toast } from "./dom.js";

const INTERVAL = 15_000;
const SHOWN = 8; // queues, until the user asks for all
const ERRORS = 5;
// How bad each kind is, the part of the queue's page where it is looked into, and its runbook.
const KINDS = {
  unreadable: ["bad", "messages", "damage"],
  expiring: ["bad", "messages", "alerts#lakequeuemessagesexpire"],
  full: ["bad", "attributes", "troubleshooting#errors-of-calls"],
  outage: ["warn", "consumers", "alerts#lakequeueconsumeroutage"],
  stuck: ["warn", "consumers", "alerts#lakequeuehandlerstuck"],
  abandoned: ["warn", "messages", "alerts#lakequeuehandlerstuck"],
  silent: ["warn", "consumers", "alerts#lakequeueconsumerdown"],
  undecided: ["warn", "messages", "alerts#lakequeueundecided"],
  "schedule fails": ["warn", "#/schedules", "alerts#lakequeueschedulefails"],
  "schedule overdue": ["warn", "#/schedules", "alerts#lakequeueschedulefails"],
  unread: ["warn", "messages", "alerts#lakequeuenobodyreceives"],
  poison: ["warn", "messages", "troubleshooting#poison-message-delivered-again-and-again"],
  "dead letters": ["warn", "dead-letters", "alerts#lakequeuedeadletters"],
  growing: ["warn", "messages", "alerts#lakequeueconsumerlag"],
  paused: ["warn", "messages", "alerts#lakequeuepausedlong"],
  waiting: ["warn", "messages", "alerts#lakequeuenobodyreceives"],
};
const MARKS = { expiring: ["deleted soon", "bad"], full: ["at a limit", "bad"], outage: ["outage of a consumer", "warn"], stuck: ["handler may hang", "warn"], abandoned: ["a killed consumer holds messages", "warn"], silent: ["a consumer does not report", "warn"], undecided: ["undecided", "warn"], unread: ["nobody receives", "warn"], growing: ["growing", "warn"] };

export async function resume(name, group, reload) {
  try {
    await post(queuePath(name, "/resume"), group === null ? {} : { group });
    reload();
    toast(group === null ? await resumed(name) : `Group ${group} of ${name} is resumed.`, "done", "Pause");
  } catch (error) {
    toast(error.message, "wrong");
  }
}

// What is to be received now, and if nobody does.
async function resumed(name) {
  const [{ counts }, { consumers }] = await Promise.all([get(queuePath(name)), get(queuePath(name, "/consumers"))]).catch(() => [{}, {}]);
  if (!counts?.visible) return `${name} is resumed.`;
  const idle = consumers.some(runs) ? "" : ", and no consumer of it is known to run: start one";
  return `${name} is resumed: ${count(counts.visible, "message")} can be received${idle}.`;
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

// What helps: words, the largest queues of a full disk as links, and each command on a line with what it does.
function cureOf({ hint, steps = [], largest = {} }, runbook) {
  const sizes = Object.entries(largest).map(([name, bytes], index) => [index ? ", " : " The largest queues: ", el("a", { href: queueHash(name) }, name), ` ${size(bytes)}`]);
  const lines = steps.map(({ command, effect }) => el("li", {}, copied(command), el("span", { class: "quiet" }, " ", effect)));
  const link = [" · ", el("a", { href: `runbooks/${runbook}` }, "Runbook")];
  return [el("span", { class: "quiet" }, hint ? (hint.endsWith(".") ? ` ${hint}` : `; ${hint}`) : "", sizes), link, lines.length ? el("ul", { class: "steps" }, lines) : null];
}

// The dead letters of each error, which lead to them.
function errorsOf({ queue, errors = {}, examples = {} }) {
  const found = Object.entries(errors);
  if (!found.length) return null;
  const example = (error) => examples[error] && [": ", el("span", { class: "quiet example" }, examples[error])];
  const links = found.slice(0, ERRORS).map(([error, number], index) => [index ? ", " : "", el("a", { href: lettersHash(queue, error || null) }, `${number} ${error ? error : `without an error: ${KILLED}`}`), example(error)]);
  return [" (", links, found.length > ERRORS ? ` and ${found.length - ERRORS} more` : "", ")"];
}

// Where a concern is looked into; the message of an unknown process can be made visible in the list of messages.
function place(concern) {
  const tab = KINDS[concern.kind][1];
  if (tab.startsWith("#")) return tab;
  return concern.kind === "abandoned" || (concern.kind === "stuck" && !hasProcess(concern)) ? inFlight(concern.queue) : queueHash(concern.queue, tab);
}

function hasProcess({ steps }) {
  return steps.some(({ command }) => command.startsWith("kill "));
}

function inFlight(queue) {
  return queueHash(queue, "messages", { state: "in_flight" });
}

// `only`: the queue whose concerns are shown, on its own page, which has most of the buttons itself.
export function attention(signal, reload, only = null) {
  const items = el("div", { class: "concerns" });
  const fine = el("p", { class: "quiet" });
  const heading = el("h2", {}, "Needs attention");
  const node = el("section", { class: "card attention", "aria-label": "What needs attention" }, heading, items, fine);
  const folded = new Map(); // the queues whose commands the user has shown or hidden
  const wide = only !== null && matchMedia("(min-width: 641px)").matches;
  let all = false;
  let found = { root: [], concerns: [], total: 0 };
  let readAt = -Infinity;
  // What stays the same stays in its place, with its focus and selections; a line that changes is made anew.
  const parts = new Rows(items, ({ key }) => key, ({ tag, properties, make }) => {
    const part = el(tag, properties);
    const rows = new Rows(part, (item) => JSON.stringify(item), (item) => ({ nodes: [make(item)], update() {} }));
    return { nodes: [part], update: ({ list }) => rows.show(list) };
  });

  function again() {
    readAt = -Infinity;
    reload();
  }

  async function open(queue, dialog) {
    try {
      await dialog(await get(queuePath(queue), {}, signal));
    } catch (error) {
      toast(error.message, "wrong");
    }
  }

  // The buttons of a queue's concerns, each once.
  function buttons(queue, list) {
    const made = new Map();
    for (const { may = [], group, consumer, kind, hint, steps = [] } of list) {
      for (const action of only === null ? may : may.filter((each) => ["keep", "free", "pause"].includes(each))) {
        const of = group === null || group === undefined ? "" : ` ${group}`;
        const source = steps[0]?.command.split(" ")[2]; // whose messages become dead letters now
        const [label, click] = {
          pause: [`Pause ${source}…`, () => open(source, (known) => pause(known, again))],
          resume: [`Resume${of}`, () => resume(queue, group, again)],
          redrive: ["Redrive…", () => open(queue, (known) => redrive(known, again))],
          free: ["Free its messages…", () => open(queue, (known) => freeHeld(known, consumer, again, kind === "abandoned" ? hint : null))],
          keep: ["Keep longer…", () => open(queue, (known) => keepLonger(known, again))],
        }[action];
        made.set(`${label} ${consumer}`, el("button", { type: "button", class: "small", click }, label));
      }
    }
    return [...made.values()].flatMap((button) => [" ", button]);
  }

  // One line for a queue: what is wrong, the worst first, and what ends it; the commands are below.
  function line([queue, list]) {
    const causes = list.map((concern, index) => [index ? ", " : "", el("a", { class: KINDS[concern.kind][0], href: place(concern), title: concern.text }, concern.brief, concern.since ? [" ", ago(concern.since)] : null, concern.reason), errorsOf(concern)]);
    const held = list.some((each) => each.kind === "stuck" && hasProcess(each)) ? [" · ", el("a", { href: inFlight(queue) }, "its messages")] : null;
    const unread = only === null && list.some(({ kind }) => kind === "unread" || kind === "waiting") ? [" · ", el("a", { href: "#/workers" }, "Workers"), " · ", el("a", { href: `runbooks/${KINDS.unread[2]}` }, "what to do")] : null;
    const whole = list.map((concern) => el("li", {}, concern.text, cureOf(concern, KINDS[concern.kind][2])));
    const unfolded = wide && list.some(({ may = [] }) => !may.length); // the buttons of the page do as much
    const help = el("details", { open: folded.get(queue) ?? unfolded }, el("summary", { click: () => folded.set(queue, !help.open) }, "Commands"), el("ul", {}, whole));
    const of = list.every(({ kind }) => kind.startsWith("schedule")) ? ["Schedules", "#/schedules"] : [queue, queueHash(queue)]; // its queue may be gone
    return el("li", {}, el("p", {}, only === null ? [el("a", { class: "named-queue", href: of[1] }, of[0]), ": "] : null, causes, held, unread, buttons(queue, list)), help);
  }

  function ofRoot([disk, degree, list]) {
    return el("div", { class: `root ${degree}` }, el("h3", {}, disk), el("ul", {}, list.map((each) => el("li", {}, each.text, each.details?.map((detail) => ` ${detail}`), cureOf(each, each.runbook)))));
  }

  function more(queues) {
    return el("button", { type: "button", class: "small", click: () => ((all = true), draw()) }, `Show all ${queues} queues`);
  }

  function draw() {
    const queues = new Map();
    for (const each of found.concerns) queues.set(each.queue, [...(queues.get(each.queue) ?? []), each]);
    const bad = found.concerns.filter((each) => KINDS[each.kind][0] === "bad").length + (found.root.length ? [found.failing, found.low].filter(Boolean).length : 0);
    const notices = found.concerns.filter((each) => each.notice).length;
    const others = found.total + found.root.length - bad - notices;
    const counted = [bad && `${number(bad)} urgent`, others && count(others, "warning"), notices && count(notices, "notice")].filter(Boolean).join(", ");
    setText(heading, counted ? `Needs attention: ${counted}` : "Nothing needs attention");
    const disk = found.failing ? "The root cannot be read" : found.full ? "The disk is full" : found.low ? "The disk is nearly full" : "Storage";
    const degree = found.failing || found.full ? "full" : found.low ? "low" : "";
    const storage = { key: "storage", tag: "div", make: ofRoot, list: found.root.length ? [[disk, degree, found.root]] : [] };
    const some = all ? [...queues] : [...queues].slice(0, SHOWN);
    const quiet = ([, list]) => list.every((each) => each.notice);
    const lines = (key, list) => ({ key, tag: "ul", properties: { class: "lines" }, make: line, list });
    const [warned, noted] = [lines("warned", some.filter((each) => !quiet(each))), lines("noted", some.filter(quiet))];
    const left = { key: "left", tag: "p", make: more, list: some.length < queues.size ? [queues.size] : [] };
    const shown = found.urgent ? [storage, warned, noted, left] : [warned, storage, noted, left];
    parts.show(shown.filter(({ list }) => list.length));
    const unlisted = found.total - found.concerns.length;
    const unseen = only === null && !counted ? "Damage of files shows once a call meets it: `lakequeue check` reads all files." : "";
    setCommands(fine, unlisted > 0 ? `${unlisted} more: \`lakequeue doctor\` lists all.` : unseen);
    show(fine, fine.childElementCount > 0);
    node.classList.toggle("calm", !counted);
    show(node, only === null || items.childElementCount > 0);
  }

  show(node, false);
  return {
    node,
    forget: () => (readAt = -Infinity),
    isDamaged: (name) => found.concerns.some((each) => each.queue === name && each.kind === "unreadable"),
    marks: (name) => found.concerns.filter((each) => each.queue === name).map((each) => (each.kind === "unreadable" ? [each.brief, "bad"] : MARKS[each.kind])).filter(Boolean),
    async update() {
      if (performance.now() - readAt < INTERVAL) return found;
      const turn = (readAt = performance.now());
      const newest = await get("attention", only === null ? {} : { queue: only }, signal);
      if (turn !== readAt) return found; // something was changed meanwhile
      found = newest;
      if (!items.matches(":active")) draw(); // else a button that is pressed would be gone before its click
      return found;
    },
  };
}
