// Opens the view that the address names, and refreshes it.

import { address } from "./address.js";
import { duration, el, setCommands, setPrefix, setText, show, updateAges } from "./dom.js";
import { DENIED, get } from "./api.js";
import { list } from "./list.js";
import { signedIn, signIn, signOut } from "./login.js";
import { queue, TABS } from "./queue.js";
import { schedules, workers } from "./schedules.js";

const INTERVAL = 2_000;
const FACTOR = 10; // a view that takes 1 s to load is refreshed every 10 s
const OLD = 5; // seconds after which the page says how old it is

const main = document.getElementById("main");
const fault = document.getElementById("fault");
const crumbs = document.getElementById("crumbs");
const about = document.getElementById("about");
const age = document.getElementById("age");
const out = document.getElementById("out");

let current = { leaving: new AbortController(), view: null, found: null, timer: 0, busy: false, stale: false, updatedAt: performance.now() };

const PAGES = { "#/schedules": schedules, "#/workers": workers };

function parseAddress() {
  const [, kind, name, tab] = /^#\/(?:(q)\/([^/]+)(?:\/([^/]*))?)?$/.exec(address().path) ?? [];
  if (kind !== "q") return null;
  try {
    return [decodeURIComponent(name), TABS.some(([known]) => known === tab) ? tab : "messages"];
  } catch {
    return null;
  }
}

function open() {
  const old = current;
  old.leaving.abort();
  clearTimeout(old.timer);
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  const found = parseAddress();
  const shown = (current = { leaving: new AbortController(), view: null, found, timer: 0, busy: false, stale: false, updatedAt: performance.now() });
  const reload = () => refresh(shown);
  const again = old.view !== null && !old.found;
  const page = PAGES[address().path];
  shown.view = page ? page(shown.leaving.signal, reload) : found ? queue(...found, shown.leaving.signal, reload) : list(shown.leaving.signal, reload, again);
  document.title = `${shown.view.title} · lakequeue`;
  crumbs.replaceChildren(...(found ? [el("span", { "aria-current": "page", title: found[0] }, found[0])] : []));
  for (const link of document.querySelectorAll("#pages a")) {
    const here = link.getAttribute("href") === (page ? address().path : "#/");
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  main.replaceChildren(shown.view.root);
  if (old.view) main.focus({ preventScroll: true });
  refresh(shown);
}

function askForKey() {
  current.leaving.abort();
  const form = signIn(() => get("queues", { limit: 1 }), open);
  main.replaceChildren(form.node);
  crumbs.replaceChildren();
  about.replaceChildren();
  document.title = "Sign in · lakequeue";
  show(fault, false);
  show(out, false);
  current.view = null;
  form.focus();
}

// While the server is away, nothing can be done, and what is shown is old.
function setAway(away) {
  document.body.classList.toggle("away", away);
  for (const group of main.querySelectorAll("fieldset")) group.disabled = away;
}

function showAge() {
  const seconds = (performance.now() - current.updatedAt) / 1000;
  show(age, seconds > OLD);
  setText(age, `updated ${seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds)} ago`);
}

async function refresh(shown) {
  if (shown !== current) return;
  clearTimeout(shown.timer);
  if (shown.busy) {
    shown.stale = true;
    return;
  }
  shown.busy = true;
  const started = performance.now();
  try {
    const answer = await shown.view.update();
    if (shown !== current) return;
    show(fault, false);
    show(out, signedIn());
    setAway(false);
    shown.updatedAt = performance.now();
    showAge();
    setPrefix(answer?.command);
    const parts = answer === null ? [] : [answer.root, answer.region, answer.caller === "-" ? null : answer.caller];
    if (answer?.version) parts.push(`lakequeue ${answer.version}`);
    const spans = parts.map((part, index) => part && el("span", index ? {} : { class: "code", title: `Root: ${part}` }, part));
    about.replaceChildren(...spans.filter(Boolean));
  } catch (error) {
    if (shown !== current || shown.leaving.signal.aborted) return;
    if (error.status === 401) return askForKey();
    const denied = error.status === DENIED; // the server is there, and this page shows who is signed in
    if (denied) about.replaceChildren(error.caller ?? "");
    show(out, signedIn());
    setCommands(fault, error.message);
    show(fault, !error.said);
    setAway(!denied);
  } finally {
    shown.busy = false;
  }
  const pause = shown.stale ? 0 : Math.max(INTERVAL, (performance.now() - started) * FACTOR);
  shown.stale = false;
  shown.timer = setTimeout(() => (document.hidden ? null : refresh(shown)), pause);
}

addEventListener("hashchange", open);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh(current);
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    current.view?.focus?.focus();
  }
});
out.addEventListener("click", signOut);
setInterval(() => (showAge(), updateAges()), 1_000);
open();
