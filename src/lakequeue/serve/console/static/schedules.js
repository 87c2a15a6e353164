// The schedules of the region, and the consumers of all queues.

import { get, post } from "./api.js";
import { CONSUMER, UNSEEN } from "./consumers.js";
import { ago, el, Rows, setText, show, time, toast, trouble } from "./dom.js";
import { queueLink } from "./list.js";

// A view with one table; `read` returns the rows, `cells` what a row shows, by the columns.
function table(title, columns, none, read, cells) {
  const body = el("tbody");
  const empty = el("div", { class: "empty", hidden: true }, none);
  const heads = columns.map(([label, kind = ""]) => el("th", { scope: "col", class: kind }, label));
  const node = el("table", { class: "wide-cells" }, el("thead", {}, el("tr", {}, heads)), body);
  const limited = el("p", { class: "quiet below", hidden: true }, `Only of the queues that this key may see: ${title.toLowerCase()} of other queues are hidden.`);
  const root = el("section", {}, el("div", { class: "head" }, el("h1", {}, title)), el("div", { class: "scroll" }, node), empty, limited);
  const rows = new Rows(body, ({ key }) => key, () => {
    const row = el("tr");
    let drawn = "";
    return {
      nodes: [row],
      update(newest) {
        const state = JSON.stringify(newest);
        if (state === drawn) return;
        drawn = state;
        row.replaceChildren(...cells(newest).map((cell, index) => el("td", { class: columns[index][1] ?? "", "data-label": columns[index][0] }, cell)));
      },
    };
  });
  return {
    root,
    title,
    async update() {
      const [answer, found] = await read();
      rows.show(found);
      show(empty, !found.length);
      show(node, found.length > 0);
      show(limited, answer.limited);
      setText(empty, answer.limited ? "There are none of the queues that this key may see." : none);
      return answer;
    },
  };
}

export function schedules(signal, reload) {
  async function change(name, act, done) {
    try {
      await post("schedules", { name, act });
      toast(done, "done", act === "run_now" ? act : "Pause");
      reload();
    } catch (error) {
      toast(error.message, "wrong");
    }
  }

  const columns = [["Schedule"], ["Queue"], ["When"], ["Next"], ["Last"], ["Body"], ["State"], [""]];
  return table(
    "Schedules",
    columns,
    "There are no schedules. lakequeue schedule add makes one.",
    async () => {
      const answer = await get("schedules", {}, signal);
      return [answer, answer.schedules.map((each) => ({ key: each.name, ...each }))];
    },
    ({ name, queue, cron, tz, next_due: next, overdue, last_due: last, body, paused, last_error: error, may, exists }) => [
      el("b", {}, name),
      exists ? queueLink(queue) : queue,
      cron === null ? "once" : el("span", { class: "code" }, `${cron} ${tz}`),
      paused ? "–" : overdue ? el("span", { class: "trouble" }, "overdue, due ", ago(next)) : time(next),
      last === null ? "–" : ago(last),
      el("span", { class: "code clamped" }, body),
      error ? trouble(error) : paused ? el("span", { class: "badge paused" }, "paused") : "waits",
      may.SendMessage
        ? [
            el("button", { type: "button", class: "small", "aria-label": `Send the message of ${name} now`, click: () => change(name, "run_now", `The message of ${name} is sent.`) }, "Send now"),
            " ",
            paused
              ? el("button", { type: "button", class: "small", "aria-label": `Resume ${name}`, click: () => change(name, "resume", `${name} is resumed.`) }, "Resume")
              : el("button", { type: "button", class: "small", "aria-label": `Pause ${name}`, click: () => change(name, "pause", `${name} is paused.`) }, "Pause"),
          ]
        : "",
    ],
  );
}

export function workers(signal) {
  const columns = [["Queue"], ...CONSUMER];
  return table(
    "Workers",
    columns,
    `No consumer runs. ${UNSEEN}`,
    async () => {
      const answer = await get("workers", {}, signal);
      return [answer, answer.workers.map((each) => ({ key: `${each.queue} ${each.consumer}`, ...each }))];
    },
    (each) => [queueLink(each.queue), ...CONSUMER.map(([, , shown]) => shown(each))],
  );
}
