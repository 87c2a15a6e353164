// What a row of consumers shows: in a queue's tab, and on the page of all queues.

import { heldHash, queueHash } from "./address.js";
import { ago, duration, el, number, sinceText } from "./dom.js";

function processes(each, shown) {
  return each.processes.length ? each.processes.map((one) => el("div", {}, shown(one))) : "–";
}

function handlers({ handlers: running, oldest_handler: oldest, seen_at: seen }) {
  if (!running) return "idle";
  const text = `running for ${duration(Math.round((Date.parse(seen) - Date.parse(oldest)) / 1000))}`;
  return el("span", { title: `Reported ${sinceText(seen)}` }, running === 1 ? text : `${number(running)}, the oldest ${text}`);
}

// Label, class, and the content of a cell.
export const CONSUMER = [
  ["Consumer", "", ({ consumer }) => consumer ?? "without a name"],
  ["Process", "", (each) => processes(each, ({ host, pid }) => `${pid} on ${host}`)],
  ["In flight", "number", (each) => (each.in_flight ? el("a", { href: heldHash(each.queue, each.consumer) }, number(each.in_flight)) : "0")],
  ["Oldest receive", "", (each) => (each.slow ? el("a", { class: "badge warn", href: queueHash(each.queue, "consumers"), title: "Longer than ten times the visibility timeout of the queue." }, ago(each.oldest_receive)) : ago(each.oldest_receive))],
  ["Newest receive", "", (each) => ago(each.newest_receive)],
  ["Handlers", "", (each) => processes(each, handlers)],
  ["Seen", "", (each) => processes(each, (one) => ago(one.seen_at))],
];
export const UNSEEN = "Processes that call receive themselves, and SQS clients, are listed only while they have messages in flight.";
