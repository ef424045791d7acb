// @ts-check
/** A bar at the lower edge of the window, while there are edits: what they do to the prediction, wherever the reader is. */
import * as data from "./data.js";
import { append, h, replace } from "./dom.js";
import { asked, changesValue, valueSaid } from "./edits.js";
import { token } from "./parts.js";
import { counted, number, percent } from "./text.js";

/** Tokens of each prediction that are shown. */
const SHOWN = 3;

/** @param {import("./edits.js").Again} again */
export function effectBar(again) {
  const said = h("p", { role: "status" });
  const back = h("button", { type: "button", class: "quiet", "data-at": "undo" });
  const node = h(
    "div",
    { class: "effectbar", hidden: true },
    said,
    h(
      "span",
      { class: "controls" },
      back,
      h("button", { type: "button", class: "quiet", onclick: () => again({}, "edits") }, "Show edits"),
    ),
  );
  back.addEventListener("click", () => again({ edits: asked.edits.slice(0, -1) }));
  return {
    node,
    /** @param {data.Prompt | null} found null: it is being read */
    update(found) {
      const last = asked.edits.at(-1);
      node.hidden = !last;
      if (!last) return;
      const what = changesValue(last) ? `: ${valueSaid(last)}` : ` × ${number(last.scale)}`;
      back.textContent = `Take back ${data.axis.address(last.layer, last.cell)}${what}`;
      if (!found) {
        said.textContent = "Reading …";
        return;
      }
      const { chosen, problems } = found;
      const shift = (chosen.logit ?? NaN) - (chosen.original_logit ?? NaN);
      const wrong = problems.length ? `, ${counted(problems.length, "edit")} left out` : "";
      replace(
        said,
        h("b", {}, `${counted(asked.edits.length - problems.length, "edit")} at work${wrong}: `),
        h("span", {}, token(chosen.piece, "agrees"), ` ${percent(chosen.original_p)} → ${percent(chosen.p)}`),
        h("span", { class: "soft" }, ` logit ${shift >= 0 ? "+" : ""}${number(shift, 2)}`),
        h("span", { class: "first" }, " first tokens: ", first(found.original), " → ", first(found.prediction)),
      );
    },
  };
}

/** @param {data.Said[]} said */
function first(said) {
  const place = h("span");
  for (const [piece, p] of said.slice(0, SHOWN)) append(place, token(piece), ` ${percent(p)} `);
  return place;
}
