// @ts-check
/** The large answers travel packed, for an export is mostly those. Here they get their names back. */

/** A letter a shade: the middle one is 0, the ends are ∓127. */
const SHADES = Array.from({ length: 92 }, (_, i) => String.fromCharCode(35 + i)).filter((letter) => letter !== "\\");

/**
 * @param {any[]} row
 * @returns {import("./data.js").Trigger}
 */
function trigger([c, unit, position, before, after, count, tokens, shades]) {
  const shown = typeof tokens === "string" ? tokens.split("|") : tokens;
  /** @type {import("./data.js").Trigger} */
  const found = { c, unit, position, count, tokens: shown, at: position - before, cut: [before, after] };
  if (shades !== undefined) {
    const bytes = [...shades].map((letter) => Math.round(((SHADES.indexOf(letter) - 45) * 127) / 45) & 255);
    found.shade = btoa(String.fromCharCode(...bytes));
  }
  return found;
}

/**
 * @param {any} packed
 * @returns {import("./data.js").Cell}
 */
export function cell(packed) {
  const found = { ...packed, triggers: packed.triggers.map(trigger), negative: packed.negative.map(trigger) };
  if (packed.histogram) {
    const {
      edges: [lo, hi],
      counts,
    } = packed.histogram;
    const edges = Array.from({ length: counts.length + 1 }, (_, i) => lo + ((hi - lo) * i) / counts.length);
    found.histogram = { ...packed.histogram, edges };
  }
  return found;
}

/**
 * @param {Record<string, Record<string, number[][]>>} packed
 * @param {number} cells cells in a layer
 * @returns {any} rows [layer, cell, logit, rank]
 */
export function tokens(packed, cells) {
  const side = (/** @type {Record<string, number[][]>} */ rows) =>
    Object.fromEntries(
      Object.entries(rows).map(([token, list]) => [
        token,
        list.map(([place, ...rest]) => [Math.floor(place / cells), place % cells, ...rest]),
      ]),
    );
  return { promoted: side(packed.promoted), demoted: side(packed.demoted) };
}

/**
 * @param {{units: Record<string, {text: string, cells: number[][]}>}} packed
 * @param {number} cells cells in a layer
 * @returns {{units: Record<string, {text: string, cells: number[][]}>}} rows [layer, cell, end, sign]
 */
export function units(packed, cells) {
  const rows = (/** @type {number[][]} */ list) =>
    list.map(([place, end, sign]) => [Math.floor(place / cells), place % cells, end, sign ?? 1]);
  return {
    units: Object.fromEntries(
      Object.entries(packed.units).map(([unit, held]) => [unit, { text: held.text, cells: rows(held.cells) }]),
    ),
  };
}
