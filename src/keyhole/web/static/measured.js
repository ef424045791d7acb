// @ts-check
/**
 * A measure of every cell, one byte per cell, as far as it is loaded. A model of few cells is loaded as a whole. Of a large one, the
 * page has bins of cells, each with its strongest cell, and loads single cells only where it needs them.
 */
import { Cells } from "./cells.js";
import * as data from "./data.js";
import { bytes, number, percent } from "./text.js";

/** @typedef {import("../types.js").CellMap} CellMap */
/** @typedef {import("../types.js").Measure} Measure */

/** Blocks that are asked for at most to draw one picture. */
const ASKED = 4;
/** Blocks that are kept. */
const KEPT = 48;

/** An axis of shorter rows, one per layer. @param {Cells} axis @param {(size: number) => number} shorter */
function rows(axis, shorter) {
  let offset = 0;
  return new Cells(
    axis.layers.map(({ layer }, i) => {
      const width = shorter(axis.size(i));
      offset += width;
      return { layer, offset: offset - width, width };
    }),
  );
}

export class Measured {
  /** The bins, as cells of a smaller axis. @type {Cells} */
  #bins;
  /** The largest byte of each bin. @type {Uint8Array} */
  #largest;
  /** Which cell of its bin has it. @type {DataView | null} */
  #strongest;
  /** How many cells have each byte, by layer. @type {(Uint32Array | null)[]} */
  #counts;
  /** Of layers whose cells are all known: the cells, strongest first; and the rank of each. @type {{cells: Uint32Array, ranks: Uint32Array}[]} */
  #orders = [];
  /** @type {Map<string, {rows: Cells, bytes: Uint8Array} | null>} null: asked for */
  #blocks = new Map();

  /**
   * @param {CellMap} map
   * @param {number} which of its measures
   * @param {import("../types.js").MeasureMap} found
   * @param {Cells} axis
   * @param {() => void} loaded called when more is known
   */
  constructor(map, which, found, axis, loaded) {
    this.map = map;
    this.which = which;
    this.measure = map.measures[which];
    this.axis = axis;
    this.loaded = loaded;
    /** why a block could not be loaded */
    this.failed = "";
    this.ends = [found.low, found.high];
    this.unknown = found.unknown;
    this.lo = found.lo ?? 0;
    this.hi = found.hi ?? 0;
    /** cells of a bin */
    this.bin = map.bin;
    this.#bins = rows(axis, (size) => Math.ceil(size / map.bin));
    this.#largest = bytes(found.data);
    this.#strongest = found.strongest === undefined ? null : new DataView(bytes(found.strongest).buffer);
    const counts = found.counts === undefined ? null : new DataView(bytes(found.counts).buffer);
    this.#counts = axis.layers.map((_, layer) =>
      counts ? Uint32Array.from({ length: 256 }, (_, byte) => counts.getUint32(4 * (256 * layer + byte), true)) : null,
    );
  }

  // What a byte says

  /** The number that a byte stands for. @param {number} byte */
  value(byte) {
    const share = byte / this.map.levels;
    return this.measure.scale === "log" && this.lo > 0
      ? this.lo * (this.hi / this.lo) ** share
      : this.lo + (this.hi - this.lo) * share;
  }

  /** A number of the measure as text. @param {number} of */
  shown(of) {
    return this.measure.format === "percent" ? percent(of) : number(of);
  }

  /** @param {number | null} byte null: not loaded */
  said(byte) {
    if (byte === null) return "…";
    if (byte === this.map.unknown) return "unknown";
    return this.measure.kinds ? (this.measure.kinds[byte] ?? "unknown") : this.shown(this.value(byte));
  }

  /** A cell without a number is below all others. @param {number} byte */
  strength(byte) {
    return byte === this.map.unknown ? -1 : byte;
  }

  // By number

  /** The bytes of all cells; null if there are too many for one answer. */
  get every() {
    return this.bin === 1 ? this.#largest : null;
  }

  /** Whether single cells of this range are loaded in all layers; if not, they are asked for, unless they are too many. @param {number} from @param {number} to */
  ready(from, to) {
    if (this.bin === 1) return true;
    const [first, last] = [Math.floor(from / this.map.block), Math.floor((Math.max(from, to - 1)) / this.map.block)];
    let all = true;
    if (last - first >= ASKED) return false;
    for (let block = first; block <= last; block++) all = this.#ask("cells", block) !== null && all;
    return all;
  }

  /**
   * The bytes of a range of a layer: of single cells, which must be ready, or of bins.
   * @param {number} layer @param {number} from @param {number} to cells; multiples of the grain @param {number} grain 1 or `bin`
   */
  row(layer, from, to, grain) {
    if (grain === this.bin) {
      const begin = this.#bins.place(layer, 0);
      return this.#largest.subarray(begin + from / grain, begin + Math.ceil(to / grain));
    }
    const found = new Uint8Array(to - from);
    for (let at = from; at < to; ) {
      const { rows, bytes } = /** @type {{rows: Cells, bytes: Uint8Array}} */ (this.#ask("cells", Math.floor(at / this.map.block)));
      const inside = at % this.map.block;
      const take = Math.min(to - at, rows.size(layer) - inside);
      if (take <= 0) break;
      found.set(bytes.subarray(rows.place(layer, inside), rows.place(layer, inside + take)), at - from);
      at += take;
    }
    return found;
  }

  /** The strongest cell of a bin. @param {number} layer @param {number} bin */
  strongest(layer, bin) {
    const inside = this.#strongest ? this.#strongest.getUint16(2 * this.#bins.place(layer, bin), true) : 0;
    return bin * this.bin + inside;
  }

  /** The byte of a cell; null if it is not loaded yet. @param {number} layer @param {number} cell */
  byte(layer, cell) {
    const bin = Math.floor(cell / this.bin);
    if (this.strongest(layer, bin) === cell) return this.#largest[this.#bins.place(layer, bin)];
    const block = this.#ask("cells", Math.floor(cell / this.map.block));
    return block && block.bytes[block.rows.place(layer, cell % this.map.block)];
  }

  // Strongest first

  /** How many cells of a layer have each byte. @param {number} layer */
  #count(layer) {
    let found = this.#counts[layer];
    if (!found) {
      found = new Uint32Array(256);
      for (const byte of this.#largest.subarray(...this.#bins.span(layer))) found[byte]++;
      this.#counts[layer] = found;
    }
    return found;
  }

  /** The bytes of a range of a layer's ranks, strongest first. @param {number} layer @param {number} from @param {number} to */
  ranked(layer, from, to) {
    const counts = this.#count(layer);
    const found = new Uint8Array(Math.max(0, to - from)).fill(this.map.unknown);
    let rank = 0;
    for (let byte = this.map.levels; byte >= 0 && rank < to; byte--) {
      const next = rank + counts[byte];
      if (next > from) found.fill(byte, Math.max(0, rank - from), Math.min(to, next) - from);
      rank = next;
    }
    return found;
  }

  /** The cells of a layer in order, if all its cells are loaded. @param {number} layer */
  #order(layer) {
    if (this.#orders[layer]) return this.#orders[layer];
    const own = this.#largest.subarray(...this.#bins.span(layer));
    const counts = this.#count(layer);
    const next = new Uint32Array(256);
    let before = 0;
    for (let byte = this.map.levels; byte >= 0; byte--) [next[byte], before] = [before, before + counts[byte]];
    next[this.map.unknown] = before;
    const [cells, ranks] = [new Uint32Array(own.length), new Uint32Array(own.length)];
    own.forEach((byte, cell) => {
      ranks[cell] = next[byte]++;
      cells[ranks[cell]] = cell;
    });
    return (this.#orders[layer] = { cells, ranks });
  }

  /** The cell of a rank; null if it is not loaded yet. @param {number} layer @param {number} rank */
  cellAt(layer, rank) {
    if (this.bin === 1) return this.#order(layer).cells[rank];
    const block = this.#ask("ranks", Math.floor(rank / this.map.block));
    if (!block) return null;
    const view = new DataView(block.bytes.buffer);
    return view.getUint32(4 * block.rows.place(layer, rank % this.map.block), true);
  }

  /** The rank of a cell; null if it is not known. @param {number} layer @param {number} cell */
  rankOf(layer, cell) {
    return this.bin === 1 ? this.#order(layer).ranks[cell] : null;
  }

  // Blocks

  /** A block; null if it is not loaded yet. @param {"cells" | "ranks"} kind @param {number} block */
  #ask(kind, block) {
    const name = `${kind} ${block}`;
    const known = this.#blocks.get(name);
    if (known) {
      this.#blocks.delete(name);
      this.#blocks.set(name, known);
    }
    if (known !== undefined) return known;
    this.#blocks.set(name, null);
    const asked = kind === "cells" ? data.mapCells(this.which, block) : data.mapRanks(this.which, block);
    asked
      .then((found) => {
        if (found.name !== this.measure.name) throw new Error("The run was analyzed again: reload the page.");
        const begin = block * this.map.block;
        const own = rows(this.axis, (size) => Math.max(0, Math.min(this.map.block, size - begin)));
        this.#blocks.set(name, { rows: own, bytes: bytes(found.data) });
        for (const old of this.#blocks.keys()) {
          if (this.#blocks.size <= KEPT) break;
          if (this.#blocks.get(old)) this.#blocks.delete(old);
        }
        this.failed = "";
        this.loaded();
      })
      .catch((error) => {
        this.failed = /** @type {Error} */ (error).message;
        window.setTimeout(() => this.#blocks.delete(name), 2000); // then it is asked for again
        this.loaded();
      });
    return null;
  }
}
