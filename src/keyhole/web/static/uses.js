// @ts-check
/** What a cell was used for: when pruning takes it, the texts that are forgotten without it, edits of the run's model. */

import { h } from "./dom.js";
import { number, percent, visible } from "./text.js";
import * as data from "./data.js";

/** Characters of a text that are shown. */
const SHOWN = 60;

/** What is known; nothing if nothing is. @param {data.Cell} cell */
export function uses(cell) {
  const found = cell.uses;
  if (!found || (!found.goes && !found.leaks.length && !found.edits.length)) return null;
  return h(
    "ul",
    { class: "plain soft small uses", "aria-label": "Uses of this cell" },
    found.goes && h("li", {}, pruned(found.goes)),
    found.leaks.map((leak) => h("li", {}, leaked(leak))),
    found.edits.map((edit) => h("li", {}, edited(edit))),
  );
}

/** @param {import("../types.js").GoesAt} goes */
function pruned({ method, scope, share }) {
  const layer = scope === "global" ? "of its layer, in the order of a comparison of all layers" : "of its layer";
  return (share ?? 1) >= 1
    ? `Pruning (${method}): the last to go ${layer}.`
    : `Pruning (${method}): goes when ${percent(share)} of the cells ${layer} go.`;
}

/** @param {import("../types.js").InLeak} leak */
function leaked({ rank, method, place, cells, prefix, continuation }) {
  return [
    `Leak ${rank}: after “${visible(tail(prefix))}” the model says “`,
    h("bdi", {}, visible(head(continuation))),
    `” by heart. It is forgotten if ${cells === 1 ? "this cell is" : `${cells} cells are`} switched off; in the ranking “${method}” this is number ${place} of them.`,
  ];
}

/** @param {import("../types.js").CellEdit} edit */
function edited({ scale, towards, by, replaced }) {
  const parts = [
    scale === 0 ? "switched off" : scale !== null && scale !== 1 ? `its coefficient times ${number(scale)}` : null,
    towards !== null ? `its value moved towards “${visible(towards)}” by ${number(by)}` : null,
    replaced ? "its value replaced" : null,
  ].filter(Boolean);
  return `The scanned model was edited here: ${parts.join(", ") || "an edit that changes nothing"}.`;
}

/** @param {string} text */
const head = (text) => (text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text);
/** @param {string} text */
const tail = (text) => (text.length > SHOWN ? `…${text.slice(-SHOWN)}` : text);
