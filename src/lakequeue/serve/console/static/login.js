// Signing in with a key, and out. The browser forgets the key with its tab.

import { el, setText, show } from "./dom.js";

const STORED = "lakequeue-key";

export function authorization() {
  const stored = sessionStorage.getItem(STORED);
  return stored === null ? {} : { Authorization: `Basic ${stored}` };
}

function keep(id, secret) {
  const bytes = new TextEncoder().encode(`${id}:${secret}`);
  sessionStorage.setItem(STORED, btoa(String.fromCharCode(...bytes)));
}

export function signOut() {
  sessionStorage.removeItem(STORED);
  location.reload();
}

// A form for a key; `attempt` makes a request with it, and fails with the status 401 if the server does not know it.
export function signIn(attempt, done) {
  const id = el("input", { type: "text", name: "id", required: true, autocomplete: "username", autocapitalize: "off", spellcheck: "false" });
  const secret = el("input", { type: "password", name: "secret", required: true, autocomplete: "current-password" });
  const fault = el("p", { class: "trouble", role: "alert", hidden: true });
  const button = el("button", { type: "submit", class: "first" }, "Sign in");
  const labelled = (label, input) => el("label", { class: "field" }, el("span", {}, label), input);
  const form = el("form", { class: "card signing", submit }, el("h1", {}, "Sign in"), el("p", { class: "quiet" }, "This server has keys. Give one that may do what you want to see."), labelled("Access key id", id), labelled("Secret", secret), fault, el("p", { class: "buttons" }, button));

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    keep(id.value, secret.value);
    try {
      await attempt();
    } catch (error) {
      if (error.status === 401 || error.status === 429 || error.status === undefined) {
        sessionStorage.removeItem(STORED);
        setText(fault, error.status === 401 ? "The server does not know this key." : error.message);
        show(fault, true);
        button.disabled = false;
        return;
      }
    }
    done();
  }

  return { node: form, focus: () => id.focus() };
}

export function signedIn() {
  return sessionStorage.getItem(STORED) !== null;
}
