// @ts-check
/**
 * Search: a token → the values that promote it and the keys that end in it, contain it, or come before it; a text of several tokens → the
 * same keys; words → the labels that name them; `like` a cell or a text → the nearest cells; an address → the cell.
 */
import { link, parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import * as kinds from "./kinds.js";
import { marked } from "./marks.js";
import { naming } from "./naming.js";
import { near } from "./nearest.js";
import { cellLink, failure, listed, preview } from "./parts.js";
import { like, MOST_TERMS, quoted, searchHref, terms } from "./query.js";
import { keysOf } from "./searchkeys.js";
import { labelsOf } from "./searchpeople.js";
import { valuesOf } from "./searchvalues.js";
import { sought } from "./sought.js";
import { counted } from "./text.js";

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal }) {
  const asked = query.get("q") ?? "";
  const address = parse(asked);
  if (address && data.axis.locate(address)) {
    location.replace(link(address));
    return { title: asked, body: h("div", {}, h("h1", {}, "Search"), h("p", {}, `To ${asked} …`)) };
  }
  const labelled = await data.kinds();
  const kind = query.get("kind") ?? "";
  const isOfKind = kinds.of(labelled, kind);
  const near = like(asked);
  /** @param {string} name */
  const look = (name) => {
    const relation = new URLSearchParams(location.hash.split("?")[1]).get("in");
    location.hash = `${searchHref(field.value)}${name ? `&kind=${name}` : ""}${relation ? `&in=${relation}` : ""}`;
  };
  const field = h("input", {
    id: "q",
    type: "search",
    value: asked,
    placeholder: "not, money or dollar, United States, like L3.17",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 400,
  });
  const go = /** @param {Event} event */ (event) => {
    event.preventDefault();
    look(kind);
  };
  const body = h(
    "div",
    { class: run.patterns ? "labelled" : null },
    h("h1", {}, "Search"),
    h(
      "form",
      { class: "controls big", role: "search", onsubmit: go },
      h("label", { for: "q" }, "Token, phrase or cell"),
      field,
      !near && kinds.choice(labelled, kind, look),
      h("button", { type: "submit" }, "Search"),
    ),
    address && /l/i.test(asked) && h("p", { class: "missing", role: "alert" }, `${data.axis.missing(address)} It is looked for as a text.`),
    !near && terms(asked).length > MOST_TERMS && h("p", { class: "missing" }, `Only the first ${MOST_TERMS} terms are searched.`),
    near
      ? neighbours(near, run, signal)
      : asked.trim()
        ? results(asked, run, query, signal, labelled, kind)
        : kind
          ? ofKind(isOfKind, signal)
          : examples(run),
  );
  return { title: asked ? `Search: ${asked}` : "Search", body };
}

const neighbours = near;

/**
 * @param {string} asked
 * @param {data.Run} run
 * @param {URLSearchParams} query
 * @param {AbortSignal} signal
 * @param {kinds.Kinds} labelled
 * @param {string} kind
 */
function results(asked, run, query, signal, labelled, kind) {
  const isOfKind = kinds.of(labelled, kind);
  const looked = sought(asked, query.get("token"));
  const tab = {
    relation: query.get("in"),
    choose: (/** @type {string} */ relation) => {
      const now = new URLSearchParams(query);
      now.set("in", relation);
      history.replaceState(history.state, "", `#/search?${now}`);
    },
  };
  /** @param {string} name @param {string} title @param {string} side @param {(place: HTMLElement) => Promise<void>} fill */
  const section = (name, title, side, fill) => {
    const place = h("div", { class: "results" }, h("p", { class: "soft" }, "Looking …"));
    fill(place).catch((error) => replace(place, failure(error)));
    return h("section", { "aria-labelledby": `${name}-title` }, h("h2", { id: `${name}-title`, class: side }, title), place);
  };
  return h(
    "div",
    {},
    h(
      "div",
      { class: "two even" },
      section("values", "Values that promote or demote it", "value", async (place) =>
        valuesOf(place, await looked, asked, run, signal, { kind, isOfKind }),
      ),
      section("keys", "Keys that fire on it", "key", async (place) => keysOf(place, await looked, run, signal, { kind, isOfKind }, tab)),
    ),
    h(
      "div",
      { class: "two even lower" },
      run.patterns &&
        section("patterns", "Patterns that name it", "key", async (place) =>
          naming(place, asked, await looked, run, signal, isOfKind),
        ),
      section("people", "Kinds, tags and notes that name it", "", async (place) =>
        labelsOf(place, await looked, labelled, isOfKind),
      ),
    ),
    h(
      "p",
      { class: "soft" },
      "Or the cells whose keys and values are nearest to this text, as the model reads it: ",
      h("a", { href: searchHref(`like ${quoted(asked.trim())}`) }, "nearest"),
      run.live ? "." : " (needs keyhole serve).",
    ),
  );
}

/** The cells of a kind, if nothing else is asked. @param {(layer: number, cell: number) => boolean} isOfKind @param {AbortSignal} signal */
function ofKind(isOfKind, signal) {
  const { axis } = data;
  /** @type {number[]} */
  const places = [];
  for (let layer = 0; layer < axis.depth; layer++)
    for (let cell = 0; cell < axis.size(layer); cell++) if (isOfKind(layer, cell)) places.push(axis.place(layer, cell));
  return h(
    "div",
    { class: "results" },
    h("p", { class: "soft", role: "status" }, `${counted(places.length, "cell")} of this kind.`),
    listed(places, (place) => {
      const { layer, cell } = axis.split(place);
      return h(
        "li",
        {},
        h("span", { class: "hit" }, cellLink(layer, cell), marked(layer, cell)),
        preview(axis.address(layer, cell), signal, { triggers: 1, promoted: 5 }),
      );
    }),
  );
}

/** @param {data.Run} run */
function examples(run) {
  const tried = (/** @type {string} */ text) => h("a", { href: searchHref(text) }, text);
  const middle = data.axis.address(Math.floor(data.axis.depth / 2), 0);
  return h(
    "div",
    {},
    h(
      "ul",
      { class: "lead" },
      h("li", {}, h("b", {}, "A token"), " finds the values that promote it, and the keys whose triggers end in it, contain it or come before it: ", tried("freedom"), ", ", tried("January"), "."),
      h("li", {}, h("b", {}, "Several tokens"), " find what matches any of them: ", tried("money or dollar or funds"), "."),
      h("li", {}, h("b", {}, "A phrase"), " finds keys: ", tried("United States"), ". In quotes, it is taken as it stands, spaces and case included: ", tried('" not"'), "."),
      h("li", {}, h("b", {}, "A word"), ` also finds ${run.patterns ? "patterns, " : ""}kinds of cells, tags and notes that name it.`),
      h("li", {}, h("b", {}, "Like"), " finds the cells nearest to a cell or to a text: ", tried(`like ${middle}`), ", ", tried('like "The fact that"'), "."),
      h("li", {}, h("b", {}, "A cell’s address"), " opens it: ", tried(middle), "."),
    ),
  );
}
