// @ts-check
/** What people collected: every cell with a star, tags, a note or annotations. To filter, take away, and bring in. */
import { collectionHref, starButton } from "./collect.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { download, json } from "./files.js";
import { exportFile, importFile, MARKED, markedPlaces } from "./marks.js";
import { found as patterns } from "./notes.js";
import { cellLink, failure, listed, preview } from "./parts.js";
import { counted, visible, whole } from "./text.js";

/**
 * @typedef {{place: number, layer: number, cell: number, marks: import("./marks.js").Marks | undefined, annotations: data.Annotation[]}} Item
 * @typedef {"starred" | "noted" | "annotated" | ""} Shown
 */

/** @type {[Shown, string, (item: Item) => boolean][]} */
const SHOWN = [
  ["", "all", () => true],
  ["starred", "★ starred", ({ marks }) => Boolean(marks?.starred)],
  ["noted", "✎ with a note", ({ marks }) => Boolean(marks?.note.trim())],
  ["annotated", "annotated", ({ annotations }) => annotations.length > 0],
];

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal }) {
  const chips = h("nav", { class: "chips", "aria-label": "Collections" });
  const list = h("div", { class: "collected" });
  const said = h("p", { class: "soft small", role: "status" });
  const tag = query.get("tag");
  const show = query.get("show") ?? "";
  const [, , isShown] = SHOWN.find(([name]) => name === show) ?? SHOWN[0];
  /** @type {Item[]} */
  let items = [];

  const field = h("input", {
    type: "search",
    id: "collected-text",
    placeholder: "in notes, tags, patterns, addresses",
    "aria-label": "Words in notes, tags, patterns or addresses",
    value: query.get("q") ?? "",
    oninput: () => {
      const asked = Object.fromEntries([["tag", tag ?? ""], ["show", show], ["q", field.value.trim()]].filter(([, value]) => value));
      history.replaceState(history.state, "", collectionHref(asked));
      drawList();
    },
  });

  function drawList() {
    const words = field.value.toLowerCase().split(/\s+/u).filter(Boolean);
    const chosen = items.filter(
      (item) =>
        isShown(item) &&
        (tag === null || item.marks?.tags.includes(tag)) &&
        (!words.length || contains(item, words)),
    );
    const focused = document.activeElement instanceof HTMLElement && list.contains(document.activeElement) ? document.activeElement.dataset.star : null;
    const rows = list.querySelectorAll(".hits > li").length;
    replace(
      list,
      items.length === 0
        ? empty(run)
        : [
            h("p", { class: "soft", role: "status" }, chosen.length === items.length ? `${counted(items.length, "cell")}.` : `${whole(chosen.length)} of ${counted(items.length, "cell")}.`),
            listed(chosen, (item) => row(item, signal, said), rows),
          ],
    );
    if (focused) /** @type {HTMLElement | null} */ (list.querySelector(`[data-star="${focused}"]`) ?? field)?.focus();
  }

  let turn = 0;
  async function draw() {
    const mine = ++turn;
    const found = await collected();
    if (mine !== turn) return; // something else was marked meanwhile
    items = found;
    const tags = [...new Set(items.flatMap(({ marks }) => marks?.tags ?? []))].sort((a, b) => a.localeCompare(b));
    if (tag !== null && !tags.includes(tag)) tags.push(tag);
    replace(
      chips,
      items.length > 0 &&
        SHOWN.map(([name, text, holds]) =>
          filter(text, items.filter(holds).length, collectionHref(name ? { show: name } : {}), tag === null && name === show),
        ),
      tags.map((each) =>
        filter(each, items.filter(({ marks }) => marks?.tags.includes(each)).length, collectionHref({ tag: each }), each === tag),
      ),
    );
    drawList();
  }

  await draw();
  window.addEventListener(MARKED, () => draw().catch((error) => replace(said, failure(error))), { signal });
  return {
    title: tag === null ? "Collections" : `${tag}, a collection`,
    body: h(
      "div",
      { class: "collections" },
      h("div", { class: "pagehead" }, h("h1", {}, "Collections"), files(said)),
      h(
        "p",
        { class: "lead" },
        run.live
          ? "Cells with a star, tags, a note or annotations. They are saved in the run, for everyone who opens it."
          : "Cells with a star, tags, a note or annotations. These pages were exported: what you add stays in this browser. Export it as a file to keep it or to pass it on.",
      ),
      chips,
      h("div", { class: "controls" }, h("label", { for: "collected-text" }, "Words"), field),
      said,
      list,
    ),
  };
}

/** Every cell that is marked or annotated, in the order of the axis. @returns {Promise<Item[]>} */
async function collected() {
  const [marked, { annotations }] = await Promise.all([markedPlaces(), data.annotations()]);
  /** @type {Map<number, Item>} */
  const items = new Map();
  const item = (/** @type {number} */ place) => {
    const known = items.get(place) ?? { place, ...data.axis.split(place), marks: marked.get(place), annotations: [] };
    items.set(place, known);
    return known;
  };
  for (const place of marked.keys()) item(place);
  for (const each of annotations) if (!each.skipped) item(data.axis.place(each.layer, each.cell)).annotations.push(each);
  return [...items.values()].sort((a, b) => a.place - b.place);
}

/** Whether every word is in what people wrote about a cell, or in its address. @param {Item} item @param {string[]} words */
function contains({ layer, cell, marks, annotations }, words) {
  const text = [
    data.axis.address(layer, cell),
    ...(marks?.tags ?? []),
    marks?.note ?? "",
    ...annotations.flatMap(({ annotator, patterns }) => [annotator, ...patterns.map(({ description }) => description)]),
  ]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

/** @param {string} text @param {number} count @param {string} href @param {boolean} current */
function filter(text, count, href, current) {
  return h(
    "a",
    { class: "chip", href, "aria-current": current ? "true" : null },
    h("bdi", {}, text),
    h("span", { class: "soft small" }, whole(count)),
  );
}

/** @param {Item} item @param {AbortSignal} signal @param {HTMLElement} said */
function row({ layer, cell, marks, annotations }, signal, said) {
  const address = data.axis.address(layer, cell);
  return h(
    "li",
    {},
    h(
      "div",
      { class: "hit" },
      starButton(layer, cell, signal, said),
      cellLink(layer, cell),
      h(
        "span",
        { class: "marked" },
        marks?.tags.map((tag) => h("a", { class: "mark", href: collectionHref({ tag }) }, h("bdi", {}, tag))),
      ),
    ),
    marks?.note.trim() && h("p", { class: "note" }, h("bdi", {}, marks.note.split("\n").flatMap((part, i) => [i ? h("br") : null, visible(part)]))),
    patterns(annotations),
    annotations.length > 0 &&
      !annotations.some(({ patterns }) => patterns.length) &&
      h("p", { class: "soft small" }, "annotated: no pattern"),
    preview(address, signal),
  );
}

/** Export and import. @param {HTMLElement} said */
function files(said) {
  const chosen = h("input", {
    type: "file",
    id: "import",
    hidden: true,
    accept: "application/json,.json",
    onchange: async () => {
      const [file] = chosen.files ?? [];
      if (!file) return;
      said.textContent = "Importing …";
      try {
        const done = await importFile(await json(file));
        said.textContent = `${file.name}: ${counted(done.cells, "cell")}, ${done.changed ? `${whole(done.changed)} of them new or changed` : "nothing new"}.`;
      } catch (error) {
        const large = error instanceof data.Failure && error.code === "too_large";
        replace(said, failure(error), large && ["A larger file: ", h("code", {}, "keyhole collections RUN --import FILE")]);
      }
      chosen.value = "";
    },
  });
  const save = async () => {
    try {
      const file = await exportFile();
      download("collections.json", JSON.stringify(file, null, 1) + "\n");
      said.textContent = `Saved: ${counted(Object.keys(file.cells).length, "cell")} in collections.json.`;
    } catch (error) {
      replace(said, failure(error));
    }
  };
  return h(
    "div",
    { class: "controls" },
    chosen,
    h("button", { type: "button", class: "quiet", onclick: () => chosen.click() }, "Import …"),
    h("button", { type: "button", class: "quiet", onclick: save }, "Export"),
  );
}

/** @param {data.Run} run */
function empty(run) {
  return h(
    "p",
    { class: "missing" },
    "Nothing is collected yet. On a cell’s page, press ",
    h("kbd", {}, "s"),
    " or ☆ to star it, add a tag, or write a note: it is then listed here. ",
    run.worth.length > 0 && ["To begin: ", ...run.worth.slice(0, 3).flatMap((address, i) => {
      const { layer, cell } = data.axis.find(address);
      return [i ? ", " : "", cellLink(layer, cell)];
    }), ". "],
    "Or import a file that someone exported.",
  );
}
