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
 * @typedef {{bands: [number, number][], prefixes: Trigger[]}} Sample
 * @typedef {{layer: number, cell: number, logit: number, rank: number}} Speaker
 * @typedef {Record<string, Speaker[]>} Speakers by token
 * @typedef {{side: 1 | -1, end: number, places: number[]}} Held the triggers of one side that end at one place of a unit
 * @typedef {{text: string, starts: number[], held: Held[], few: Map<number, [number, number]>}} Unit
 *   starts: characters at which its windows start; few: triggers of each side, of cells that have fewer than most
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

/** @param {import("../types.js").Sample} packed @param {Packing} packing @returns {Sample} */
export function sample({ bands, prefixes }, packing) {
  return {
    bands,
    prefixes: prefixes.map(([unit, position, before, after, tokens]) =>
      trigger([null, unit, position, before, after, 1, tokens, null], packing),
    ),
  };
}

/** @param {import("../types.js").Passage} packed @param {string} separator */
export function passage({ first, tokens }, separator) {
  return { first, tokens: typeof tokens === "string" ? tokens.split(separator) : tokens };
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
 */
export function tokens(packed, cells) {
  const side = (/** @type {Record<string, import("../types.js").Speaker[]>} */ rows) =>
    Object.fromEntries(
      Object.entries(rows).map(([token, list]) => [
        token,
        list.map(([place, logit, rank]) => ({ ...cells.split(place), logit: logit ?? 0, rank })),
      ]),
    );
  return {
    ...packed,
    promoted: side(packed.promoted),
    demoted: side(packed.demoted),
    rules: packed.rules ?? {},
    cut: packed.cut ?? {},
  };
}

/** @param {import("../types.js").Units} packed @returns {{triggers: number, units: Record<string, Unit>}} units by number */
export function units({ triggers, units }) {
  const side = (/** @type {import("../types.js").Held[]} */ rows, /** @type {1 | -1} */ side) =>
    rows.map(([end, gaps]) => {
      let place = 0;
      return { side, end, places: gaps.map((gap) => (place += gap)) };
    });
  return {
    triggers,
    units: Object.fromEntries(
      Object.entries(units).map(([number, { text, starts, cells, negative, few }]) => [
        number,
        {
          text,
          starts,
          held: [...side(cells, 1), ...side(negative, -1)],
          few: new Map(Object.entries(few).map(([place, counts]) => [Number(place), counts])),
        },
      ]),
    ),
  };
}
