// Requests to the console API. Every failure is an Error with a message of one line; a refusal also has the code, the
// field that it is about where that is known, and the key's name where the key may not do it.

import { authorization } from "./login.js";

const TIMEOUT = 120_000;
export const DENIED = 403; // status of what the key may not do
export const FAILED = 503; // status of a failure of the storage, such as damage

export function get(path, parameters = {}, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  return ask(`api/${path}${query.size ? `?${query}` : ""}`, { signal });
}

export function post(path, members, signal) {
  return ask(`api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(members),
    signal,
  });
}

export function queuePath(name, rest = "") {
  return `queues/${encodeURIComponent(name)}${rest}`;
}

async function ask(url, { signal, headers, ...options }) {
  const limits = [AbortSignal.timeout(TIMEOUT), ...(signal ? [signal] : [])];
  let response, answer;
  try {
    const all = { ...headers, ...authorization(), "X-Lakequeue-Console": "1" };
    response = await fetch(url, { ...options, headers: all, credentials: "omit", signal: AbortSignal.any(limits), redirect: "error" });
    answer = await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error(
      response ? `The server answered ${response.status} without a reason.` : "The server does not answer.",
    );
  }
  if (response.ok) return answer;
  const error = new Error(answer.message ?? `The server answered ${response.status}.`);
  throw Object.assign(error, { status: response.status, code: answer.code, field: answer.field, caller: answer.caller });
}
