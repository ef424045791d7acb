// @ts-check
/** A layer in another run: columns of its table, and how far the cells of the two runs agree. */
import { h } from "./dom.js";
import { token } from "./parts.js";
import { tail } from "./rows.js";
import { counted, even, percent, visible } from "./text.js";

/** @typedef {import("../types.js").LayerBeside} LayerBeside */
/** @typedef {import("../types.js").Mean} Mean */
/** @typedef {import("./layer.js").Column} Column */

/**
 * The columns of the other run. Those that it has no numbers for are left out.
 * @param {LayerBeside} found
 * @returns {Column[]}
 */
export function columns({ columns: there }) {
  /** @param {string} name @param {string} title @param {string} explain @param {(number | null)[] | undefined} numbers @param {(value: number | null) => string} say @returns {Column[]} */
  const numeric = (name, title, explain, numbers, say) =>
    numbers ? [{ name, title, explain, kind: "num", key: (_, i) => numbers[i], show: (_, i) => say(numbers[i]) }] : [];
  const { promotes } = there;
  return [
    ...numeric("shared", "Shared", "share of its strongest triggers that are triggers in both runs", there.triggers, percent),
    ...numeric("lasts", "Last", "overlap of the tokens that end its triggers in the two runs", there.last_overlap, percent),
    ...numeric("nexts", "Next", "overlap of the tokens that follow its triggers in the two runs", there.next_overlap, percent),
    {
      name: "theirs",
      title: "Top trigger there",
      explain: "the end of the prefix that fires the key most in the other run; sorted by its last token",
      kind: "text",
      key: (_, i) => there.last[i]?.trim().toLowerCase() ?? null,
      show: (_, i) => tail(there.trigger[i], there.last[i]),
    },
    ...(promotes
      ? [
          /** @type {Column} */ ({
            name: "says",
            title: "Promotes there",
            explain: "the tokens that the value promotes most in the other run",
            kind: "tokens",
            key: (_, i) => promotes[i]?.[0]?.trim().toLowerCase() ?? null,
            show: (_, i) =>
              h(
                "span",
                { class: "promotes" },
                promotes[i].map((piece) => token(piece)),
              ),
          }),
        ]
      : []),
    ...numeric("most", "Largest m there", "the largest coefficient in the other run", there.max, even),
  ];
}

/**
 * How far the layer agrees in the two runs, in a sentence each.
 * @param {LayerBeside} found
 * @param {import("../types.js").AboutBeside} beside
 */
export function summary({ overlap }, beside) {
  const name = h("bdi", {}, visible(beside.name));
  if (!overlap)
    return h("p", { class: "soft overlap" }, "Beside it: ", name, ". Its tokens are others, so triggers cannot be compared.");
  const { n, top, turned, triggers, last, next } = overlap;
  return h(
    "div",
    { class: "overlap" },
    h(
      "p",
      {},
      "Beside it: ",
      name,
      `. Over the ${counted(n, "cell")} with enough triggers in both, of the top ${counted(top, "trigger")} `,
      mean(triggers),
      " are shared, last tokens overlap by ",
      mean(last),
      ", next tokens by ",
      mean(next),
      turned ? `; ${counted(turned, "cell")} ${turned === 1 ? "is" : "are"} read with opposite signs.` : ".",
    ),
    h(
      "p",
      { class: "soft small" },
      "Mean over cells (95 % interval over cells). Dealt: the same with another cell of the layer in the other run, which is what any two cells have in common. ",
      beside.same_model ? null : "The weights are others: what a cell has in common with the cell at its place is chance.",
    ),
  );
}

/** @param {Mean} mean */
function mean({ value, lo, hi, dealt }) {
  const bare = (/** @type {number} */ end) => percent(end).replace(" %", "");
  return h(
    "span",
    { class: "mean" },
    h("b", {}, percent(value)),
    lo !== null && hi !== null ? ` (${bare(lo)}–${bare(hi)})` : "",
    dealt === null ? "" : `, dealt ${percent(dealt)}`,
  );
}
