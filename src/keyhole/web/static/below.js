// @ts-check
/** Below the top: examples from bands of the coefficient, and random ones, from a sample of the corpus's prefixes. */
import { notYet } from "./coming.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { failure } from "./parts.js";
import { even, whole } from "./text.js";
import { list, showWhole } from "./triggers.js";

/**
 * Fill the place with a cell's examples. The texts are the same for all cells, and are fetched when they are first looked at.
 * @param {HTMLElement} place
 * @param {data.Cell} cell
 * @param {data.Run} run
 * @param {number} largest the coefficient that a full bar stands for
 * @param {data.Value["promoted"] | undefined} promoted by the value, through the lens that is shown
 */
export async function belowTop(place, cell, run, largest, promoted) {
  const { below } = cell;
  if (!below) {
    replace(place, h("p", { class: "missing" }, notYet("Examples below the top are not collected yet", "Collect them")));
    return;
  }
  replace(place, h("p", { class: "soft" }, "Loading …"));
  try {
    const { bands, prefixes } = await data.sample();
    /** @param {import("../types.js").Example[]} examples */
    const shown = (examples) =>
      list(
        examples.map(([prefix, c]) => ({ ...prefixes[prefix], c: c ?? 0 })),
        largest,
        examples.length,
        promoted,
        run,
      );
    const all = whole(prefixes.length);
    replace(
      place,
      h(
        "p",
        { class: "soft small" },
        `${all} distinct random prefixes of the corpus, ranked by this cell’s coefficient and cut into bands: a few of each. The triggers are the strongest of ${whole(run.corpus.scanned_prefixes)}.`,
      ),
      bands
        .map(([from, to], i) => [
          h("h3", {}, `${percentile(from)} to ${percentile(to)} %`, h("span", { class: "soft small" }, range(below.edges, i))),
          ...(below.bands[i].length ? shown(below.bands[i]) : [h("p", { class: "soft small" }, `None: ${all} prefixes are too few for this band.`)]),
        ])
        .flat(),
      h("h3", {}, "Random", h("span", { class: "soft small" }, " whatever the coefficient is")),
      ...shown(below.random),
    );
    if (!place.classList.contains("aligned")) showWhole(place, true);
  } catch (error) {
    replace(place, failure(error));
  }
}

/** @param {number} quantile */
const percentile = (quantile) => Number((quantile * 100).toFixed(1));

/** The coefficients of a band, in words. @param {(number | null)[]} edges the smallest of each band but the last @param {number} i */
function range(edges, i) {
  const [low, high] = [edges[i] ?? null, edges[i - 1] ?? null];
  if (low === null && high === null) return "";
  if (low === null) return ` m at most ${even(high)}`;
  return high === null ? ` m from ${even(low)}` : ` m from ${even(low)} to ${even(high)}`;
}
