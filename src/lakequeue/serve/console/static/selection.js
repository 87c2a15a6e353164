// The messages that the user has chosen in a list, and what can be done with them.

import { deleteMessages, makeVisible, redriveMessages, resend } from "./actions.js";
import { get, queuePath } from "./api.js";
import { copy, count, el, setText, show, toast } from "./dom.js";

export function selection(name, listName, signal, reload) {
  const picked = new Set();
  const boxes = new Map();
  let queue = null;
  let shown = [];
  const all = el("input", { type: "checkbox", "aria-label": "Choose all messages shown", disabled: true, change: pickAll });
  const summary = el("span", { class: "count" });
  const act = (label, open, style = "") => el("button", { type: "button", class: `small ${style}`, click: () => open(queue, chosen(), done) }, label);
  const redrive = act("Redrive…", redriveMessages);
  const edit = act("Edit and resend…", resend);
  const visible = act("Make visible…", makeVisible);
  const remove = act("Delete…", deleteMessages, "danger");
  const bodies = el("button", { type: "button", class: "small", click: () => copied(body, "Body") }, "Copy body");
  const asJson = el("button", { type: "button", class: "small", click: () => copied(json, "JSON") }, "Copy JSON");
  const none = el("button", { type: "button", class: "small", click: clear }, "Choose none");
  const node = el("div", { class: "selection", role: "group", "aria-label": "Chosen messages", hidden: true }, summary, el("fieldset", {}, redrive, edit, visible, remove), bodies, asJson, none);

  function chosen() {
    return shown.filter((message) => picked.has(message.id));
  }

  function done() {
    picked.clear();
    draw(); // at once: a choice that follows must not find the boxes that the reload will clear
    reload();
  }

  function clear() {
    picked.clear();
    draw();
    all.focus();
  }

  function pickAll() {
    for (const { id } of shown) all.checked ? picked.add(id) : picked.delete(id);
    draw();
  }

  function draw() {
    const messages = chosen();
    const states = new Set(messages.map((message) => message.state));
    for (const [id, box] of boxes) box.checked = picked.has(id);
    all.checked = messages.length > 0 && messages.length === shown.length;
    all.indeterminate = messages.length > 0 && messages.length < shown.length;
    all.disabled = !shown.length;
    setText(summary, `${count(messages.length, "message")} chosen`);
    show(node, messages.length > 0);
    const may = listName === "messages" && queue ? queue.may : {};
    const letters = messages.some((message) => message.state === "visible" && message.source_queue !== null);
    show(redrive, Boolean(may.StartMessageMoveTask) && letters);
    show(edit, Boolean(may.DeleteMessage) && letters && messages.length === 1);
    show(visible, Boolean(may.ChangeMessageVisibility) && (states.has("delayed") || states.has("in_flight")));
    show(remove, Boolean(may.DeleteMessage) && states.has("visible"));
  }

  async function copied(format, what) {
    try {
      const whole = await Promise.all(
        chosen().map((message) => (message.cut ? get(queuePath(name, `/${listName}/${encodeURIComponent(message.id)}`), {}, signal) : message)),
      );
      await copy(format(whole));
      toast(`${what} of ${count(whole.length, "message")} copied.`);
    } catch (error) {
      toast(error.message, "wrong");
    }
  }

  // Buttons next to an opened message, for this message alone.
  function actions(id) {
    const one = () => shown.filter((message) => message.id === id);
    const may = listName === "messages" && queue ? queue.may : {};
    const button = (label, open, style = "") => el("button", { type: "button", class: style, click: () => one().length && open(queue, one(), done) }, label);
    const [message] = one();
    const letter = message?.source_queue !== null && message?.state === "visible";
    const free = { in_flight: "Free…", delayed: "Make visible…" }[message?.state];
    return [
      may.ChangeMessageVisibility && free ? button(free, makeVisible) : null,
      may.StartMessageMoveTask && letter ? button("Retry…", redriveMessages) : null,
      may.DeleteMessage && message?.state === "visible" ? button("Delete…", deleteMessages, "danger") : null,
    ];
  }

  return {
    node,
    all,
    actions,
    box(id) {
      const box = el("input", { type: "checkbox", "aria-label": `Choose ${id}`, change: () => (box.checked ? picked.add(id) : picked.delete(id), draw()) });
      boxes.set(id, box);
      return box;
    },
    update(newest, messages) {
      [queue, shown] = [newest, messages];
      const there = new Set(messages.map((message) => message.id));
      for (const id of [...picked]) if (!there.has(id)) picked.delete(id);
      for (const id of [...boxes.keys()]) if (!there.has(id)) boxes.delete(id);
      draw();
    },
  };
}

function body(messages) {
  return messages.map((message) => message.body).join("\n");
}

function json(messages) {
  const documents = messages.map(({ cut, length, ...message }) => message);
  return JSON.stringify(documents.length === 1 ? documents[0] : documents, null, 2);
}
