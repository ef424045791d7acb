// @ts-check
/** The page's frame: routes, title, focus, keyboard, help. Each page is drawn by a module of its own. */
import { link, parse } from "./cells.js";
import { drawn, held, touched, watch } from "./coming.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { PAPER } from "./glossary.js";
import { ABSENT } from "./part.js";
import { annotateHref, failure } from "./parts.js";
import { visible } from "./text.js";

/**
 * @typedef {{run: data.Run, layer: number, cell: number, query: URLSearchParams, signal: AbortSignal, moved: typeof moved}} Place
 *   where the reader is; the signal aborts when they leave; `moved` is for a page that changes its own address
 * @typedef {{title: string, body: Node}} Page
 */

/** @type {Record<string, () => Promise<{render: (place: Place) => Promise<Page>}>>} */
const PAGES = {
  overview: () => import("./overview.js"),
  layer: () => import("./layer.js"),
  cells: () => import("./table.js"),
  cell: () => import("./cell.js"),
  search: () => import("./search.js"),
  prompt: () => import("./prompt.js"),
  annotate: () => import("./annotate.js"),
  collections: () => import("./collections.js"),
  glossary: () => import("./glossary.js"),
};

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const main = byId("main");
const scrolled = new Map();
/** The page that is shown, and one that is being loaded: what ends their work. @type {Set<AbortController>} */
const open = new Set();
/** @type {{page: string, layer: number, cell: number}} */
let here = { page: "", layer: 0, cell: 0 };
let entry = 0;
/** Whether new analyses are looked for. */
let watching = false;

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

/**
 * Draw the page that the address names.
 * @param {boolean} first
 * @param {boolean} [again] the same page as before, from new data: it stays where it was scrolled to
 * @returns whether it was drawn, or left; not if the reader touched the old one meanwhile
 */
async function show(first, again = false) {
  scrolled.set(entry, window.scrollY);
  const focused = main.contains(document.activeElement);
  const seen = history.state?.entry;
  entry = seen ?? Date.now() + Math.random();
  if (seen === undefined) history.replaceState({ entry }, "");
  if (!again) close();
  const leave = new AbortController();
  open.add(leave);
  const { page: name, address, query } = route(location.hash);
  here = { page: name, layer: -1, cell: -1 };
  data.begin();
  const slow = setTimeout(() => leave.signal.aborted || again || main.setAttribute("aria-busy", "true"), 150);
  /** @type {Page | null} */
  let page;
  let model = "";
  try {
    const run = await data.run();
    if (run.live && !watching) watch(() => show(false, true));
    watching = run.live;
    model = run.model.name;
    frame(run, name);
    const load = Object.hasOwn(PAGES, name) ? PAGES[name] : null;
    if (!load) throw new data.Failure(`There is no page “${name}” here.`);
    const at = data.axis.locate(address);
    if (address && !at) throw new data.Failure(data.axis.missing(address));
    const { layer, cell } = at ?? { layer: -1, cell: -1 };
    if (!leave.signal.aborted) here = { page: name, layer, cell };
    page = at && absent(layer, cell);
    page ??= await (await load()).render({ run, layer, cell, query, signal: leave.signal, moved });
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
  if (leave.signal.aborted) return true;
  if (again && touched()) {
    leave.abort();
    open.delete(leave);
    return false; // the reader began to do something while the new page was loaded
  }
  close(leave);
  main.removeAttribute("aria-busy");
  document.title = [page.title, model, "Keyhole"].filter(Boolean).map(visible).join(" · ");
  const stay = again ? held(main, leave.signal) : null;
  replace(main, page.body);
  drawn(name);
  window.scrollTo(0, scrolled.get(entry) ?? 0);
  stay?.();
  const heading = main.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  if (!first && (focused || !again) && !main.contains(document.activeElement)) heading?.focus({ preventScroll: true });
  return true;
}

/** End the work of the pages that are open, of all but one. @param {AbortController} [kept] */
function close(kept) {
  for (const each of open) {
    if (each === kept) continue;
    each.abort();
    open.delete(each);
  }
}

/**
 * The page of a cell, or a layer, that was left out of an export; null if it is there.
 * @param {number} layer
 * @param {number} cell
 * @returns {Page | null}
 */
function absent(layer, cell) {
  const { axis, part } = data;
  if (!part || (cell < 0 ? part.hasLayer(layer) : part.has({ layer, cell }))) return null;
  const name = cell < 0 ? `Layer ${axis.label(layer)}` : axis.address(layer, cell);
  const first = part.at(0);
  return {
    title: name,
    body: h(
      "div",
      {},
      h("h1", {}, name),
      h("p", { class: "missing" }, `${name} is ${ABSENT}, which has ${visible(part.said)}.`),
      h("p", {}, h("a", { href: axis.href(first.layer, first.cell) }, `Go to ${axis.address(first.layer, first.cell)}`), ", its first cell."),
    ),
  };
}

/**
 * Note that the page changed its own address: a step that the reader can go back, with the page as it is.
 * @param {string} hash
 * @param {boolean} instead the present address was not complete: it is replaced
 */
function moved(hash, instead) {
  if (hash === location.hash) return;
  if (instead) return history.replaceState({ entry }, "", hash);
  scrolled.set(entry, window.scrollY);
  entry = Date.now() + Math.random();
  history.pushState({ entry }, "", hash);
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
      ["layer", data.axis.href(data.layersShown()[0]), "Layers"],
      ["cells", "#/cells", "Cells"],
      ["search", "#/search", "Search"],
      ["prompt", "#/prompt", "Prompt"],
      ["annotate", "#/annotate", "Annotate"],
      ["collections", "#/collections", "Collections"],
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
      h("a", { class: "words", href: "#/glossary", title: "What the words mean" }, "Glossary"),
      h(
        "button",
        { type: "button", class: "quiet round", onclick: help, "aria-label": "Keyboard help", title: "Keyboard (?)" },
        "?",
      ),
    );
    if (data.part)
      header.after(h("p", { class: "part soft small" }, `This export has ${visible(data.part.said)}. Other cells are not listed or found.`));
    replace(
      byId("footer"),
      h(
        "p",
        {},
        `Keyhole ${run.keyhole}: the feed-forward layers of a transformer, read as key-value memories, after Geva et al. (2021), `,
        h(
          "a",
          { href: PAPER, rel: "noreferrer", target: "_blank" },
          h("cite", {}, "Transformer Feed-Forward Layers Are Key-Value Memories"),
        ),
        ". What the words mean: ",
        h("a", { href: "#/glossary" }, "glossary"),
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
  const { axis, part } = data;
  const any = () => Math.floor(Math.random() * (part?.about.cells ?? axis.length));
  let { layer, cell } = part?.at(any()) ?? axis.split(any());
  const columns = (await data.layer(layer).catch(() => null))?.columns;
  for (let tries = 0; tries < 50 && columns?.dead[cell]; tries++) {
    const other = Math.floor(Math.random() * axis.size(layer));
    if (data.has(layer, other)) cell = other;
  }
  location.hash = here.page === "annotate" ? annotateHref(layer, cell) : data.axis.href(layer, cell);
}

/** @param {number} by */
async function step(by) {
  await data.run();
  const { axis } = data;
  if (here.layer < 0) return;
  if (here.page === "layer") location.hash = axis.href(data.layerStep(here.layer, by));
  else if (here.page === "cell") {
    const next = data.step(here, by);
    location.hash = axis.href(next.layer, next.cell);
  }
}

/** Star the cell that is shown: while another one is being loaded, the key does nothing. */
function star() {
  if (here.page !== "cell") return;
  const button = main.querySelector(`.collecting [data-star="${data.axis.address(here.layer, here.cell)}"]`);
  if (button instanceof HTMLButtonElement) button.click();
}

function help() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  /** @type {[string[], string][]} */
  const keys = [
    [["j", "→"], "next cell, or layer"],
    [["k", "←"], "previous cell, or layer"],
    [["s"], "star the cell, or take its star away"],
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
    h("p", {}, "On the map of all cells: arrow keys move, with Shift further; + and − zoom, 0 shows all; Page Up, Page Down, Home and End move by what is in view, and to the ends; Enter opens the cell."),
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
  s: star,
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
