// What a view shows, in the address: a reload, the back button and a link that is sent show the same.

function query(given) {
  const text = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
  return text && `?${text}`;
}

export function queueHash(name, tab = "", given = {}) {
  return `#/q/${encodeURIComponent(name)}${tab && `/${tab}`}${query(given)}`;
}

// The filters for the messages that a consumer (null: without a name) has in flight.
export function heldBy(consumer) {
  return { state: "in_flight", where: consumer === null ? "consumer IS NULL" : `consumer = '${consumer.replaceAll("'", "''")}'` };
}

export function heldHash(name, consumer) {
  return queueHash(name, "messages", heldBy(consumer));
}

// The messages of a dead-letter queue that failed with an error (null: with none), of all its sources or of one.
export function lettersHash(name, error, source) {
  const quoted = (value) => `'${value.replaceAll("'", "''")}'`;
  const reason = error === null ? "dead_letter_reason IS NULL" : `dead_letter_reason->>'$.error' = ${quoted(error)}`;
  return queueHash(name, "messages", { where: source === undefined ? reason : `${reason} AND source_queue = ${quoted(source ?? "")}` });
}

// The dead letters of a source queue in a dead-letter queue.
export function diedHash(name, source) {
  return queueHash(name, "messages", { where: `source_queue = '${source.replaceAll("'", "''")}'` });
}

// The address without its parameters, and those parameters that the view knows.
export function address(known = []) {
  const [path, text = ""] = location.hash.split(/\?(.*)/s);
  return { path, given: Object.fromEntries([...new URLSearchParams(text)].filter(([name]) => known.includes(name))) };
}

// How many pages of a list lie before this one in the history of the browser.
export function pagesBefore() {
  return history.state?.pages ?? 0;
}

// Shows parameters in the address; with `pages` as a step of its own, which the back button takes back.
export function showAddress(given, pages) {
  const hash = `${address().path || "#/"}${query(given)}`;
  if (hash === (location.hash || "#/")) return;
  if (pages === undefined) history.replaceState(history.state, "", hash);
  else history.pushState({ pages }, "", hash);
}
