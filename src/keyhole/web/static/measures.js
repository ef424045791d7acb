// @ts-check
/**
 * The measures of every cell, as columns over the axis: fetched when they are first needed, kept as typed arrays, filtered and sorted
 * there. Text of corpora is fetched for the cells that are shown, because that of all cells of a large model is too much.
 */
import * as data from "./data.js";
import { markedPlaces } from "./marks.js";
import { bytes } from "./text.js";

/**
 * @typedef {import("../types.js").CellColumn} Column
 * @typedef {Float32Array | Int32Array | Uint8Array | Uint16Array | Uint32Array} Numbers
 * @typedef {Map<string, string>} Filters by column: `0.5..2` for numbers, `1` or `0`, a label, or a text
 */

/** Text of at most this many parts (blocks, layers) is fetched for a filter or an order. */
const MOST_PARTS = 150;
/** The byte of a level that a cell does not have. */
const NONE = 255;
/** The order of what has no value: after everything, in both directions. */
const LAST = 0xffffffff;

export class Measures {
  /** @param {import("../types.js").CellTable} table @param {data.Run} run */
  constructor({ columns, said }, run) {
    this.columns = columns;
    this.run = run;
    this.said = said;
    /** @type {Map<string, Column>} */
    this.byName = new Map(columns.map((column) => [column.name, column]));
    /** @type {Map<string, Promise<Numbers>>} */
    this.arrays = new Map();
    /** @type {Map<string, Numbers>} those that are here */
    this.here = new Map();
    /** @type {Map<string, Map<number, (string | null)[] | Record<string, string>>>} by column and part */
    this.parts = new Map();
    /** @type {string[]} the vocabulary */
    this.pieces = [];
    /** @type {Map<number, import("../types.js").Marks>} */
    this.marks = new Map();
  }

  // Values

  /** Fetch what a column needs before its cells can be shown. @param {Column} column */
  async ready(column) {
    if (column.missing !== null) return;
    if (column.form === "token" || column.form === "tokens") {
      if (!this.pieces.length) this.pieces = (await data.vocabulary()).pieces;
    }
    if (column.side === "people") this.marks = await markedPlaces();
    if (column.form !== "text") await this.numbers(column);
  }

  /** A column's numbers over the whole axis. @param {Column} column @returns {Promise<Numbers>} */
  numbers(column) {
    const known = this.arrays.get(column.name);
    if (known) return known;
    const asked = this.#numbers(column);
    this.arrays.set(column.name, asked);
    asked.then(
      (array) => this.here.set(column.name, array),
      () => this.arrays.delete(column.name),
    );
    return asked;
  }

  /** @param {Column} column @returns {Promise<Numbers>} */
  async #numbers(column) {
    const { axis } = data;
    if (column.missing !== null) return new Float32Array(axis.length).fill(NaN);
    if (column.name === "kinds") return (await data.kinds()).labels;
    if (column.side === "people") return this.#people(column);
    if (!column.blocks) return this.#axis(column.name);
    const width = column.form === "tokens" ? this.said : 1;
    const make = column.form === "flag" || column.form === "level" ? Uint8Array : column.form.startsWith("token") ? Int32Array : Float32Array;
    const found = new make(axis.length * width);
    const number = this.columns.indexOf(column);
    for (let block = 0; block < column.blocks; block++) {
      const part = bytes((await data.columnBlock(number, block)).data ?? "");
      found.set(new make(/** @type {ArrayBuffer} */ (part.buffer)), block * column.size * width);
    }
    return found;
  }

  /** What follows from the axis. @param {string} name @returns {Numbers} */
  #axis(name) {
    const { axis } = data;
    const found = name === "stack" ? new Uint8Array(axis.length) : new Float32Array(axis.length);
    const names = this.byName.get("stack")?.names ?? [];
    for (let layer = 0; layer < axis.depth; layer++) {
      const [begin, end] = axis.span(layer);
      const { stack } = axis.parts(layer, 0);
      const { experts } = axis.layers[layer];
      for (let place = begin; place < end; place++)
        found[place] =
          name === "place"
            ? place
            : name === "layer"
              ? layer
              : name === "cell"
                ? place - begin
                : name === "stack"
                  ? stack
                    ? names.indexOf(stack)
                    : NONE
                  : experts
                    ? (axis.parts(layer, place - begin).expert ?? NaN)
                    : NaN;
    }
    return found;
  }

  /** @param {Column} column @returns {Promise<Numbers>} */
  async #people({ name, names }) {
    const found = new Uint8Array(data.axis.length);
    if (name === "starred") {
      for (const [place, marks] of await markedPlaces()) found[place] = Number(marks.starred);
      return found;
    }
    const levels = new Uint8Array(data.axis.length);
    const seen = new Uint8Array(data.axis.length);
    for (const { layer, cell, patterns, skipped } of (await data.annotations()).annotations) {
      const place = data.axis.place(layer, cell);
      if (skipped) continue;
      seen[place] = 1;
      for (const { kind } of patterns) levels[place] |= kind === "shallow" ? 1 : 2;
    }
    // none, shallow, semantic, both: the sum of 1 and 2 is the number of the level
    return found.map((_, place) => (seen[place] ? Math.min(levels[place], names.length - 1) : NONE));
  }

  // Texts

  /** Which part of a column's texts a cell is in. @param {Column} column @param {number} place */
  #part(column, place) {
    return column.name === "label" ? data.axis.split(place).layer : Math.floor(place / column.size);
  }

  /** @param {Column} column */
  #local(column) {
    return column.name === "address" || column.side === "people";
  }

  /** Fetch the texts of some cells. @param {Column} column @param {Iterable<number>} places */
  async texts(column, places) {
    if (column.form !== "text" || column.missing !== null || this.#local(column)) return;
    const known = this.parts.get(column.name) ?? new Map();
    this.parts.set(column.name, known);
    /** @type {Set<number>} */
    const wanted = new Set();
    for (const place of places) wanted.add(this.#part(column, place));
    for (const part of known.keys()) wanted.delete(part);
    if (wanted.size > MOST_PARTS)
      throw new data.Failure(
        `“${column.title}” of that number of cells is too much text for a browser. Filter by other columns first, for example by layer, or ask keyhole sql.`,
      );
    const number = this.columns.indexOf(column);
    await Promise.all(
      [...wanted].map(async (part) =>
        known.set(part, column.name === "label" ? await data.labels(part) : ((await data.columnBlock(number, part)).texts ?? [])),
      ),
    );
  }

  /** A text of a cell: null if it has none, undefined if it was not fetched. @param {Column} column @param {number} place @returns {string | null | undefined} */
  text(column, place) {
    if (column.missing !== null) return null;
    if (column.name === "address") {
      const { layer, cell } = data.axis.split(place);
      return data.axis.address(layer, cell);
    }
    if (column.side === "people") {
      const marks = this.marks.get(place);
      return (column.name === "tags" ? marks?.tags.join(", ") : marks?.note) || null;
    }
    const part = this.parts.get(column.name)?.get(this.#part(column, place));
    if (part === undefined) return undefined;
    if (Array.isArray(part)) return part[place % column.size];
    return part[data.axis.split(place).cell] ?? null;
  }

  /** The tokens of a cell in a column of tokens. @param {Column} column @param {number} place @returns {string[]} */
  tokens(column, place) {
    const array = this.here.get(column.name);
    if (!array || column.missing !== null) return [];
    const width = column.form === "tokens" ? this.said : 1;
    return Array.from(array.subarray(place * width, (place + 1) * width), (token) => (token < 0 ? "" : (this.pieces[token] ?? `[${token}]`))).filter(Boolean);
  }

  /** The labels of a cell. @param {Column} column @param {number} place @returns {string[]} */
  labels(column, place) {
    const bits = this.here.get(column.name)?.[place] ?? 0;
    return column.missing !== null ? [] : column.names.filter((_, bit) => (bits >> bit) & 1);
  }

  /**
   * A value as JSON says it, once it is here.
   * @param {Column} column
   * @param {number} place
   * @returns {string | number | boolean | string[] | null}
   */
  value(column, place) {
    if (column.missing !== null) return null;
    if (column.form === "text") return this.text(column, place) ?? null;
    const number = this.here.get(column.name)?.[place] ?? NaN;
    switch (column.form) {
      case "flag":
        return number === 1;
      case "level":
        return number === NONE ? null : (column.names[number] ?? null);
      case "labels":
        return this.labels(column, place);
      case "token":
        return this.tokens(column, place)[0] ?? null;
      case "tokens":
        return this.tokens(column, place);
    }
    return Number.isNaN(number) ? null : number;
  }

  // Filter and order

  /**
   * The places of the cells that pass all filters, in the order of the axis.
   * @param {Filters} filters
   * @returns {Promise<Uint32Array>}
   */
  async select(filters) {
    /** @type {((place: number) => boolean)[]} */
    const tests = [];
    /** @type {[Column, (text: string) => boolean][]} */
    const later = [];
    for (const [name, wanted] of filters) {
      const column = this.byName.get(name);
      if (!column) continue;
      await this.ready(column);
      if (column.form === "text") later.push([column, says(wanted)]);
      else tests.push(this.#test(column, await this.numbers(column), wanted));
    }
    let found = new Uint32Array(cellsShown());
    let count = 0;
    for (const [begin, end] of data.part?.about.spans ?? [[0, data.axis.length]])
      cells: for (let place = begin; place < end; place++) {
        for (const test of tests) if (!test(place)) continue cells;
        found[count++] = place;
      }
    found = found.subarray(0, count);
    for (const [column, test] of later) {
      await this.texts(column, found);
      found = found.filter((place) => test(this.text(column, place) ?? ""));
    }
    return found;
  }

  /** @param {Column} column @param {Numbers} array @param {string} wanted @returns {(place: number) => boolean} */
  #test(column, array, wanted) {
    if (column.missing !== null) return () => false;
    switch (column.form) {
      case "flag":
        return (place) => array[place] === Number(wanted);
      case "level":
        return (place) => array[place] === column.names.indexOf(wanted);
      case "labels": {
        const bit = column.names.indexOf(wanted);
        return (place) => bit >= 0 && Boolean((array[place] >> bit) & 1);
      }
      case "token":
      case "tokens": {
        const test = says(wanted);
        const passes = Uint8Array.from(this.pieces, (piece) => Number(test(piece)));
        const width = column.form === "tokens" ? this.said : 1;
        return (place) => {
          for (let i = place * width; i < (place + 1) * width; i++) if (passes[array[i]]) return true;
          return false;
        };
      }
    }
    const [low, high] = range(wanted) ?? [NaN, NaN];
    return (place) => array[place] >= low && array[place] <= high;
  }

  /**
   * Places in the order of a column; cells without a value come last, equal ones in the order of the axis.
   * @param {Uint32Array} places
   * @param {Column} column
   * @param {boolean} down
   */
  async order(places, column, down) {
    await this.ready(column);
    const keys = column.form === "text" ? await this.#textKeys(places, column) : this.#keys(places, column, await this.numbers(column));
    // one 64-bit number per cell, the key above the row, sorts without a function of JavaScript
    const pairs = new BigUint64Array(places.length);
    const halves = new Uint32Array(pairs.buffer);
    for (let i = 0; i < places.length; i++) {
      halves[2 * i] = i;
      halves[2 * i + 1] = keys[i] === LAST || !down ? keys[i] : LAST - 1 - keys[i];
    }
    pairs.sort();
    return places.map((_, i) => places[halves[2 * i]]);
  }

  /** Numbers from 0 to LAST − 1 in the order of the values. @param {Uint32Array} places @param {Column} column @param {Numbers} array */
  #keys(places, column, array) {
    if (column.missing !== null) return new Uint32Array(places.length).fill(LAST);
    if (column.form === "token" || column.form === "tokens") {
      const ranks = ranked(this.pieces);
      const width = column.form === "tokens" ? this.said : 1;
      return places.map((place) => (array[place * width] < 0 ? LAST : ranks[array[place * width]]));
    }
    if (column.form === "labels") return places.map((place) => ones(array[place]));
    if (array instanceof Uint8Array) return places.map((place) => (column.form === "level" && array[place] === NONE ? LAST : array[place]));
    const float = new Float32Array(1);
    const bits = new Uint32Array(float.buffer);
    return places.map((place) => {
      float[0] = array[place] + 0; // −0 is 0
      if (Number.isNaN(float[0])) return LAST;
      return bits[0] >>> 31 ? ~bits[0] >>> 0 : (bits[0] | 0x80000000) >>> 0;
    });
  }

  /** @param {Uint32Array} places @param {Column} column */
  async #textKeys(places, column) {
    if (column.name === "address") return places.map((place) => place);
    await this.texts(column, places);
    const texts = Array.from(places, (place) => this.text(column, place) || null);
    const ranks = ranked(texts.map((text) => text ?? ""));
    return places.map((_, i) => (texts[i] === null ? LAST : ranks[i]));
  }
}

/** How many cells there are to show: all, or those of an export of a part. */
export const cellsShown = () => data.part?.about.cells ?? data.axis.length;

/** @type {Promise<Measures> | null} */
let known = null;

window.addEventListener(data.NEWS, () => (known = null));

/** The measures of this run, anew after an analysis; what people change is asked for again. */
export async function measures() {
  known ??= Promise.all([data.table(), data.run()])
    .then(([table, run]) => new Measures(table, run))
    .catch((error) => {
      known = null;
      throw error;
    });
  const found = await known;
  for (const { name, side } of found.columns) if (side === "people") found.arrays.delete(name);
  return found;
}

/**
 * `0.5..2`, `3..`, `..2` or `7` as the least and the largest number; null if it is none of these.
 * @param {string} text
 * @returns {[number, number] | null}
 */
export function range(text) {
  const [low, high = low] = text.includes("..") ? text.split("..") : [text];
  const bounds = [low.trim() === "" ? -Infinity : Number(low), high.trim() === "" ? Infinity : Number(high)];
  return bounds.some(Number.isNaN) ? null : [bounds[0], bounds[1]];
}

/** Whether a text contains what is wanted, in any case; in quotes: whether it is equal. @param {string} wanted @returns {(text: string) => boolean} */
function says(wanted) {
  if (wanted.length > 2 && wanted.startsWith('"') && wanted.endsWith('"')) {
    const exact = wanted.slice(1, -1);
    return (text) => text === exact;
  }
  const needle = wanted.toLowerCase();
  return (text) => text.toLowerCase().includes(needle);
}

/** The rank of each text, without regard to case and to spaces around it; equal ones share a rank. @param {string[]} texts */
function ranked(texts) {
  const folded = texts.map((text) => text.trim().toLowerCase());
  const ranks = new Map([...new Set(folded)].sort().map((text, rank) => [text, rank]));
  return Uint32Array.from(folded, (text) => ranks.get(text) ?? 0);
}

/** @param {number} bits */
function ones(bits) {
  let count = 0;
  for (; bits; bits &= bits - 1) count++;
  return count;
}
