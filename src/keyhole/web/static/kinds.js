// @ts-check
/** The kinds of cells: a filter for lists of cells, and the labels of one cell with their numbers. */
import * as data from "./data.js";
import { h } from "./dom.js";
import { number, percent } from "./text.js";

/** @typedef {import("../types.js").KindOfCell} Kind */
/** @typedef {{kinds: Kind[], labels: Uint16Array}} Kinds labels: per place of a cell, bit i says whether it is of kind i */

/**
 * Whether a cell is of a kind; of any kind if none is named. No cell is that is not in an export of a part.
 * @param {Kinds} found
 * @param {string} name
 * @returns {(layer: number, cell: number) => boolean}
 */
export function of(found, name) {
  const bit = found.kinds.findIndex((kind) => kind.name === name);
  if (bit < 0) return data.has;
  return (layer, cell) => data.has(layer, cell) && Boolean((found.labels[data.axis.place(layer, cell)] >> bit) & 1);
}

/**
 * A list to choose a kind from, with its label; nothing if the run has no kinds.
 * @param {Kinds} found
 * @param {string} chosen
 * @param {(name: string) => void} choose
 */
export function choice(found, chosen, choose) {
  if (!found.kinds.length) return [];
  const select = h(
    "select",
    { id: "kind", onchange: () => choose(select.value) },
    h("option", { value: "" }, "any kind"),
    found.kinds.map((kind) => h("option", { value: kind.name, selected: kind.name === chosen }, kind.title)),
  );
  return [h("label", { for: "kind" }, "Kind"), select];
}

/**
 * The labels of a cell. Each opens the cells of its kind in the layer, and says in its title what it means.
 * @param {data.Cell} cell
 * @param {Kinds} found
 */
export function labels(cell, found) {
  const stands = new Map((cell.kinds ?? []).map((row) => [row[0], row]));
  const own = found.kinds.filter((kind) => stands.get(kind.name)?.[1]);
  if (!stands.size) return null;
  return h(
    "p",
    { class: "chips kinds", "aria-label": "Kinds of this cell" },
    own.length ? null : h("span", { class: "soft small" }, "Of no particular kind."),
    own.map((kind) => {
      const [, , is, limit] = /** @type {import("../types.js").CellKind} */ (stands.get(kind.name));
      const title = `${kind.meaning} (${kind.number}; ${kind.below ? "at most" : "above"} ${number(limit)})`;
      return h(
        "a",
        { class: "chip", href: `${data.axis.href(cell.layer)}?kind=${kind.name}`, title },
        kind.title,
        h("span", { class: "soft small" }, number(is)),
      );
    }),
  );
}

/** What is known of a cell's gate, in a sentence; nothing if there is none. @param {data.Cell} cell */
export function gate({ gate }) {
  if (!gate) return null;
  const written = (gate.open_plus ?? 0) + (gate.open_minus ?? 0);
  const against = (gate.open_minus ?? 0) + (gate.closed_plus ?? 0);
  return h(
    "p",
    { class: "soft small gate" },
    `Its gate is open on ${percent(gate.open)} of held-out prefixes, where it writes ${percent(written)} of all that it writes; ` +
      `${percent(against)} is written against its own sign. Cosines: gate and up ${number(gate.gate_up, 2)}, ` +
      `gate and value ${number(gate.gate_value, 2)}, up and value ${number(gate.up_value, 2)}.`,
  );
}
