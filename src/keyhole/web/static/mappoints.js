// @ts-check
/**
 * The map's layout as a plane: every cell is a point where its value, or its key, lies. Strong cells are drawn over weak ones. The
 * pointer finds the nearest point.
 */
import { PointSets } from "./pointsets.js";
import { counted, percent } from "./text.js";

/** @typedef {import("./measured.js").Measured} Measured */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {import("./pointsets.js").PointSet} PointSet */
/** @typedef {import("./maprows.js").Spot & {x?: number, y?: number}} Spot the layer is 0, the index is the cell's place */

/** Pixels that the longer side has at the closest: coordinates are then seven pixels apart. */
const CLOSEST = 400_000;
/** Upper bound on the height in pixels. */
const TALL = 560;

export class Points {
  /**
   * @param {import("./cells.js").Cells} axis
   * @param {number} number of the plane
   * @param {import("../types.js").Plane} plane
   * @param {import("../types.js").Points | null} whole all cells; null if they are too many
   * @param {() => void} loaded called when more points are known
   */
  constructor(axis, number, plane, whole, loaded) {
    this.axis = axis;
    this.plane = plane;
    this.sets = new PointSets(number, plane, whole, loaded);
    /** @type {import("./viewport.js").World} */
    this.world = { width: plane.width ?? 1, height: plane.height ?? 1, flat: false, closest: CLOSEST };
    this.sorted = false;
  }

  /** @param {number} width */
  height(width) {
    return Math.max(200, Math.min(TALL, Math.round((width * this.world.height) / this.world.width)));
  }

  /** The side of a point in pixels: it grows with the zoom, and where it stands for many cells. @param {Viewport} view @param {number} count */
  #side(view, count) {
    if (count) return 2 + Math.min(4, Math.log10(count));
    const few = Math.max(1, Math.min(3, Math.sqrt(60000 / this.axis.length)));
    return Math.min(12, few * (view.sx / view.least) ** 0.6 + 0.6);
  }

  /** @param {Measured} measured @param {Viewport} view @param {HTMLCanvasElement} canvas @param {Uint32Array} colours by byte */
  draw(measured, view, canvas, colours) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(view.size.width * ratio), Math.round(view.size.height * ratio)];
    canvas.width = width;
    canvas.height = height;
    canvas.style.left = canvas.style.top = "0";
    canvas.style.width = `${view.size.width}px`;
    canvas.style.height = `${view.size.height}px`;
    const paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = paint.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const [kx, ky] = [view.sx * ratio, view.sy * ratio];
    for (const { x, y, bytes, counts, order } of this.sets.shown(measured, view))
      for (const i of order) {
        const side = Math.max(1, Math.round(this.#side(view, counts ? counts[i] : 0) * ratio));
        const left = Math.round((x[i] - view.x) * kx - side / 2);
        const top = Math.round((y[i] - view.y) * ky - side / 2);
        if (left < -side || top < -side || left >= width || top >= height) continue;
        const [x0, x1] = [Math.max(0, left), Math.min(width, left + side)];
        for (let row = Math.max(0, top); row < Math.min(height, top + side); row++)
          pixels.fill(colours[bytes[i]], row * width + x0, row * width + x1);
      }
    paint.putImageData(image, 0, 0);
  }

  /**
   * The point for which a number is smallest; of several, the strongest. null if it is infinite for all.
   * @param {Measured} measured @param {Viewport} view @param {(x: number, y: number) => number} far @returns {Spot | null}
   */
  #least(measured, view, far) {
    /** @type {PointSet | null} */
    let set = null;
    let [best, distance, strength] = [0, Infinity, -2];
    for (const each of this.sets.shown(measured, view))
      for (let i = 0; i < each.x.length; i++) {
        const away = far(each.x[i], each.y[i]);
        if (away > distance || away === Infinity) continue;
        const strong = measured.strength(each.bytes[i]);
        if (away < distance || strong > strength) [set, best, distance, strength] = [each, i, away, strong];
      }
    return set && this.#spot(set, best);
  }

  /** @param {PointSet} set @param {number} i @returns {Spot} */
  #spot({ places, x, y }, i) {
    return { layer: 0, index: places ? places[i] : i, x: x[i], y: y[i] };
  }

  /** The nearest point. @param {Measured} measured @param {Viewport} view @param {number} px @param {number} py */
  pick(measured, view, px, py) {
    const [x, y] = view.at(px, py);
    return this.#least(measured, view, (a, b) => (a - x) ** 2 + (b - y) ** 2);
  }

  /**
   * The spot that a key leads to: an arrow leads to the nearest point in its direction, Page Up and Page Down to the cell before and
   * after, Home and End to the first and the last cell, if all cells are loaded. null if the key does not move.
   * @param {Measured} measured @param {Viewport} view @param {Spot} spot @param {KeyboardEvent} event @returns {Spot | null}
   */
  step(measured, view, spot, event) {
    const last = this.axis.length - 1;
    /** @type {Record<string, number>} */
    const numbered = { Home: 0, End: last, PageUp: Math.max(0, spot.index - 1), PageDown: Math.min(last, spot.index + 1) };
    if (event.key in numbered) return this.spot(measured, numbered[event.key], view);
    /** @type {Record<string, [number, number]>} */
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const way = ways[event.key];
    if (!way) return null;
    const far = event.shiftKey ? 40 / view.sx : 0;
    const [x, y] = this.middle(spot);
    const [fromX, fromY] = [x + way[0] * far, y + way[1] * far];
    const next = this.#least(measured, view, (a, b) => {
      const [dx, dy] = [a - fromX, b - fromY];
      const along = dx * way[0] + dy * way[1];
      const across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      return along > 0 && across <= along ? along * along + across * across : Infinity;
    });
    return next ?? spot;
  }

  /** The spot where the map begins: the cell nearest to the middle. @param {Measured} measured @param {Viewport} view */
  first(measured, view) {
    return this.pick(measured, view, view.size.width / 2, view.size.height / 2);
  }

  /** @param {Measured} _measured @param {Viewport} _view @param {Spot} spot */
  where(_measured, _view, spot) {
    const [x, y] = this.middle(spot);
    return { x, y, width: 0, height: 0 };
  }

  /** @param {Spot} spot @returns {[number, number]} */
  middle({ x = 0, y = 0 }) {
    return [x, y];
  }

  /** @param {Measured} _measured @param {Spot} spot @returns {number | null} */
  place(_measured, { index }) {
    return index;
  }

  /** The spot of a place; null if it is not loaded. @param {Measured} measured @param {number} place @param {Viewport} view @returns {Spot | null} */
  spot(measured, place, view) {
    for (const set of this.sets.shown(measured, view)) {
      const i = set.find(place);
      if (i >= 0) return this.#spot(set, i);
    }
    return null;
  }

  /** A spot's byte; null if it is not loaded. @param {Measured} measured @param {Spot} spot @param {Viewport} view @returns {number | null} */
  byte(measured, { index }, view) {
    for (const { bytes, find } of this.sets.shown(measured, view)) {
      const i = find(index);
      if (i >= 0) return bytes[i];
    }
    return null;
  }

  /** What is shown, in words. @param {Measured} measured @param {Viewport} view */
  described(measured, view) {
    if (this.sets.failed) return this.sets.failed;
    if (this.sets.binned(measured, view))
      return "A point is the strongest of the cells around it, larger if they are many: zoom in for single cells and their pins.";
    if (view.whole) return "A point is a cell.";
    let inside = 0;
    const [right, lower] = view.at(view.size.width, view.size.height);
    for (const { x, y } of this.sets.shown(measured, view))
      for (let i = 0; i < x.length; i++)
        if (x[i] >= view.x && x[i] <= right && y[i] >= view.y && y[i] <= lower) inside++;
    return `A point is a cell: ${counted(inside, "cell")} in view.`;
  }
}

/**
 * What the plane is made of, and whether it means something.
 * @param {import("../types.js").Planes} planes
 * @param {import("../types.js").Plane} plane
 */
export function about({ method, gated }, { name, explained, shuffled }) {
  const vectors =
    name === "values"
      ? "the directions of all values, in their cells’ orientation"
      : gated
        ? "the directions of all keys: gate and up one after the other, up in the cell’s orientation"
        : "the directions of all keys";
  const how =
    method === "umap"
      ? `UMAP of ${vectors}: near points are alike, far distances mean little. Their first two principal components`
      : `The first two principal components of ${vectors}. They`;
  const [own, chance] = [explained ?? 0, shuffled ?? 0];
  const little = own < 1.5 * chance ? " It is hardly more: do not read much into where a point lies." : "";
  return `${how} hold ${percent(own)} of the variance; with every coordinate dealt out over the cells it would be ${percent(chance)}.${little}`;
}
