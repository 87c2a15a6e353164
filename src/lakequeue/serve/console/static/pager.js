// The buttons below a list that turn its pages.

import { pagesBefore, showAddress } from "./address.js";
import { el, show } from "./dom.js";

// `given` are the parameters of the list, of which `after` says where the page begins.
export function pager(given, reload, ...more) {
  const button = (label, click) => el("button", { type: "button", hidden: true, click }, label);
  const first = button("First page", () => turn("", 0));
  const back = button("Previous", () => history.back());
  const next = button("Next page", () => turn(following, pagesBefore() + 1));
  let following = null;

  function turn(after, pages) {
    given.after = after;
    showAddress(given, pages);
    reload();
  }

  return {
    node: el("p", { class: "pager" }, more, first, back, next),
    // Of what the list shows the next page begins at `after`; null: there is none.
    update(after) {
      following = after;
      const turned = Boolean(given.after);
      for (const each of [first, back, next]) show(each, turned || after !== null);
      first.disabled = !turned;
      back.disabled = !turned || !pagesBefore();
      next.disabled = after === null;
    },
  };
}
