// @ts-check
/** A prompt, layer by layer: what the residual predicts before and after each feed-forward layer, and the layer's first cells. */
import { offButton, ofPass, reading, says, switched } from "./contribution.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { asked, isEdited, remember } from "./edits.js";
import { bar, cellLink, label, token } from "./parts.js";
import { number, percent, size } from "./text.js";

/** Cells per layer that are shown at first. */
const SHOWN = 3;

/** @param {import("./contribution.js").Shown} shown */
export function byLayer(shown) {
  const { found } = shown;
  const rows = h("ol", { class: "layers" });
  const draw = () => {
    const { layers } = reading(found);
    const largest = Math.max(...layers.flatMap((each) => each[asked.by].map((cell) => size(measure(cell)))), 1e-9);
    replace(
      rows,
      layers.map((each) => row(each, largest, shown)),
    );
  };
  draw();
  const pass = ofPass(found);
  return h(
    "section",
    { "aria-labelledby": "layers-title" },
    h("h2", { id: "layers-title" }, "Layer by layer"),
    h(
      "p",
      { class: "soft small" },
      `What the residual predicts before and after each feed-forward layer, and the cells that add most${pass && `, in ${pass}`}.`,
    ),
    h(
      "div",
      { class: "controls" },
      h("span", {}, "Cells by"),
      switched(
        "Cells by",
        [
          ["effective", "effect", "on the chosen token’s logit"],
          ["strongest", "strength", "|m|·‖v‖"],
        ],
        asked.by,
        (by) => {
          asked.by = by;
          remember();
          draw();
        },
      ),
    ),
    rows,
  );
}

/** @param {data.Contribution} cell */
const measure = (cell) => (asked.by === "effective" ? cell.effect : cell.strength);

/**
 * @param {import("../types.js").PromptLayer} each
 * @param {number} largest
 * @param {import("./contribution.js").Shown} shown
 */
function row(each, largest, shown) {
  const cells = each[asked.by].map((cell, i) => contribution(each.layer, cell, largest, shown, i >= SHOWN));
  const left = cells.length - SHOWN;
  const more = h(
    "button",
    {
      type: "button",
      class: "more",
      "aria-label": `${left} more cells of layer ${data.axis.label(each.layer)}`,
      onclick: () => {
        cells.forEach((cell) => (cell.hidden = false));
        more.remove();
      },
    },
    `${left} more`,
  );
  return h(
    "li",
    {
      class: each.before[0][0] === each.after[0][0] ? null : "changed",
      "data-at": `layer:${each.layer}`,
      tabindex: -1,
    },
    h("a", { class: "address", href: data.axis.href(each.layer) }, data.axis.layers[each.layer].layer),
    h("div", { class: "beforeafter" }, guess(each.before), h("span", { class: "soft" }, "→"), guess(each.after)),
    h("ul", { class: "contributions" }, cells),
    left > 0 && more,
  );
}

/** What a layer predicts: the first token; the others are in its title. @param {data.Said[]} said */
function guess(said) {
  const [piece, p] = said[0];
  const shown = token(piece);
  shown.title = said.map(([piece, p]) => `${piece} ${percent(p)}`).join("\n");
  return h("span", { class: "guess" }, shown, h("span", { class: "num soft" }, percent(p)));
}

/**
 * @param {number} layer
 * @param {data.Contribution} cell
 * @param {number} largest
 * @param {import("./contribution.js").Shown} shown
 * @param {boolean} hidden
 */
function contribution(layer, cell, largest, shown, hidden) {
  const value = measure(cell) ?? 0;
  return h(
    "li",
    {
      hidden,
      class: isEdited(layer, cell.cell, shown.found.position) ? "edited" : null,
      title: `m ${number(cell.m)}, strength ${number(cell.strength)}, effect ${number(cell.effect)}`,
    },
    cellLink(layer, cell.cell),
    says(layer, cell, shown.signal),
    bar(Math.abs(value) / largest, value < 0 ? "unsay" : asked.by === "effective" ? "say" : "fire"),
    h("span", { class: "num soft" }, (value > 0 && asked.by === "effective" ? "+" : "") + number(value, 2)),
    offButton(layer, cell.cell, "layer", shown),
    label(layer, cell.cell, shown.signal),
  );
}
