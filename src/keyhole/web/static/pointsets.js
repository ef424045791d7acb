// @ts-check
/**
 * The points of a plane that are drawn: all cells of a small model. Of a large one, the strongest cell of every bin, and single cells
 * where the map is zoomed in.
 */
import * as data from "./data.js";
import { bytes } from "./text.js";

/** @typedef {import("./measured.js").Measured} Measured */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/**
 * @typedef {object} PointSet
 * @property {Uint32Array | null} places of the points; null: point i is the cell at place i
 * @property {Float32Array} x
 * @property {Float32Array} y
 * @property {Uint8Array} bytes of the measure
 * @property {Uint32Array | null} counts cells that a point stands for; null: one
 * @property {Uint32Array} order from the weakest to the strongest
 * @property {(place: number) => number} find the point of a cell; −1 if it is not among them
 */

/** The coordinate of the longer side's end. */
const FAR = 65535;
/** Tiles that are asked for at most to draw one picture. */
const ASKED = 6;

/** Coordinates as shares of the longer side. @param {string} packed */
function coordinates(packed) {
  const view = new DataView(bytes(packed).buffer);
  const count = view.byteLength / 4;
  return {
    x: Float32Array.from({ length: count }, (_, i) => view.getUint16(4 * i, true) / FAR),
    y: Float32Array.from({ length: count }, (_, i) => view.getUint16(4 * i + 2, true) / FAR),
  };
}

/** @param {string} packed */
function numbers(packed) {
  const view = new DataView(bytes(packed).buffer);
  return Uint32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getUint32(4 * i, true));
}

/** Points from the weakest to the strongest. @param {Measured} measured @param {Uint8Array} every */
function ordered(measured, every) {
  const next = new Uint32Array(257);
  const rank = (/** @type {number} */ byte) => measured.strength(byte) + 1;
  for (const byte of every) next[rank(byte) + 1]++;
  for (let i = 1; i < next.length; i++) next[i] += next[i - 1];
  const order = new Uint32Array(every.length);
  every.forEach((byte, i) => (order[next[rank(byte)]++] = i));
  return order;
}

/** Which point a place is; looked up in an index that is made when it is first asked for. @param {Uint32Array} places */
function finder(places) {
  /** @type {Map<number, number> | null} */
  let known = null;
  return (/** @type {number} */ place) => {
    known ??= new Map(Array.from(places, (each, i) => [each, i]));
    return known.get(place) ?? -1;
  };
}

export class PointSets {
  /** What is loaded for a measure. @type {{measured: Measured, sets: Map<string, PointSet | null>} | null} */
  #known = null;
  /** @type {{x: Float32Array, y: Float32Array} | null} */
  #whole = null;

  /**
   * @param {number} number of the plane
   * @param {import("../types.js").Plane} plane
   * @param {import("../types.js").Points | null} whole all cells; null if they are too many
   * @param {() => void} loaded called when more is known
   */
  constructor(number, plane, whole, loaded) {
    this.number = number;
    this.plane = plane;
    this.loaded = loaded;
    /** why something could not be loaded */
    this.failed = "";
    if (whole) this.#whole = coordinates(whole.data);
  }

  /** Whether points may stand for several cells. @param {Measured} measured @param {Viewport} view */
  binned(measured, view) {
    return this.shown(measured, view).some((set) => set.counts !== null);
  }

  /** The points to draw. @param {Measured} measured @param {Viewport} view @returns {PointSet[]} */
  shown(measured, view) {
    if (this.#known?.measured !== measured) this.#known = { measured, sets: new Map() };
    const { sets } = this.#known;
    if (this.#whole && measured.every) {
      let set = sets.get("whole");
      if (!set) {
        set = { places: null, ...this.#whole, bytes: measured.every, counts: null, order: ordered(measured, measured.every), find: (place) => place };
        sets.set("whole", set);
      }
      return [set];
    }
    const bins = this.#ask(measured, -1);
    const [right, lower] = view.at(view.size.width, view.size.height);
    const seen = this.plane.tiles.flatMap(([x0, y0, x1, y1], tile) =>
      x0 / FAR <= right && x1 / FAR >= view.x && y0 / FAR <= lower && y1 / FAR >= view.y ? [tile] : [],
    );
    if (!view.whole && seen.length <= ASKED) {
      const tiles = seen.map((tile) => this.#ask(measured, tile)).filter((set) => set !== null);
      if (tiles.length === seen.length) return tiles;
    }
    return bins ? [bins] : [];
  }

  /** A tile, or the bins (−1); null if it is not loaded yet. @param {Measured} measured @param {number} tile */
  #ask(measured, tile) {
    const { sets } = /** @type {{sets: Map<string, PointSet | null>}} */ (this.#known);
    const name = String(tile);
    const known = sets.get(name);
    if (known !== undefined) return known;
    sets.set(name, null);
    const asked =
      tile < 0 ? data.pointBins(this.number, measured.which) : data.pointCells(this.number, measured.which, tile);
    asked
      .then((found) => {
        if (found.name !== measured.measure.name) throw new Error("The run was analyzed again: reload the page.");
        const [own, places] = [bytes(found.data), numbers(found.places)];
        sets.set(name, {
          places,
          ...coordinates(found.at),
          bytes: own,
          counts: found.counts === undefined ? null : numbers(found.counts),
          order: ordered(measured, own),
          find: finder(places),
        });
        this.failed = "";
        this.loaded();
      })
      .catch((error) => {
        this.failed = /** @type {Error} */ (error).message;
        window.setTimeout(() => sets.delete(name), 2000); // then it is asked for again
        this.loaded();
      });
    return null;
  }
}
