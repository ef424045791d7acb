// @ts-check
/**
 * The axis of cells, as keyhole/cells.py has it: cells lie layer by layer, in a layer with experts expert by expert, and
 * layers may differ in width. This module and cells.py are the only ones that turn an address into a place or back.
 *
 * An address names a cell: `L12.345`; with experts `L12.E7.345`; with two stacks `enc.L3.17` and `dec.L3.17`.
 * In the page's links, the cell stands after a slash: `#/L12/345`, `#/L12.E7/345`, `#/enc.L3/17`.
 */
import { whole } from "./text.js";

/** @typedef {import("../types.js").Layer} Layer */
/** @typedef {{layer: number, cell: number}} At a layer, counted through all stacks, and a cell, counted through all experts */
/** @typedef {{stack: string, layer: number, expert: number | null, cell: number | null}} Address what an address says, whether or not it exists */

const ADDRESS =
  /^\s*(?:(enc|dec)\.)?(?:L(\d{1,4})|(\d{1,4})(?=[./]))(?:(?:[./]E(\d{1,4}))?[./](\d{1,7}))?\s*$/i;

/**
 * What a reader typed, or the part of a link that names a cell or a layer; null if it is not an address.
 * The letter L may be left out before a cell, case does not matter, and a slash may replace the dot.
 * @param {string} text
 * @returns {Address | null}
 */
export function parse(text) {
  const match = ADDRESS.exec(text);
  if (!match) return null;
  const [, stack = "", named, bare, expert, cell] = match;
  const number = (/** @type {string | undefined} */ digits) => (digits === undefined ? null : Number(digits));
  return { stack: stack.toLowerCase(), layer: Number(named ?? bare), expert: number(expert), cell: number(cell) };
}

/** The link that an address stands for, whether or not it exists. @param {Address} address */
export function link({ stack, layer, expert, cell }) {
  const name = `#/${stack && `${stack}.`}L${layer}`;
  return cell === null ? name : `${name}${expert === null ? "" : `.E${expert}`}/${cell}`;
}

/** @param {Address} address */
function written({ stack, layer, expert, cell }) {
  return `${stack && `${stack}.`}L${layer}${expert === null ? "" : `.E${expert}`}.${cell}`;
}

export class Cells {
  /** @param {Layer[]} layers as data/run.json lists them */
  constructor(layers) {
    this.layers = layers;
    const last = layers.at(-1);
    /** all cells */
    this.length = last ? last.offset + size(last) : 0;
    /** the number of layers */
    this.depth = layers.length;
    /** cells of the widest layer */
    this.widest = Math.max(0, ...layers.map(size));
  }

  // Layers

  /** The cells of a layer. @param {number} layer */
  size(layer) {
    return size(this.layers[layer]);
  }

  /** The places of a layer's cells, from the first to the one after the last. @param {number} layer @returns {[number, number]} */
  span(layer) {
    const { offset } = this.layers[layer];
    return [offset, offset + this.size(layer)];
  }

  /** A layer's number for the reader: `12`, or `enc.3`. @param {number} layer */
  label(layer) {
    return this.layers[layer].layer.replace("L", "");
  }

  /** The cells of a layer in words: `4,096`, or the range if layers differ. */
  get widths() {
    const least = Math.min(...this.layers.map(size));
    return least === this.widest ? whole(least) : `${whole(least)} to ${whole(this.widest)}`;
  }

  // Places

  /** @param {number} layer @param {number} cell */
  place(layer, cell) {
    return this.layers[layer].offset + cell;
  }

  /** The layer of a place, and the cell's number there. @param {number} place @returns {At} */
  split(place) {
    let [low, high] = [0, this.depth - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.layers[middle].offset <= place) low = middle;
      else high = middle - 1;
    }
    return { layer: low, cell: place - this.layers[low].offset };
  }

  /** The cell some places further on; after the last comes the first. @param {At} at @param {number} by */
  step({ layer, cell }, by) {
    return this.split((this.place(layer, cell) + by + this.length) % this.length);
  }

  // Addresses

  /** @param {number} layer @param {number} cell @returns {Address} */
  parts(layer, cell) {
    const { layer: name, width, experts } = this.layers[layer];
    const { stack, layer: number } = /** @type {Address} */ (parse(name));
    const expert = experts ? Math.floor(cell / width) : null;
    return { stack, layer: number, expert, cell: experts ? cell % width : cell };
  }

  /** @param {number} layer @param {number} cell */
  address(layer, cell) {
    return written(this.parts(layer, cell));
  }

  /** The link to a cell, or to a layer. @param {number} layer @param {number} [cell] */
  href(layer, cell) {
    return cell === undefined ? `#/${this.layers[layer].layer}` : link(this.parts(layer, cell));
  }

  /** The number of a layer on the axis; −1 if there is none. @param {Address} address */
  #number({ stack, layer }) {
    const name = `${stack && `${stack}.`}L${layer}`;
    return this.layers.findIndex((each) => each.layer === name);
  }

  /**
   * Where an address leads; the cell is −1 if it names a layer only. null if the model has no such cell or layer.
   * @param {Address | null} address
   * @returns {At | null}
   */
  locate(address) {
    if (!address) return null;
    const layer = this.#number(address);
    if (layer < 0 || address.cell === null) return layer < 0 ? null : { layer, cell: -1 };
    const { width, experts = 0 } = this.layers[layer];
    const { expert, cell } = address;
    if ((experts > 0) !== (expert !== null) || (expert ?? 0) >= Math.max(1, experts) || cell >= width) return null;
    return { layer, cell: (expert ?? 0) * width + cell };
  }

  /** The cell of an address that exists. @param {string} text @returns {At} */
  find(text) {
    return /** @type {At} */ (this.locate(parse(text)));
  }

  /** Why an address leads nowhere. @param {Address} address */
  missing(address) {
    const layer = this.#number(address);
    const there = this.layers[layer];
    if (there?.experts && address.cell !== null && address.expert === null) {
      const name = there.layer;
      return `'${written(address)}' names no expert, and layer ${name} has ${there.experts}: write ${name}.E0.${address.cell}.`;
    }
    const what =
      address.cell === null
        ? `layer ${address.stack && `${address.stack}.L`}${address.layer}`
        : `cell ${written(address)}`;
    return `There is no ${what}: ${this.#extent(layer)}.`;
  }

  /** What addresses there are. @param {number} layer −1: any */
  #extent(layer) {
    const bare = (/** @type {Layer} */ { layer }) => layer.replace(/^L/, "");
    const [first, last] = [this.layers[0], this.layers[this.depth - 1]];
    const names = `the model has layers ${bare(first)} to ${bare(last)}`;
    const widths = new Set(this.layers.map(({ width }) => width));
    const experts = (/** @type {Layer} */ { experts }) => (experts ? `experts 0 to ${experts - 1}` : "");
    if (widths.size > 1) {
      if (layer < 0) return `${names} of ${Math.min(...widths)} to ${Math.max(...widths)} cells`;
      const there = this.layers[layer];
      const of = experts(there);
      return `layer ${there.layer} has ${of && `${of} of `}cells 0 to ${there.width - 1}`;
    }
    const there = this.layers[Math.max(0, layer)];
    const of = experts(there);
    return `${names}${of && `, ${of},`} of cells 0 to ${there.width - 1}`;
  }
}

/** @param {Layer} layer */
function size({ width, experts }) {
  return width * (experts || 1);
}
