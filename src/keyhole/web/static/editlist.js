// @ts-check
/** The list of edits: changed, saved and loaded here. */
import { parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { added, asked, changesValue, valueSaid } from "./edits.js";
import { editSets } from "./editsets.js";
import { download } from "./files.js";
import { cellLink, label } from "./parts.js";
import { counted, visible } from "./text.js";

/** What is typed for the next edit: the list is drawn anew after every answer. */
const draft = { cell: "", scale: "0", said: "" };

/**
 * @param {data.Prompt["problems"]} problems of the edits, by their number
 * @param {import("./edits.js").Again} again
 * @param {AbortSignal} signal
 */
export function editList(problems, again, signal) {
  /** @type {import("./edits.js").Again} */
  const changed = (change) => {
    draft.said = "";
    again(change);
  };
  /** @param {number} at @param {Partial<data.Edit> | null} change null: remove */
  const change = (at, change) => {
    const others = asked.edits.filter((_, i) => i !== at);
    changed({ edits: change ? added(others, { ...asked.edits[at], ...change }) : others });
  };
  const said = h("p", { class: "soft small", role: "status" }, draft.said);
  const say = (/** @type {string} */ text) => (said.textContent = draft.said = text);
  const which = h("input", {
    id: "edit-cell",
    type: "text",
    placeholder: "L3.17",
    size: 8,
    autocomplete: "off",
    value: draft.cell,
    "data-at": "edit-cell",
    oninput: () => (draft.cell = which.value),
  });
  const scale = h("input", {
    id: "edit-scale",
    type: "number",
    value: draft.scale,
    step: "any",
    "data-at": "edit-scale",
    oninput: () => (draft.scale = scale.value),
  });
  const add = /** @param {Event} event */ (event) => {
    event.preventDefault();
    const address = parse(which.value);
    const at = data.axis.locate(address);
    if (!address || address.cell === null) say("A cell is written L3.17: layer 3, cell 17.");
    else if (!at) say(data.axis.missing(address));
    else if (!Number.isFinite(scale.valueAsNumber)) say("The scale is a number: 0 switches off, 1 changes nothing.");
    else {
      const positions = asked.everywhere || asked.position === null ? null : [asked.position];
      const edit = { layer: at.layer, cell: at.cell, scale: scale.valueAsNumber, positions };
      Object.assign(draft, { cell: "", scale: "0" });
      say("");
      again({ edits: added(asked.edits, edit) });
    }
  };
  const file = h("input", {
    type: "file",
    accept: ".json,application/json",
    class: "hidden",
    "aria-label": "File of edits",
    tabindex: -1,
    onchange: () => {
      const [chosen] = file.files ?? [];
      if (chosen) void load(chosen, say, again);
      file.value = "";
    },
  });
  const empty = asked.edits.length + asked.rejected.length === 0;
  const box = h(
    "div",
    { class: "edits", "data-at": "edits", tabindex: -1 },
    empty && h("p", { class: "soft small" }, "None. A cell’s coefficient is multiplied by the scale: 0 switches it off."),
    h(
      "ul",
      {},
      asked.edits.map((edit, i) => item(edit, i, problems.find((each) => each.edit === i)?.message, change, signal)),
      asked.rejected.map((each, i) =>
        h(
          "li",
          { class: "wrong" },
          h("b", {}, visible(each.text)),
          h(
            "button",
            {
              type: "button",
              class: "plain",
              "aria-label": `Remove ${visible(each.text)}`,
              onclick: () => changed({ rejected: asked.rejected.filter((_, other) => other !== i) }),
            },
            "✕",
          ),
          h("span", { class: "problem" }, visible(each.message)),
        ),
      ),
    ),
    h(
      "form",
      { onsubmit: add },
      h("label", { for: "edit-cell", class: "hidden" }, "Cell to edit"),
      which,
      h("span", {}, "×"),
      h("label", { for: "edit-scale", class: "hidden" }, "Scale"),
      scale,
      h("button", { type: "submit", class: "quiet", "data-at": "edit-add" }, "Add"),
    ),
    said,
    editSets(changed),
    h(
      "div",
      { class: "controls" },
      asked.edits.length > 0 && h("button", { type: "button", class: "quiet", onclick: () => save(said) }, "Save edits"),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "data-at": "edit-load",
          title: "A file that was saved here. It can be dropped on this list too.",
          onclick: () => file.click(),
        },
        "Load edits",
      ),
      file,
      !empty &&
        h("button", { type: "button", class: "quiet", onclick: () => changed({ edits: [], rejected: [] }) }, "Remove all"),
    ),
  );
  box.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    box.classList.add("dropping");
  });
  box.addEventListener("dragleave", () => box.classList.remove("dropping"));
  box.addEventListener("drop", (event) => {
    event.preventDefault();
    box.classList.remove("dropping");
    const [dropped] = event.dataTransfer?.files ?? [];
    if (dropped) void load(dropped, say, again);
  });
  return box;
}

/**
 * @param {data.Edit} edit
 * @param {number} i
 * @param {string | undefined} problem why it does not act
 * @param {(at: number, change: Partial<data.Edit> | null) => void} change
 * @param {AbortSignal} signal
 */
function item(edit, i, problem, change, signal) {
  const name = data.axis.address(edit.layer, edit.cell);
  const by = h("input", {
    type: "number",
    step: "any",
    value: edit.scale,
    "aria-label": `Scale of ${name}`,
    "data-at": `scale:${i}`,
    onchange: () => Number.isFinite(by.valueAsNumber) && change(i, { scale: by.valueAsNumber }),
  });
  const changes = changesValue(edit);
  const here = edit.positions ?? (asked.position === null ? [] : [asked.position]);
  const where = h(
    "select",
    {
      "aria-label": `Where ${name} is scaled`,
      "data-at": `where:${i}`,
      onchange: () => change(i, { positions: where.value === "all" || !here.length ? null : here }),
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
    { class: problem ? "wrong" : null },
    cellLink(edit.layer, edit.cell),
    changes && h("span", { class: "value" }, valueSaid(edit)),
    (!changes || edit.scale !== 1) && h("span", {}, "×"),
    changes ? edit.scale !== 1 && h("span", {}, String(edit.scale)) : by,
    !changes && where,
    h(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Remove the edit of ${name}`,
        "data-at": `remove:${i}`,
        onclick: () => change(i, null),
      },
      "✕",
    ),
    problem && h("span", { class: "problem" }, `Left out: ${visible(problem)}`),
    label(edit.layer, edit.cell, signal),
  );
}

/** Download the edits as the file that `keyhole.load(edits=…)` takes. @param {HTMLElement} said */
async function save(said) {
  try {
    const file = await data.post("api/edits", { edits: asked.edits });
    download("edits.json", JSON.stringify(file, null, 1) + "\n");
    replace(said, "Saved. Apply it: ", h("code", {}, 'keyhole.load(model, edits="edits.json")'));
  } catch (error) {
    said.textContent = /** @type {Error} */ (error).message;
  }
}

/**
 * Take the edits of a file in place of the present ones.
 * @param {File} file
 * @param {(text: string) => void} say
 * @param {import("./edits.js").Again} again
 */
async function load(file, say, again) {
  say(`Loading ${visible(file.name)} …`);
  try {
    const found = /** @type {import("../types.js").LoadedEdits} */ (
      await data.post("api/edits/load", { file: await file.text() })
    );
    const rejected = found.problems.map(({ edit, message }) => ({ text: `edit ${edit} of ${file.name}`, message }));
    if (!found.edits.length && rejected.length)
      return say(`${visible(file.name)} has no edit that is possible here: nothing was changed. ${visible(rejected[0].message)}`);
    const before = asked.edits.length ? `, in place of ${counted(asked.edits.length, "edit")}` : "";
    say(`${counted(found.edits.length, "edit")} of ${visible(file.name)} loaded${before}.`);
    again({ edits: found.edits, rejected });
  } catch (error) {
    say(`${visible(file.name)} was not loaded. ${/** @type {Error} */ (error).message}`);
  }
}
