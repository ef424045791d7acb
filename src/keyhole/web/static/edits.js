// @ts-check
/** What the reader asks of the model: a text, a position, a token, edits. The one state of the prompt page. */
import * as data from "./data.js";
import { visible } from "./text.js";

const KEPT = "keyhole.prompt";

/**
 * @typedef {{text: string, message: string}} Rejected an edit that names no cell of the model: what was written, and why it cannot be
 * @typedef {"original" | "edited"} Pass
 * @typedef {{text: string, position: number | null, token: string | null, edits: data.Edit[], rejected: Rejected[], everywhere: boolean,
 *   by: "effective" | "strongest", pass: Pass}} Asked
 * @typedef {(change: Partial<Asked>, then?: string) => void} Again changes what is asked, and asks; `then` is the `data-at` of the
 *   element to go to afterwards
 */

/** What the reader asked for. It is kept for the session, so that nothing is lost when they open a cell. @type {Asked} */
export const asked = {
  text: "",
  position: null,
  token: null,
  edits: [],
  rejected: [],
  everywhere: false,
  by: "effective",
  pass: "original",
  ...stored(),
};

/** What this browser stored, as far as it is of the right kind. @returns {Partial<Asked>} */
function stored() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
    /** @type {Record<string, (value: any) => boolean>} */
    const kinds = {
      text: (value) => typeof value === "string",
      position: (value) => Number.isInteger(value) && value >= 0,
      token: (value) => typeof value === "string",
      edits: (value) => Array.isArray(value) && value.every(isEdit),
      everywhere: (value) => typeof value === "boolean",
      by: (value) => value === "effective" || value === "strongest",
      pass: (value) => value === "original" || value === "edited",
    };
    return Object.fromEntries(Object.entries(found).filter(([name, value]) => kinds[name]?.(value)));
  } catch {
    return {};
  }
}

/** @param {any} value */
function isEdit(value) {
  const counts = (/** @type {any} */ each) => Number.isInteger(each) && each >= 0;
  const { layer, cell, scale, positions, towards, by, value: numbers } = value ?? {};
  const moved = towards === undefined ? by === undefined : typeof towards === "string" && Number.isFinite(by);
  const replaced = numbers === undefined || (Array.isArray(numbers) && numbers.every(Number.isFinite));
  return (
    moved &&
    replaced &&
    counts(layer) &&
    counts(cell) &&
    Number.isFinite(scale) &&
    (positions === null || (Array.isArray(positions) && positions.length > 0 && positions.every(counts)))
  );
}

export function remember() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(asked));
  } catch {
    // this browser stores nothing: it is kept until the page is left
  }
}

/** Take out edits of cells that the model does not have, and say so: what is stored may be of another run. */
export function sortOut() {
  const there = (/** @type {data.Edit} */ { layer, cell }) =>
    layer < data.axis.depth && cell < data.axis.size(layer);
  const absent = asked.edits.filter((edit) => !there(edit));
  asked.edits = asked.edits.filter(there);
  for (const { layer, cell } of absent) {
    const address = { stack: "", layer, expert: null, cell };
    asked.rejected.push({ text: `L${layer}.${cell}`, message: data.axis.missing(address) });
  }
}

/**
 * Edits with one more, which replaces the others of its cell at the positions where it acts.
 * @param {data.Edit[]} edits
 * @param {data.Edit} edit
 */
export function added(edits, edit) {
  const { layer, cell, scale, positions, value, towards, by } = edit; // in one order, because answers are kept by what was asked, as JSON
  const kept = { layer, cell, scale, positions, ...(value && { value }), ...(towards !== undefined && { towards, by }) };
  return [...without(edits, edit), kept];
}

/** Whether an edit changes the value, and not only the coefficient. @param {data.Edit} edit */
export const changesValue = (edit) => edit.value !== undefined || edit.towards !== undefined;

/** What an edit does to the value, in words. @param {data.Edit} edit */
export const valueSaid = ({ towards, by }) =>
  towards === undefined ? "value replaced" : `value moved towards ‘${visible(towards)}’ by ${by}`;

/**
 * Edits that leave a cell as it is at the positions of one edit.
 * @param {data.Edit[]} edits
 * @param {{layer: number, cell: number, positions: number[] | null}} edit
 */
export function without(edits, edit) {
  return edits.flatMap((each) => {
    if (each.layer !== edit.layer || each.cell !== edit.cell) return [each];
    if (each.positions === null || edit.positions === null) return [];
    const left = each.positions.filter((position) => !edit.positions?.includes(position));
    return left.length ? [{ ...each, positions: left }] : [];
  });
}

/** Whether an edit acts on a cell at a position. @param {number} layer @param {number} cell @param {number} position */
export function isEdited(layer, cell, position) {
  return asked.edits.some(
    (edit) =>
      edit.layer === layer && edit.cell === cell && (edit.positions === null || edit.positions.includes(position)),
  );
}
