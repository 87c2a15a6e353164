// What a row of consumers shows: in a queue's tab, and on the page of all queues.

import { heldHash, queueHash } from "./address.js";
import { ago, clockTime, duration, el, instant, number, sinceText } from "./dom.js";

// Processes that run, then those that no longer report and did not end.
function known(each, shown, gone) {
  const lines = [...each.processes.map((one) => el("div", {}, shown(one))), ...each.silent.map((one) => el("div", { class: "quiet" }, gone(one)))];
  return lines.length ? lines : "–";
}

// Of a consumer whose processes were all killed, messages may be in flight still.
export function runs({ in_flight: held, processes, silent }) {
  return processes.length > 0 || (held > 0 && !(silent.length && silent.every(({ ended }) => ended)));
}

function place({ host, pid }) {
  return `${pid} on ${host}`;
}

function notSeen({ seen_at: seen, ended, stopped }) {
  if (stopped) return el("span", { class: "badge warn", title: "A signal stopped its process. kill -CONT lets it go on." }, "stopped, seen ", ago(seen));
  const why = ended ? "Its process ended without ending its run: it was killed." : "It did not end: it was killed, is stopped or frozen, or cannot write to the root.";
  return el("span", { class: "badge warn", title: `${why} Last seen ${sinceText(seen)}.` }, `${ended ? "killed, last seen" : "not seen since"} ${clockTime(seen, instant(seen).slice(0, 10) !== instant(Date.now()).slice(0, 10))}`);
}

function handlers({ handlers: running, oldest_handler: oldest, seen_at: seen, outage_since: outage, outage_reason: reason, failing_table: table }) {
  if (outage) return el("span", { class: "badge warn", title: `${table ? `The delivery table ${table}` : "Storage"} failed when it was last seen. ${reason ?? "Its log says why."}` }, `outage since ${clockTime(outage, instant(outage).slice(0, 10) !== instant(Date.now()).slice(0, 10))}`);
  if (!running) return "idle";
  const lasted = duration((Date.parse(seen) - Date.parse(oldest)) / 1000);
  return `${number(running)}${running === 1 ? "" : ", the oldest"} for ${lasted} when seen`;
}

// Label, class, and the content of a cell.
export const CONSUMER = [
  ["Consumer", "", ({ consumer }) => consumer ?? "without a name"],
  ["Process", "", (each) => known(each, place, place)],
  ["In flight", "number", (each) => (each.in_flight ? el("a", { href: heldHash(each.queue, each.consumer) }, number(each.in_flight)) : "0")],
  ["Oldest receive", "", (each) => (each.slow ? el("a", { class: "badge warn", href: queueHash(each.queue, "consumers"), title: "Longer than ten times the visibility timeout of the queue." }, ago(each.oldest_receive)) : ago(each.oldest_receive))],
  ["Newest receive", "", (each) => ago(each.newest_receive)],
  ["Handlers", "", (each) => known(each, handlers, () => "–")],
  ["Seen", "", (each) => known(each, (one) => ago(one.seen_at), notSeen)],
];
export const UNSEEN = "Processes that call receive themselves, and SQS clients, are listed only while they have messages in flight.";
