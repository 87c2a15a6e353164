// Dialogs with a form, which say what will happen before it does.

import { el, markField, setText, show, toast } from "./dom.js";

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
    setText(fault, error?.message ?? "");
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
      toast(await go());
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

// A field for the name of a queue, as a second thought; `check` is called as the user types.
export function typedName(check) {
  return el("input", { type: "text", name: "name", autocomplete: "off", autocapitalize: "off", spellcheck: "false", input: check });
}
