// Dialogs with a form, which say what will happen before it does.

import { get, queuePath } from "./api.js";
import { count, el, markField, setCommands, setText, show, stored, toast } from "./dom.js";

// Opens a dialog with a form. `go` does the work and returns a message; the dialog shows its error.
export function ask({ title, parts, button, style = "first", go, reload }) {
  const fault = el("p", { class: "trouble", role: "alert", hidden: true });
  const confirm = el("button", { type: "submit", class: style }, button);
  const cancel = el("button", { type: "button", click: () => dialog.close() }, "Cancel");
  const form = el("form", { method: "dialog", submit }, el("h2", { id: "asked" }, title), parts, fault, el("p", { class: "buttons" }, confirm, cancel));
  const dialog = el("dialog", { "aria-labelledby": "asked", close: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();

  function showError(error) {
    setCommands(fault, error?.message ?? "");
    show(fault, Boolean(error));
    markField(form, error);
    if (error?.field) form.elements[error.field]?.focus?.();
  }

  async function submit(event) {
    event.preventDefault();
    if (confirm.disabled) return;
    confirm.disabled = true;
    showError(null);
    try {
      toast(await go(), "done", button.split(" ")[0]);
      dialog.close();
      reload?.();
    } catch (error) {
      confirm.disabled = false;
      showError(error);
    }
  }

  return { dialog, confirm, showError };
}

export function field(label, input, hint) {
  return el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
}

// What goes beside the messages that are stored.
export function lostHistory({ rewindable }) {
  return rewindable ? ` A rewind can no longer bring back the ${count(rewindable, "deleted message")}, either.` : "";
}

// Opens a dialog that counts the messages of a queue, and goes on only once its name is typed. `tell` says what happens
// to them.
export async function askForName({ name, button, tell, go, ...more }) {
  const typed = el("input", { type: "text", name: "name", autocomplete: "off", autocapitalize: "off", spellcheck: "false", input: check });
  const what = el("p", { class: "what" }, "Counting…");
  const parts = [what, field("Type the name of the queue to continue", typed)];
  const { dialog, confirm, showError } = ask({ ...more, parts, button: button(null), style: "danger", go: () => go(typed.value) });
  let counted = false;
  confirm.disabled = true;
  typed.focus();

  function check() {
    confirm.disabled = !counted || typed.value !== name;
  }

  try {
    const queue = await get(queuePath(name));
    const all = count(stored(queue.counts), "message");
    what.replaceChildren(el("strong", {}, all), tell(queue));
    setText(confirm, button(all));
    counted = true;
    check();
  } catch (error) {
    if (dialog.open) showError(error);
  }
}
