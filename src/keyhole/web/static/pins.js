// @ts-check
/** The cells that people marked, and how a map shows them: a pin on each. */
import * as data from "./data.js";
import { any, markedPlaces } from "./marks.js";

/** What was done to a cell, in words: by its place. @typedef {Map<number, string[]>} Pins */

/** The cells that people annotated, starred, tagged or wrote a note on. @returns {Promise<Pins>} */
export async function pinned() {
  const [{ annotations }, marked] = await Promise.all([data.annotations(), markedPlaces()]);
  /** @type {Pins} */
  const found = new Map();
  for (const { layer, cell, skipped } of annotations)
    if (!skipped) found.set(data.axis.place(layer, cell), ["annotated"]);
  for (const [place, marks] of marked) {
    if (!any(marks)) continue;
    const said = [marks.starred && "starred", ...marks.tags, marks.note.trim() && "note"];
    found.set(place, [...(found.get(place) ?? []), ...said.filter((each) => typeof each === "string" && each)].map(String));
  }
  return found;
}

/**
 * Draw a pin at each of these points.
 * @param {HTMLCanvasElement} canvas over the map, as large as it
 * @param {import("./viewport.js").Size} size of the map, in pixels
 * @param {Iterable<{px: number, py: number, height: number}>} points the middle of a cell's upper edge, and its height
 * @param {{ink: string, paper: string}} colours
 */
export function pin(canvas, size, points, { ink, paper }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(size.width * ratio);
  canvas.height = Math.round(size.height * ratio);
  canvas.style.width = `${size.width}px`;
  canvas.style.height = `${size.height}px`;
  const paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  paint.scale(ratio, ratio);
  paint.lineJoin = "round";
  for (const { px, py, height } of points) {
    if (px < -6 || px > size.width + 6 || py < -height || py > size.height) continue;
    const down = Math.min(height, 9);
    paint.beginPath();
    paint.moveTo(px - 4, py);
    paint.lineTo(px + 4, py);
    paint.lineTo(px, py + down);
    paint.closePath();
    paint.lineWidth = 2.5;
    paint.strokeStyle = paper;
    paint.stroke();
    paint.fillStyle = ink;
    paint.fill();
  }
}
