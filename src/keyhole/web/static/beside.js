// @ts-check
/** The same cell in another run: another corpus, or a control. It stands beside the key's own triggers. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { different, failure, token } from "./parts.js";
import { counted, percent, visible } from "./text.js";

const SHOWN = 8;
const PROMOTED = 6;

/**
 * @typedef {(triggers: data.Trigger[], largest: number, shown: number, said: data.Said[] | undefined) => Node[]} List
 *   makes the list of a side's triggers
 */

/**
 * The section of a cell's page that shows the other run; null if there is none.
 * @param {data.Run} run
 * @param {number} layer
 * @param {number} cell
 * @param {List} list
 */
export function inOther(run, layer, cell, list) {
  const { beside } = run;
  if (!beside) return null;
  if (beside.why)
    return h(
      "p",
      { class: "soft small" },
      "Beside this run: ",
      h("bdi", {}, visible(beside.name)),
      `. ${visible(beside.why)}`,
    );
  const place = h("div", {}, h("p", { class: "soft" }, "Loading …"));
  data
    .beside(layer, cell)
    .then((found) => replace(place, shown(found, beside, list)))
    .catch((error) => replace(place, failure(error)));
  return h(
    "section",
    { class: "column inother", "aria-labelledby": "beside-title" },
    h("h2", { class: "key", id: "beside-title" }, "In ", h("bdi", {}, visible(beside.name))),
    h(
      "p",
      { class: "soft small" },
      beside.same_model
        ? `the same cell, over ${beside.same_text ? "the same" : "another"} text`
        : "a cell of other weights at the same place: what it has in common with this one is chance",
    ),
    place,
  );
}

/** @param {data.Beside} found @param {NonNullable<data.Run["beside"]>} beside @param {List} list */
function shown({ cell, overlap, turned }, beside, list) {
  const largest = Math.max(...[...cell.triggers, ...cell.negative].map((trigger) => Math.abs(trigger.c)), 1e-9);
  const said = cell.values[0];
  return [
    agreement(overlap),
    turned && h("p", { class: "soft small" }, "There the cell is read with the opposite sign."),
    cell.triggers.length === 0
      ? h("p", { class: "missing" }, "Dead there: no prefix of that corpus makes this key fire.")
      : h("div", { class: "triggers aligned" }, list(cell.triggers, largest, SHOWN, said?.promoted)),
    !beside.same_model &&
      said &&
      h(
        "p",
        { class: "promotes" },
        h("span", { class: "soft small" }, "Its value there promotes "),
        different(said.promoted, PROMOTED).map((piece) => token(piece)),
      ),
  ];
}

/** @param {import("../types.js").Overlap} overlap */
function agreement({ top, triggers, last, next }) {
  if (triggers === null && last === null && next === null)
    return h(
      "p",
      { class: "soft small overlap" },
      "How far the triggers agree cannot be said: too few in one run, or other tokens.",
    );
  return h(
    "p",
    { class: "small overlap" },
    `Of the top ${counted(top, "trigger")}, ${percent(triggers)} are shared. Their last tokens overlap by ${percent(last)}, the next ones by ${percent(next)}.`,
  );
}
