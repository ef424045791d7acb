// @ts-check
/** An export of a part of a run: which cells it has, and what a page says about the others. */
import { counted, whole } from "./text.js";

/** @typedef {import("./cells.js").Cells} Cells */
/** @typedef {import("./cells.js").At} At */

/** Said of a cell in a list that is longer than the export. */
export const ABSENT = "not in this export";

export class Part {
  /** @param {import("../types.js").Part} about @param {Cells} axis */
  constructor(about, axis) {
    this.about = about;
    this.axis = axis;
    /** how many of its cells come before each span */
    this.before = about.spans.map(((sum) => ([from, to]) => (sum += to - from) - (to - from))(0));
  }

  /** The last span that begins at or before a place. @param {number} place */
  #span(place) {
    return this.about.spans.findLastIndex(([from]) => from <= place);
  }

  /** @param {At} at */
  has({ layer, cell }) {
    const place = this.axis.place(layer, cell);
    const i = this.#span(place);
    return i >= 0 && place < this.about.spans[i][1];
  }

  /** Whether it has cells of a layer. @param {number} layer */
  hasLayer(layer) {
    const [begin, end] = this.axis.span(layer);
    return this.about.spans.some(([from, to]) => from < end && to > begin);
  }

  /** Its cell of a number, counted through it; after the last comes the first. @param {number} number */
  at(number) {
    const { cells, spans } = this.about;
    const wanted = ((number % cells) + cells) % cells;
    const i = this.before.findLastIndex((before) => before <= wanted);
    return this.axis.split(spans[i][0] + wanted - this.before[i]);
  }

  /** Its cell some cells further on. @param {At} at @param {number} by */
  step({ layer, cell }, by) {
    const place = this.axis.place(layer, cell);
    const i = this.#span(place);
    if (this.has({ layer, cell })) return this.at(this.before[i] + place - this.about.spans[i][0] + by);
    const next = i < 0 ? 0 : this.before[i] + this.about.spans[i][1] - this.about.spans[i][0];
    return this.at(next + by - (by > 0 ? 1 : 0));
  }

  /** What it has, in words. */
  get said() {
    return `${this.about.said} (${whole(this.about.cells)} of ${counted(this.axis.length, "cell")})`;
  }
}
