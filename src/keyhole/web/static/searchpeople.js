// @ts-check
/** The search's list of what people said: kinds of cells that have the name, and cells whose tags, notes or annotations contain it. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { collectionHref } from "./collect.js";
import { marked, markedPlaces } from "./marks.js";
import { cellLink, listed } from "./parts.js";
import { counted, visible, whole } from "./text.js";

/** Letters of a note that are shown. */
const SNIPPET = 160;

/**
 * Fill a place with the kinds, tags, notes and annotations that contain a term.
 * @param {HTMLElement} place
 * @param {import("./sought.js").Sought[]} sought
 * @param {import("./kinds.js").Kinds} labelled
 * @param {(layer: number, cell: number) => boolean} isOfKind
 */
export async function labelsOf(place, sought, labelled, isOfKind) {
  const wanted = sought.map(({ term }) => term.text.trim().toLowerCase()).filter(Boolean);
  const has = (/** @type {string} */ text) => wanted.some((term) => text.toLowerCase().includes(term));
  const [marks, { annotations }] = await Promise.all([markedPlaces(), data.annotations()]);
  /** @type {Map<number, string[]>} what was said, by place */
  const said = new Map();
  const say = (/** @type {number} */ at, /** @type {string} */ text) => has(text) && said.set(at, [...(said.get(at) ?? []), text]);
  for (const [at, { tags, note }] of marks) {
    tags.forEach((tag) => say(at, tag));
    say(at, note);
  }
  for (const { layer, cell, skipped, patterns } of annotations)
    if (!skipped) patterns.forEach(({ description }) => say(data.axis.place(layer, cell), description));
  const hits = [...said].map(([at, texts]) => ({ ...data.axis.split(at), texts })).filter(({ layer, cell }) => isOfKind(layer, cell));
  const kinds = labelled.kinds.filter(({ title, name }) => has(title) || has(name));
  replace(
    place,
    kinds.length > 0 &&
      h(
        "p",
        { class: "chips" },
        h("span", { class: "soft small" }, "Kinds: "),
        kinds.map(({ name, title, meaning }) => {
          const bit = labelled.kinds.findIndex((kind) => kind.name === name);
          const spans = data.part?.about.spans ?? [[0, labelled.labels.length]];
          const count = spans.reduce(
            (sum, [from, to]) => labelled.labels.subarray(from, to).reduce((own, bits) => own + ((bits >> bit) & 1), sum),
            0,
          );
          return h(
            "a",
            { class: "chip", href: `#/search?kind=${name}`, title: meaning },
            title,
            h("span", { class: "soft small" }, whole(count)),
          );
        }),
      ),
    hits.length
      ? h("p", { class: "soft", role: "status" }, `${counted(hits.length, "cell")} with a tag, a note or an annotation that contains it.`)
      : h(
          "p",
          { class: "soft", role: "status" },
          "No tag, note or annotation contains it. ",
          h("a", { href: collectionHref() }, "Collections"),
        ),
    hits.length > 0 &&
      listed(hits, ({ layer, cell, texts }) =>
        h(
          "li",
          {},
          h("span", { class: "hit" }, cellLink(layer, cell), marked(layer, cell)),
          texts.map((text) => {
            const letters = Array.from(text);
            return h("span", { class: "snippet" }, h("bdi", {}, visible(letters.slice(0, SNIPPET).join("")), letters.length > SNIPPET && "…"));
          }),
        ),
      ),
  );
}
