// Creating, changing and deleting queues.

import { queueHash } from "./address.js";
import { get, post, queuePath } from "./api.js";
import { ask, askForName, field, lostHistory } from "./dialog.js";
import { count, el, number, show } from "./dom.js";

const NUMBERS = [
  ["VisibilityTimeout", "Visibility timeout", "seconds, or 5m, 1h30m"],
  ["MessageRetentionPeriod", "Retention period", "seconds, or 12h, 4d"],
  ["DelaySeconds", "Delay", "seconds, or 5m"],
  ["ReceiveMessageWaitTimeSeconds", "Wait of receives", "seconds"],
  ["RewindSeconds", "Rewind range", "seconds, or 1d; 0: off"],
  ["MaximumMessageSize", "Largest message", "bytes, or 64KiB"],
];
// Of queues that are created, or changed; `fixed` ones are chosen at creation.
const MORE = [
  { name: "Shards", label: "Shards", unit: "parts that work independently" },
  { name: "Priorities", label: "Priorities", unit: "1 to 10; only at creation", fixed: true },
  { name: "RateLimit", label: "Rate limit", unit: "such as 50/s; empty: none" },
  { name: "DeduplicationInterval", label: "Unique within", unit: "5m, 24h; standard queues", standard: true },
];
const DURATIONS = { ms: 0.001, s: 1, m: 60, min: 60, h: 3_600, d: 86_400, w: 604_800 };
const SIZES = { kb: 1_000, kib: 1_024, k: 1_024, mb: 1_000_000, mib: 1_048_576, m: 1_048_576 };
const PROFILES = [
  ["lake", "lake: SQS without most limits"],
  ["sqs", "sqs: as SQS today"],
  ["sqs-2018", "sqs-2018: as SQS in 2018"],
  ["cmq", "cmq: as Tencent CMQ"],
];

function text(name, properties = {}) {
  return el("input", { type: "text", name, autocomplete: "off", autocapitalize: "off", spellcheck: "false", ...properties });
}

// A duration in seconds, or a size in bytes, as people write them; what is neither is the server's to refuse.
function plain(name, value) {
  const text = value.toLowerCase().replace(/\s/g, "");
  if (name === "MaximumMessageSize") {
    const [, size, unit] = /^([\d.]+)([km]i?b?)$/.exec(text) ?? [];
    return unit ? String(size * SIZES[unit]) : value;
  }
  if (!/^(\d+(\.\d+)?(ms|min|[smhdw]))+$/.test(text)) return value;
  const parts = [...text.matchAll(/([\d.]+)([a-z]+)/g)].map(([, size, unit]) => size * DURATIONS[unit]);
  return String(Number(parts.reduce((sum, part) => sum + part, 0).toFixed(6)));
}

// A duration as people write it, where that loses nothing: 4d for 345600, 1h30m for 5400.
function written(name, value) {
  if (value === undefined || name === "MaximumMessageSize" || !/^[1-9]\d*$/.test(value)) return value ?? "";
  let left = Number(value);
  const parts = [["d", 86_400], ["h", 3_600], ["m", 60], ["s", 1]].map(([unit, size]) => {
    const many = Math.floor(left / size);
    left %= size;
    return many ? `${many}${unit}` : "";
  });
  return parts.join("");
}

// The fields of both forms; `changes` gives the attributes that differ from those given. FIFO queues have no tenants.
function attributeFields(given, policy, fifo, made) {
  const others = MORE.filter((each) => !(made && each.fixed) && !(fifo && each.standard));
  const more = others.map(({ name }) => text(name, { placeholder: "default", value: given[name] ?? "" }));
  const inputs = NUMBERS.map(([name]) => text(name, { inputmode: "numeric", placeholder: "default", value: written(name, given[name]) }));
  const target = text("RedrivePolicy", { placeholder: "none", value: policy?.queue ?? "", list: "known-queues" });
  const known = el("datalist", { id: "known-queues" });
  const suggest = async () => {
    const { queues } = await get("queues", { text: target.value.trim() });
    known.replaceChildren(...queues.map((queue) => el("option", { value: queue.name })));
  };
  target.addEventListener("focus", () => suggest().catch(() => null)); // the field takes any name without it
  const receives = el("input", { type: "number", min: "1", max: "1000", value: policy?.receives ?? 5, "aria-label": "Receives before a message goes there" });
  const fair = el("select", { name: "FairGroups" }, [["", "default"], ["true", "fair between groups"], ["false", "oldest first"]].map(([value, label]) => el("option", { value, selected: value === (given.FairGroups ?? "") }, label)));
  const limit = text("GroupInFlightLimit", { inputmode: "numeric", placeholder: "no limit", value: given.GroupInFlightLimit ?? "" });
  const tenants = el("div", { class: "pair", hidden: fifo }, field("Receives", fair), field("In flight of each group", limit, "messages; empty: no limit"));
  return {
    tenants,
    nodes: [
      el("div", { class: "pair" }, NUMBERS.map(([, label, unit], index) => field(label, inputs[index], unit))),
      el("div", { class: "pair" }, field("Dead-letter queue", target, "choose a queue, or type its name"), known, field("Receives before that", receives)),
      tenants,
      el("details", {}, el("summary", {}, "Shards, priorities, rates, unique sends"), el("div", { class: "pair" }, others.map(({ label, unit }, index) => field(label, more[index], unit)))),
    ],
    changes() {
      const found = {};
      NUMBERS.forEach(([name], index) => {
        const value = plain(name, inputs[index].value.trim());
        if (value !== "" && value !== given[name]) found[name] = value;
      });
      others.forEach(({ name }, index) => {
        const value = plain(name, more[index].value.trim());
        if (value !== (given[name] ?? "") && (value || name === "RateLimit")) found[name] = value;
      });
      if (!tenants.hidden) {
        if (fair.value !== (given.FairGroups ?? "") && fair.value) found.FairGroups = fair.value;
        const most = limit.value.trim();
        if (most !== (given.GroupInFlightLimit ?? "")) found.GroupInFlightLimit = most || "unlimited";
      }
      const queue = target.value.trim();
      const same = queue === (policy?.queue ?? "") && (!queue || Number(receives.value) === policy?.receives);
      if (!same) found.RedrivePolicy = queue && JSON.stringify({ deadLetterTargetArn: queue, maxReceiveCount: Number(receives.value) });
      return found;
    },
  };
}

export function createQueue() {
  const name = text("QueueName", { required: true, input: suit });
  const fifo = el("input", { type: "checkbox", name: "FifoQueue", change: suffix });
  const byContent = el("input", { type: "checkbox", name: "ContentBasedDeduplication" });
  const dedup = el("label", { class: "check", hidden: true }, byContent, el("span", {}, "Deduplicate by the content of messages"));
  const profile = el("select", { name: "Profile" }, PROFILES.map(([value, label]) => el("option", { value }, label)));
  const attributes = attributeFields({}, null, false, false);

  function suit() {
    fifo.checked = name.value.endsWith(".fifo");
    ofKind();
  }
  function suffix() {
    const bare = name.value.replace(/\.fifo$/, "");
    name.value = fifo.checked ? `${bare}.fifo` : bare;
    ofKind();
  }
  function ofKind() {
    show(dedup, fifo.checked);
    show(attributes.tenants, !fifo.checked);
  }

  ask({
    title: "Create a queue",
    parts: [
      el("div", { class: "pair" }, field("Name", name), field("Profile", profile, "it cannot be changed later")),
      el("label", { class: "check" }, fifo, el("span", {}, "FIFO: messages of a group keep their order")),
      dedup,
      attributes.nodes,
    ],
    button: "Create",
    go: async () => {
      const Attributes = { Profile: profile.value, ...attributes.changes() };
      if (fifo.checked) Object.assign(Attributes, { FifoQueue: "true", ContentBasedDeduplication: String(byContent.checked) });
      const made = await post("queues", { QueueName: name.value, Attributes });
      location.hash = queueHash(made.name);
      return `${made.name} is created.`;
    },
  });
  name.focus();
}

// Proposes to keep messages twice as long, at most for 14 days where the profile has such a limit.
export function keepLonger(queue, reload) {
  const most = queue.attributes.Profile === "lake" ? Infinity : 14 * 86_400;
  const seconds = Math.min(2 * Number(queue.attributes.MessageRetentionPeriod), most);
  const input = changeQueue(queue, reload).dialog.querySelector("[name=MessageRetentionPeriod]");
  input.value = written(input.name, String(seconds));
  input.select();
}

export function changeQueue(queue, reload) {
  const policy = queue.dead_letter_queue === null ? null : { queue: queue.dead_letter_queue, receives: queue.max_receive_count };
  const attributes = attributeFields(queue.attributes, policy, queue.fifo, true);
  return ask({
    title: `Change ${queue.name}`,
    parts: attributes.nodes,
    button: "Change",
    go: async () => {
      const Attributes = attributes.changes();
      const changed = Object.keys(Attributes).length;
      if (changed) await post(queuePath(queue.name, "/attributes"), { Attributes });
      return changed ? `${count(changed, "attribute")} of ${queue.name} changed.` : "Nothing was to be changed.";
    },
    reload,
  });
}

// Tags as lines of KEY=VALUE; what has no line any more is removed.
export function changeTags(queue, reload) {
  const given = Object.entries(queue.tags);
  const lines = el("textarea", { name: "Tags", rows: "7", class: "code", spellcheck: "false" });
  lines.value = given.map(([key, value]) => `${key}=${value}`).join("\n");
  ask({
    title: `Change the tags of ${queue.name}`,
    parts: [field("Tags", lines, "a line for each: KEY=VALUE")],
    button: "Change",
    go: async () => {
      const wanted = new Map(lines.value.split("\n").filter((line) => line.trim()).map((line) => line.split(/=(.*)/s)).map(([key, value = ""]) => [key, value]));
      const Tags = Object.fromEntries([...wanted].filter(([key, value]) => queue.tags[key] !== value));
      const TagKeys = given.map(([key]) => key).filter((key) => !wanted.has(key));
      const set = Object.keys(Tags).length;
      if (set) await post(queuePath(queue.name, "/tags"), { Tags });
      if (TagKeys.length) await post(queuePath(queue.name, "/untag"), { TagKeys });
      return `${count(set, "tag")} of ${queue.name} set, ${number(TagKeys.length)} removed.`;
    },
    reload,
  });
  lines.focus();
}

export function deleteQueue({ name }) {
  askForName({
    name,
    title: `Delete the queue ${name}?`,
    button: () => "Delete queue",
    tell: ({ counts, sources }) => ` of ${name} will be gone for good, with its attributes, tags and history.${lostHistory(counts)}${sources?.length ? ` It is the dead-letter queue of ${sources.join(", ")}.` : ""}`,
    go: async (typed) => {
      await post(queuePath(name, "/delete"), { name: typed });
      location.hash = "#/";
      return `${name} is deleted.`;
    },
  });
}
