// @ts-check
/** Undoes the packing of the large answers (web/pack.py): an export consists mostly of those. */
import { bytes } from "./text.js";

/** @typedef {import("./cells.js").Cells} Cells */
/** @typedef {import("../types.js").Packing} Packing */
/** @typedef {import("../types.js").PackedCell} PackedCell */
/** @typedef {import("../types.js").PackedTrigger} PackedTrigger */
/** @typedef {import("../types.js").PackedHistogram} PackedHistogram */

/**
 * @typedef {{c: number, unit: number, position: number, count: number, tokens: string[], at: number, cut: [number, number], shade: number[] | null}} Trigger
 *   c: the coefficient; at: where its last token is among the tokens; cut: tokens of the unit left out before and after;
 *   shade: one number per token, from −1 to 1, if the run has them
 * @typedef {{edges: number[], counts: number[], n: number}} Histogram
 * @typedef {Omit<PackedCell, "triggers" | "negative" | "histogram"> & {triggers: Trigger[], negative: Trigger[], histogram: Histogram | null}} Cell
 * @typedef {{layer: number, cell: number, logit: number, rank: number}} Speaker
 * @typedef {Record<string, Speaker[]>} Speakers by token
 * @typedef {{text: string, triggers: {layer: number, cell: number, end: number, sign: number}[]}} Unit
 */

/** @param {PackedTrigger} row @param {Packing} packing @returns {Trigger} */
function trigger([c, unit, position, before, after, count, tokens, shades], { separator, shades: letters }) {
  const middle = (letters.length - 1) / 2;
  return {
    c: c ?? 0,
    unit,
    position,
    count,
    tokens: typeof tokens === "string" ? tokens.split(separator) : tokens,
    at: position - before,
    cut: [before, after],
    shade: shades === null ? null : Array.from(shades, (letter) => letters.indexOf(letter) / middle - 1),
  };
}

/** @param {PackedHistogram} packed @returns {Histogram} */
function histogram({ edges: [from, to], counts, n }) {
  const [lo, hi] = [from ?? 0, to ?? 0];
  return { edges: Array.from({ length: counts.length + 1 }, (_, i) => lo + ((hi - lo) * i) / counts.length), counts, n };
}

/** @param {PackedCell} packed @param {Packing} packing @returns {Cell} */
export function cell(packed, packing) {
  const side = (/** @type {PackedTrigger[]} */ rows) => rows.map((row) => trigger(row, packing));
  return {
    ...packed,
    triggers: side(packed.triggers),
    negative: side(packed.negative),
    histogram: packed.histogram && histogram(packed.histogram),
  };
}

/** @param {import("../types.js").Kinds} packed @returns {import("./kinds.js").Kinds} */
export function kinds({ kinds, data }) {
  const pairs = bytes(data);
  return { kinds, labels: Uint16Array.from({ length: pairs.length / 2 }, (_, i) => pairs[2 * i] | (pairs[2 * i + 1] << 8)) };
}

/** @param {import("../types.js").RankedPatterns} packed */
export function patterns(packed) {
  return packed.patterns.map(([place, side, number, kind, description, auprc, covered, read]) => ({
    place,
    side,
    number,
    kind,
    description,
    auprc,
    covered,
    read,
  }));
}

/**
 * @param {import("../types.js").Tokens} packed
 * @param {Cells} cells
 * @returns {{promoted: Speakers, demoted: Speakers, rules: Record<string, import("../types.js").Ranked[]>}}
 */
export function tokens(packed, cells) {
  const side = (/** @type {Record<string, import("../types.js").Speaker[]>} */ rows) =>
    Object.fromEntries(
      Object.entries(rows).map(([token, list]) => [
        token,
        list.map(([place, logit, rank]) => ({ ...cells.split(place), logit: logit ?? 0, rank })),
      ]),
    );
  return { promoted: side(packed.promoted), demoted: side(packed.demoted), rules: packed.rules ?? {} };
}

/**
 * @param {import("../types.js").Units} packed
 * @param {Cells} cells
 * @returns {Record<string, Unit>} by number
 */
export function units(packed, cells) {
  const side = (/** @type {import("../types.js").Held[]} */ rows, /** @type {number} */ sign) =>
    rows.map(([place, end]) => ({ ...cells.split(place), end, sign }));
  return Object.fromEntries(
    Object.entries(packed.units).map(([number, { text, cells: positive, negative }]) => [
      number,
      { text, triggers: [...side(positive, 1), ...side(negative, -1)] },
    ]),
  );
}
