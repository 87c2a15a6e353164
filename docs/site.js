// A name such as --until-empty, send_dataframe or LeaseLost is searched for as a whole, too, by the tags of site_hooks.py.
// Without its dashes: lunr leaves out words behind a dash. A command is searched for without "lakequeue", which is on all pages.
const search = document.querySelector(".md-search__input");
const typed = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
const PROGRAM = /^\s*lakequeue\s+(?=\S)/i;
const NAME = /(?<!\S)(--?\w[\w-]*|\w+_\w+|\w*[a-z][A-Z]\w*)(?!\S)/g;
Object.defineProperty(search, "value", {
  set: typed.set,
  get() {
    return typed.get.call(this).replace(PROGRAM, "").replace(NAME, (name) => {
      const words = name.replace(/^-+/, "");
      const kind = words === name ? "qq" : "qo";
      return `${words} ${kind}${words.replace(/[-_]/g, "").toLowerCase()}`;
    });
  },
});
