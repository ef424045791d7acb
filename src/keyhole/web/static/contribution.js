// @ts-check
/** A cell in the lists of a prompt: the button that switches it off, and what it writes at the position. */
import * as data from "./data.js";
import { h, replace, whenSeen } from "./dom.js";
import { added, asked, isEdited, without } from "./edits.js";
import { different, token } from "./parts.js";

/** @typedef {{found: data.Prompt, again: import("./edits.js").Again, signal: AbortSignal}} Shown an answer, and what its lists need */

/**
 * The pass that the reader chose: its layers, and its cells of all layers.
 * @param {data.Prompt} found
 * @returns {import("../types.js").Reading}
 */
export function reading(found) {
  return asked.pass === "original" && found.without ? found.without : found;
}

/** The edits of the pass that the reader chose. */
export const editsOfPass = () => (asked.pass === "edited" ? asked.edits : []);

/** Which pass the numbers are of, in words. @param {data.Prompt} found */
export function ofPass(found) {
  if (!found.edited) return "";
  return asked.pass === "original" ? "the original pass, without the edits" : "the pass with the edits";
}

/**
 * A button that switches a cell off, and on again.
 * @param {number} layer
 * @param {number} cell
 * @param {string} list the list it stands in
 * @param {Shown} shown
 */
export function offButton(layer, cell, list, { found, again }) {
  const pressed = isEdited(layer, cell, found.position);
  const name = data.axis.address(layer, cell);
  const edit = { layer, cell, positions: asked.everywhere ? null : [found.position] };
  return h(
    "button",
    {
      type: "button",
      class: "plain off",
      "aria-label": `Switch off ${name}`,
      "aria-pressed": String(pressed),
      title: pressed ? `${name} is edited here: take the edit back` : `Switch off ${asked.everywhere ? "everywhere" : "at this token"}`,
      "data-at": `off:${list}:${name}`,
      onclick: () =>
        again({
          edits: pressed
            ? without(asked.edits, edit)
            : added(asked.edits, { ...edit, scale: 0 }),
        }),
    },
    "⊘",
  );
}

/**
 * What the cell writes here: the first tokens that its value promotes; the first it demotes if the coefficient is negative.
 * @param {number} layer
 * @param {data.Contribution} cell
 * @param {AbortSignal} signal
 * @param {number} [count]
 */
export function says(layer, cell, signal, count = 1) {
  const place = h("span", { class: "says" });
  whenSeen(
    place,
    async () => {
      const [said] = (await data.cell(layer, cell.cell).catch(() => null))?.values ?? [];
      const tokens = ((cell.m ?? 0) < 0 ? said?.demoted : said?.promoted) ?? [];
      replace(
        place,
        different(tokens, count).map((piece) => token(piece)),
      );
    },
    signal,
  );
  return place;
}

/**
 * Buttons of which one is pressed.
 * @template {string} T
 * @param {string} name
 * @param {[T, string, string][]} choices value, text, title
 * @param {T} chosen
 * @param {(value: T) => void} choose
 */
export function switched(name, choices, chosen, choose) {
  const buttons = choices.map(([value, text, title]) =>
    h(
      "button",
      {
        type: "button",
        title,
        "aria-pressed": String(value === chosen),
        "data-at": `${name}:${value}`,
        onclick: () => {
          buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(choices[i][0] === value)));
          choose(value);
        },
      },
      text,
    ),
  );
  return h("span", { class: "switch", role: "group", "aria-label": name }, buttons);
}
