// @ts-check
/** Text of corpora and vocabularies: made visible, split into words, hashed. Python follows the same rules. */

/** @type {Record<string, string>} */
const SIGNS = { "\n": "⏎", "\r": "␍", "\t": "⇥" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu;
const WORD = /[\p{L}\p{M}\p{N}'’]+/gu;

/**
 * Text without hidden characters: line ends, control, direction and format characters become visible signs.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, (c) => SIGNS[c] ?? "�");
}

/**
 * A token that is only white space, spelled out.
 * @param {string} piece
 */
export function blank(piece) {
  if (!piece) return "(empty)";
  return Array.from(piece, (c) => (c === " " ? "␣" : (SIGNS[c] ?? `U+${hex(c)}`))).join("");
}

/** @param {string} c */
function hex(c) {
  return /** @type {number} */ (c.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0");
}

/**
 * The words of a text, lower-cased.
 * @param {string} text
 * @returns {string[]}
 */
export function words(text) {
  return (text.match(WORD) ?? []).map((word) => word.toLowerCase());
}

/**
 * FNV-1a, 32 bits, of a text's UTF-8.
 * @param {string} text
 */
export function fnv1a(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/**
 * @param {string} base64
 * @returns {Uint8Array}
 */
export function bytes(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/**
 * A number in few digits, with a real minus.
 * @param {number | null | undefined} value
 * @param {number} digits
 */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(1).replaceAll("-", "−");
  const text =
    Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

/**
 * A number with three digits; zeros at the end are kept, so that a column of numbers lines up.
 * @param {number | null | undefined} value
 */
export function even(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1000 || Math.abs(value) < 1e-3 ? number(value) : value.toPrecision(3).replaceAll("-", "−");
}

/** The size of a number, whatever its sign; 0 if there is none. @param {number | null} value */
export function size(value) {
  return Math.abs(value ?? 0);
}

/** @param {number} value */
export function whole(value) {
  return value.toLocaleString("en-US");
}

/**
 * A share in percent.
 * @param {number | null | undefined} value
 */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  const share = value * 100;
  if (share > 0 && share < 0.01) return "<0.01 %";
  return `${share >= 10 || share === 0 ? share.toFixed(0) : share >= 1 ? share.toFixed(1) : share.toFixed(2)} %`;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} many
 */
export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}
