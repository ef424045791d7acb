// @ts-check
/** The page's frame: routes, title, focus, keyboard, help. Each page is drawn by a module of its own. */
import { link, parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { annotateHref, failure } from "./parts.js";
import { visible } from "./text.js";

/**
 * @typedef {{run: data.Run, layer: number, cell: number, query: URLSearchParams, signal: AbortSignal}} Place
 *   where the reader is; the signal aborts when they leave
 * @typedef {{title: string, body: Node}} Page
 */

/** @type {Record<string, () => Promise<{render: (place: Place) => Promise<Page>}>>} */
const PAGES = {
  overview: () => import("./overview.js"),
  layer: () => import("./layer.js"),
  cell: () => import("./cell.js"),
  search: () => import("./search.js"),
  prompt: () => import("./prompt.js"),
  annotate: () => import("./annotate.js"),
};

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const main = byId("main");
const scrolled = new Map();
let leaving = new AbortController();
/** @type {{page: string, layer: number, cell: number}} */
let here = { page: "", layer: 0, cell: 0 };
let entry = 0;

/**
 * `#/L12/345?x=y` → page, address, query.
 * @param {string} hash
 */
function route(hash) {
  const [path, asked = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const query = new URLSearchParams(asked);
  const annotate = path.startsWith("annotate/");
  const address = parse(annotate ? path.slice("annotate/".length) : path);
  if (address && (address.cell !== null || !annotate))
    return { page: annotate ? "annotate" : address.cell === null ? "layer" : "cell", address, query };
  return { page: path === "" ? "overview" : path, address: null, query };
}

/** @param {boolean} first */
async function show(first) {
  scrolled.set(entry, window.scrollY);
  const seen = history.state?.entry;
  entry = seen ?? Date.now() + Math.random();
  if (seen === undefined) history.replaceState({ entry }, "");
  leaving.abort();
  const leave = (leaving = new AbortController());
  const { page: name, address, query } = route(location.hash);
  here = { page: name, layer: -1, cell: -1 };
  const slow = setTimeout(() => leave.signal.aborted || main.setAttribute("aria-busy", "true"), 150);
  /** @type {Page} */
  let page;
  let model = "";
  try {
    const run = await data.run();
    model = run.model.name;
    frame(run, name);
    const load = Object.hasOwn(PAGES, name) ? PAGES[name] : null;
    if (!load) throw new data.Failure(`There is no page “${name}” here.`);
    const at = data.axis.locate(address);
    if (address && !at) throw new data.Failure(data.axis.missing(address));
    const { layer, cell } = at ?? { layer: -1, cell: -1 };
    if (!leave.signal.aborted) here = { page: name, layer, cell };
    page = await (await load()).render({ run, layer, cell, query, signal: leave.signal });
  } catch (error) {
    if (!(error instanceof data.Failure)) console.error(error);
    page = {
      title: "Not found",
      body: h(
        "div",
        {},
        h("h1", {}, "Not found"),
        failure(error),
        h("p", {}, h("a", { href: "#/" }, "Go to the overview")),
      ),
    };
  } finally {
    clearTimeout(slow);
  }
  if (leave.signal.aborted) return;
  main.removeAttribute("aria-busy");
  document.title = [page.title, model, "Keyhole"].filter(Boolean).map(visible).join(" · ");
  replace(main, page.body);
  window.scrollTo(0, scrolled.get(entry) ?? 0);
  const heading = main.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  if (!first && !main.contains(document.activeElement)) heading?.focus({ preventScroll: true });
}

/**
 * The header: built once; later calls only mark the current page.
 * @param {data.Run} run
 * @param {string} page
 */
function frame(run, page) {
  const header = byId("header");
  if (!header.firstChild) {
    const field = h("input", {
      type: "search",
      id: "find",
      name: "q",
      "aria-label": "Search tokens, phrases, cells",
      placeholder: "token, phrase or L3.17",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 400,
    });
    const ask = /** @param {Event} event */ (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      const address = parse(field.value);
      location.hash = address ? link(address) : `#/search?q=${encodeURIComponent(field.value)}`;
    };
    /** @type {[string, string, string][]} */
    const links = [
      ["overview", "#/", "Overview"],
      ["layer", data.axis.href(0), "Layers"],
      ["search", "#/search", "Search"],
      ["prompt", "#/prompt", "Prompt"],
      ["annotate", "#/annotate", "Annotate"],
    ];
    replace(
      header,
      h("a", { class: "brand", href: "#/" }, "Keyhole"),
      h(
        "nav",
        { "aria-label": "Pages" },
        links.map(([name, href, text]) => h("a", { href, "data-page": name }, text)),
      ),
      h("form", { role: "search", class: "find", onsubmit: ask }, field),
      h("button", { type: "button", class: "quiet", onclick: random, title: "A random cell (r)" }, "Random cell"),
      h(
        "button",
        { type: "button", class: "quiet round", onclick: help, "aria-label": "Keyboard help", title: "Keyboard (?)" },
        "?",
      ),
    );
    replace(
      byId("footer"),
      h(
        "p",
        {},
        `Keyhole ${run.keyhole}: the feed-forward layers of a transformer, read as key-value memories, after Geva et al. (2021), `,
        h("cite", {}, "Transformer Feed-Forward Layers Are Key-Value Memories"),
        ".",
      ),
    );
  }
  for (const link of header.querySelectorAll("nav a")) {
    const current = link.getAttribute("data-page") === (page === "cell" ? "layer" : page);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** @type {Record<string, string>} */
const LOST = {
  run_changed:
    "The run at this address was replaced. Reload to see the new one. What you typed here and did not save belongs to the old run: copy what you need first.",
  run_gone: "The run at this address is gone: it was moved or deleted. Nothing can be saved until it is back.",
};
let standing = "";

/** Tell the reader that the run of this page is no longer served. The page stays as it is. @param {string} code */
function stand(code) {
  if (code === standing || (code === "" && standing === "run_changed")) return;
  standing = code;
  const bar = byId("lost");
  bar.hidden = code === "";
  replace(
    bar,
    code && h("p", {}, LOST[code]),
    code && h("button", { type: "button", onclick: () => location.reload() }, "Reload"),
  );
}

// Moving around

async function random() {
  await data.run();
  const layer = Math.floor(Math.random() * data.axis.depth);
  const columns = (await data.layer(layer).catch(() => null))?.columns;
  let cell = 0;
  for (let tries = 0; tries < 50; tries++) {
    cell = Math.floor(Math.random() * data.axis.size(layer));
    if (!columns?.dead[cell]) break;
  }
  location.hash = here.page === "annotate" ? annotateHref(layer, cell) : data.axis.href(layer, cell);
}

/** @param {number} by */
async function step(by) {
  await data.run();
  const { axis } = data;
  if (here.layer < 0) return;
  if (here.page === "layer") location.hash = axis.href((here.layer + by + axis.depth) % axis.depth);
  else if (here.page === "cell") {
    const next = axis.step(here, by);
    location.hash = axis.href(next.layer, next.cell);
  }
}

function help() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  /** @type {[string[], string][]} */
  const keys = [
    [["j", "→"], "next cell, or layer"],
    [["k", "←"], "previous cell, or layer"],
    [["r"], "a random cell"],
    [["/"], "search"],
    [["g"], "the overview"],
    [["?"], "this help"],
    [["Esc"], "close it"],
  ];
  replace(
    dialog,
    h("h2", { id: "help-title" }, "Keyboard"),
    h(
      "dl",
      {},
      keys.map(([names, what]) =>
        h(
          "div",
          {},
          h(
            "dt",
            {},
            names.map((name) => h("kbd", {}, name)),
          ),
          h("dd", {}, what),
        ),
      ),
    ),
    h("p", {}, "On the map of all cells: arrow keys move, Enter opens."),
    h(
      "form",
      { method: "dialog" },
      h(
        "button",
        {
          type: "submit",
          autofocus: true,
          onclick: /** @param {Event} event */ (event) => {
            event.preventDefault();
            dialog.close();
          },
        },
        "Close",
      ),
    ),
  );
  if (!dialog.open) dialog.showModal();
}

/** @type {Record<string, () => void>} */
const KEYS = {
  j: () => void step(1),
  ArrowRight: () => void step(1),
  k: () => void step(-1),
  ArrowLeft: () => void step(-1),
  r: () => void random(),
  g: () => void (location.hash = "#/"),
  "/": () => byId("find").focus(),
  "?": help,
};

document.addEventListener("keydown", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (
    event.defaultPrevented ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    target.closest("input, textarea, select, dialog, [data-keys]")
  )
    return;
  if (event.key.startsWith("Arrow") && scrollsSideways(target)) return;
  const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (!act) return;
  event.preventDefault();
  act();
});

/** @param {Element | null} element */
function scrollsSideways(element) {
  const box = element?.closest(".scroll");
  return box ? box.scrollWidth > box.clientWidth : false;
}

byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.querySelector("h1")?.focus();
});
byId("help").addEventListener("click", (event) => {
  if (event.target === byId("help")) /** @type {HTMLDialogElement} */ (byId("help")).close();
});
history.scrollRestoration = "manual";
window.addEventListener(data.STANDING, (event) => stand(/** @type {CustomEvent<string>} */ (event).detail));
window.addEventListener("hashchange", () => void show(false));
void show(true);
