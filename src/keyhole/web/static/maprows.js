// @ts-check
/**
 * The map's layout in rows: a row is a layer, a column is a cell, or a power of two of cells if they would be narrower than a
 * pixel. Such a column shows the strongest of its cells. By number, every cell keeps its place; strongest first, a row reads as a
 * distribution. A layer with fewer cells than others has a shorter row.
 */
import { whole } from "./text.js";

/** @typedef {import("./measured.js").Measured} Measured */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {{layer: number, index: number}} Spot a layer, and a cell's number or rank in it */

/** Pixels within which the pointer finds the strongest column, where columns are thinner than `THIN`. */
const NEAR = 3;
const THIN = 2;
/** Pixels that a cell is wide at the closest. */
const CLOSEST = 24;

/** @param {number} layers */
export const rowHeight = (layers) => (layers <= 12 ? 24 : layers <= 40 ? 13 : 8);

export class Rows {
  /** @param {import("./cells.js").Cells} axis */
  constructor(axis) {
    this.axis = axis;
    this.sorted = false;
    /** @type {import("./viewport.js").World} */
    this.world = { width: axis.widest, height: axis.depth, flat: true, closest: CLOSEST };
  }

  height() {
    return this.axis.depth * rowHeight(this.axis.depth);
  }

  /** @param {number} at @param {number} count */
  #clamp(at, count) {
    return Math.max(0, Math.min(count - 1, at));
  }

  /** Cells of a column: at least a pixel of them, and at least what is loaded. @param {Measured} measured @param {Viewport} view */
  column(measured, view) {
    let cells = 1;
    while (cells * view.sx < 0.999) cells *= 2;
    if (this.sorted || cells >= measured.bin) return cells;
    const [from, to] = this.#seen(view);
    return measured.ready(from, to) ? cells : measured.bin;
  }

  /** The cells between the left and the right edge. @param {Viewport} view */
  #seen(view) {
    const from = this.#clamp(Math.floor(view.x), this.axis.widest);
    return [from, Math.min(this.axis.widest, Math.ceil(view.x + view.size.width / view.sx))];
  }

  /**
   * The column's bytes and where each is largest, for the columns of a layer.
   * @param {Measured} measured @param {number} layer @param {number} first @param {number} last columns @param {number} cells of a column
   */
  #columns(measured, layer, first, last, cells) {
    const size = this.axis.size(layer);
    const grain = this.sorted || cells < measured.bin ? 1 : measured.bin;
    const [from, to] = [Math.min(first * cells, size), Math.min(last * cells, size)];
    const row = this.sorted ? measured.ranked(layer, from, to) : measured.row(layer, from, to, grain);
    const step = cells / grain;
    const count = Math.ceil(row.length / step);
    const [largest, where] = [new Uint8Array(count), new Uint32Array(count)];
    for (let column = 0; column < count; column++) {
      let best = column * step;
      if (!this.sorted) {
        const end = Math.min(row.length, best + step);
        for (let i = best + 1; i < end; i++) if (measured.strength(row[i]) > measured.strength(row[best])) best = i;
      }
      largest[column] = row[best];
      where[column] = grain === 1 ? from + best : measured.strongest(layer, from / grain + best);
    }
    return { largest, where };
  }

  /** @param {Measured} measured @param {Viewport} view @param {HTMLCanvasElement} canvas @param {Uint32Array} colours by byte */
  draw(measured, view, canvas, colours) {
    const cells = this.column(measured, view);
    const [from, to] = this.#seen(view);
    const [first, last] = [Math.floor(from / cells), Math.ceil(to / cells)];
    canvas.width = last - first;
    canvas.height = this.axis.depth;
    canvas.style.left = `${(first * cells - view.x) * view.sx}px`;
    canvas.style.top = "0";
    canvas.style.width = `${(last - first) * cells * view.sx}px`;
    canvas.style.height = `${view.size.height}px`;
    const paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = paint.createImageData(last - first, this.axis.depth);
    const pixels = new Uint32Array(image.data.buffer);
    for (let layer = 0; layer < this.axis.depth; layer++)
      this.#columns(measured, layer, first, last, cells).largest.forEach((byte, column) => {
        pixels[layer * (last - first) + column] = colours[byte];
      });
    paint.putImageData(image, 0, 0);
  }

  /** The strongest of a column, which must exist. @param {Measured} measured @param {number} layer @param {number} column @param {number} cells */
  #best(measured, layer, column, cells) {
    const begin = column * cells;
    if (!this.sorted && cells < measured.bin && !measured.ready(begin, begin + cells))
      return { index: begin, strength: -1 }; // outside of what is shown
    const { largest, where } = this.#columns(measured, layer, column, column + 1, cells);
    return { index: where[0], strength: measured.strength(largest[0]) };
  }

  /** What is at a pixel. @param {Measured} measured @param {Viewport} view @param {number} px @param {number} py @returns {Spot} */
  pick(measured, view, px, py) {
    const [x, y] = view.at(px, py);
    const layer = this.#clamp(Math.floor(y), this.axis.depth);
    const cells = this.column(measured, view);
    const count = Math.ceil(this.axis.size(layer) / cells);
    const column = this.#clamp(Math.floor(x / cells), count);
    let best = this.#best(measured, layer, column, cells);
    const width = cells * view.sx;
    const reach = this.sorted || width >= THIN ? 0 : Math.floor(NEAR / width);
    for (let away = 1; away <= reach; away++)
      for (const each of [column - away, column + away]) {
        if (each < 0 || each >= count) continue;
        const found = this.#best(measured, layer, each, cells);
        if (found.strength > best.strength) best = found;
      }
    return { layer, index: best.index };
  }

  /** The spot that a key leads to; null if the key does not move. @param {Measured} measured @param {Viewport} view @param {Spot} spot @param {KeyboardEvent} event @returns {Spot | null} */
  step(measured, view, { layer, index }, event) {
    const cells = this.column(measured, view);
    const page = Math.max(1, Math.floor(view.size.width / view.sx / cells));
    const step = event.shiftKey ? Math.max(1, Math.round(page / 20)) : 1;
    const end = event.ctrlKey || event.metaKey;
    if (event.key === "Home") return { layer: end ? 0 : layer, index: 0 };
    if (event.key === "End") {
      const there = end ? this.axis.depth - 1 : layer;
      return { layer: there, index: this.axis.size(there) - 1 };
    }
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -step],
      ArrowRight: [0, step],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      PageUp: [0, -page],
      PageDown: [0, page],
    };
    if (!moves[event.key]) return null;
    const [down, right] = moves[event.key];
    const there = this.#clamp(layer + down, this.axis.depth);
    const column = this.#clamp(Math.floor(index / cells) + right, Math.ceil(this.axis.size(there) / cells));
    return { layer: there, index: this.#best(measured, there, column, cells).index };
  }

  /** The spot where the map begins. @param {Measured} measured @param {Viewport} view @returns {Spot} */
  first(measured, view) {
    return { layer: 0, index: this.#best(measured, 0, 0, this.column(measured, view)).index };
  }

  /** Where a spot is in the world: the column that shows it. @param {Measured} measured @param {Viewport} view @param {Spot} spot */
  where(measured, view, { layer, index }) {
    const cells = this.column(measured, view);
    return { x: Math.floor(index / cells) * cells, y: layer, width: cells, height: 1 };
  }

  /** The middle of a spot's cell in the world. @param {Spot} spot @returns {[number, number]} */
  middle({ layer, index }) {
    return [index + 0.5, layer + 0.5];
  }

  /** The place of a spot's cell; null if it is not loaded yet. @param {Measured} measured @param {Spot} spot */
  place(measured, { layer, index }) {
    const cell = this.sorted ? measured.cellAt(layer, index) : index;
    return cell === null ? null : this.axis.place(layer, cell);
  }

  /** The spot of a place; null if it is not known. @param {Measured} measured @param {number} place @param {Viewport} _view @returns {Spot | null} */
  spot(measured, place, _view) {
    const { layer, cell } = this.axis.split(place);
    const index = this.sorted ? measured.rankOf(layer, cell) : cell;
    return index === null ? null : { layer, index };
  }

  /** A spot's byte; null if it is not loaded yet. @param {Measured} measured @param {Spot} spot @param {Viewport} _view @returns {number | null} */
  byte(measured, { layer, index }, _view) {
    return this.sorted ? measured.ranked(layer, index, index + 1)[0] : measured.byte(layer, index);
  }

  /** What is shown, in words. @param {Measured} measured @param {Viewport} view */
  described(measured, view) {
    const [from, to] = this.#seen(view);
    const cells = this.column(measured, view);
    const what = this.sorted ? "ranks" : "cells";
    const range = view.whole ? "" : `${what} ${whole(from)} to ${whole(to - 1)} of each layer; `;
    const column =
      cells === 1
        ? "a column is a cell"
        : `a column is ${whole(cells)} cells, shown by the strongest: zoom in for single cells`;
    const said = `${range}${column}`;
    return `${said[0].toUpperCase()}${said.slice(1)}.`;
  }
}
