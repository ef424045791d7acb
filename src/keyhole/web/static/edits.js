// @ts-check
/** The prompt that the reader asks for, and its edits: the list of them, changed and saved here. */
import { parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { cellLink, label } from "./parts.js";
import { counted } from "./text.js";

const KEPT = "keyhole.prompt";

/**
 * What the reader asked for. It is kept for the session, so that nothing is lost when they open a cell.
 * @type {{text: string, position: number | null, token: string | null, edits: data.Edit[], everywhere: boolean, by: "effective" | "strongest"}}
 */
export const asked = {
  text: "",
  position: null,
  token: null,
  edits: [],
  everywhere: false,
  by: "effective",
  ...stored(),
};

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  } catch {
    return {};
  }
}

/** @typedef {(change: Partial<typeof asked>) => void} Again changes what is asked, and asks */

export function remember() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(asked));
  } catch {
    // this browser stores nothing: it is kept until the page is left
  }
}

/**
 * Edits with one more, which replaces the others of its cell at the positions where it acts.
 * @param {data.Edit[]} edits
 * @param {data.Edit} edit
 */
export function added(edits, edit) {
  const others = edits.flatMap((each) => {
    if (each.layer !== edit.layer || each.cell !== edit.cell) return [each];
    if (each.positions === null || edit.positions === null) return [];
    const left = each.positions.filter((position) => !edit.positions?.includes(position));
    return left.length ? [{ ...each, positions: left }] : [];
  });
  return [...others, edit];
}

/** @param {Again} again @param {AbortSignal} signal */
export function editList(again, signal) {
  /** @param {number} at @param {Partial<data.Edit> | null} change null: remove */
  const change = (at, change) => {
    const others = asked.edits.filter((_, i) => i !== at);
    again({ edits: change ? added(others, { ...asked.edits[at], ...change }) : others });
  };
  const wrong = h("p", { class: "soft small", role: "status" });
  const which = h("input", { id: "edit-cell", type: "text", placeholder: "L3.17", size: 8, autocomplete: "off" });
  const scale = h("input", { id: "edit-scale", type: "number", value: "0", step: "any" });
  const add = /** @param {Event} event */ (event) => {
    event.preventDefault();
    const address = parse(which.value);
    const at = data.axis.locate(address);
    if (!address || address.cell === null) wrong.textContent = "A cell is written L3.17: layer 3, cell 17.";
    else if (!at) wrong.textContent = data.axis.missing(address);
    else if (!Number.isFinite(scale.valueAsNumber))
      wrong.textContent = "The scale is a number: 0 switches off, 1 changes nothing.";
    else
      again({
        edits: added(asked.edits, {
          layer: at.layer,
          cell: at.cell,
          scale: scale.valueAsNumber,
          positions: asked.everywhere || asked.position === null ? null : [asked.position],
        }),
      });
  };
  return h(
    "div",
    { class: "edits" },
    asked.edits.length === 0 &&
      h("p", { class: "soft small" }, "None. A cell’s coefficient is multiplied by the scale: 0 switches it off."),
    h(
      "ul",
      {},
      asked.edits.map((edit, i) => {
        const name = data.axis.address(edit.layer, edit.cell);
        const by = h("input", {
          type: "number",
          step: "any",
          value: edit.scale,
          "aria-label": `Scale of ${name}`,
          onchange: () => Number.isFinite(by.valueAsNumber) && change(i, { scale: by.valueAsNumber }),
        });
        const here = edit.positions ?? (asked.position === null ? [] : [asked.position]);
        const where = h(
          "select",
          {
            "aria-label": `Where ${name} is scaled`,
            onchange: () => change(i, { positions: where.value === "all" ? null : here }),
          },
          h(
            "option",
            { value: "here", selected: edit.positions !== null },
            edit.positions
              ? `at ${counted(here.length, "token")} (${here.slice(0, 4).join(", ")}${here.length > 4 ? " …" : ""})`
              : "at this token",
          ),
          h("option", { value: "all", selected: edit.positions === null }, "everywhere"),
        );
        return h(
          "li",
          {},
          cellLink(edit.layer, edit.cell),
          h("span", {}, "×"),
          by,
          where,
          h(
            "button",
            {
              type: "button",
              class: "plain",
              "aria-label": `Remove the edit of ${name}`,
              onclick: () => change(i, null),
            },
            "✕",
          ),
          label(edit.layer, edit.cell, signal),
        );
      }),
    ),
    h(
      "form",
      { onsubmit: add },
      h("label", { for: "edit-cell", class: "hidden" }, "Cell to edit"),
      which,
      h("span", {}, "×"),
      h("label", { for: "edit-scale", class: "hidden" }, "Scale"),
      scale,
      h("button", { type: "submit", class: "quiet" }, "Add"),
    ),
    wrong,
    asked.edits.length > 0 &&
      h(
        "div",
        { class: "controls" },
        h("button", { type: "button", class: "quiet", onclick: () => save(wrong) }, "Save edits"),
        h("button", { type: "button", class: "quiet", onclick: () => again({ edits: [] }) }, "Remove all"),
      ),
  );
}

/** Download the edits as the file that `keyhole.load(edits=…)` takes. @param {HTMLElement} said */
async function save(said) {
  try {
    const file = await data.post("api/edits", { edits: asked.edits });
    const url = URL.createObjectURL(new Blob([JSON.stringify(file, null, 1) + "\n"], { type: "application/json" }));
    h("a", { href: url, download: "edits.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    replace(said, "Saved. Apply it: ", h("code", {}, 'keyhole.load(model, edits="edits.json")'));
  } catch (error) {
    said.textContent = /** @type {Error} */ (error).message;
  }
}
