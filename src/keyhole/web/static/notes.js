// @ts-check
/** What people wrote about a cell: the patterns they found, and a note that is saved while it is typed. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { forget, keep, recall } from "./memory.js";
import { annotateHref, failure } from "./parts.js";
import { counted, visible } from "./text.js";

/** Notes and patterns. @param {data.Cell} cell @param {data.Run} run */
export function written(cell, run) {
  const place = h("div");
  const whole = h(
    "section",
    { class: "written", "aria-labelledby": "notes-title" },
    h("h2", { id: "notes-title" }, "Notes"),
    place,
  );
  data.annotations().then(
    ({ annotations, notes }) => {
      const patterns = annotations.filter(
        (each) => each.layer === cell.layer && each.cell === cell.cell && !each.skipped,
      );
      const note = notes[cell.address] ?? "";
      if (!run.live && !note && !patterns.length) whole.remove();
      replace(
        place,
        patterns
          .map(({ annotator, patterns }) =>
            patterns.map((pattern) =>
              h(
                "p",
                {},
                h("b", {}, pattern.kind),
                ": ",
                h("bdi", {}, visible(pattern.description)),
                h(
                  "span",
                  { class: "soft small" },
                  ` (${counted(pattern.triggers.length, "trigger")}; `,
                  h("bdi", {}, visible(annotator)),
                  ")",
                ),
              ),
            ),
          )
          .flat(),
        run.live ? notebook(cell, note, `keyhole.note.${run.checksum}.${cell.address}`) : note && h("p", { class: "note" }, h("bdi", {}, visible(note))),
        run.live &&
          cell.triggers.length >= run.annotating.least &&
          h("p", {}, h("a", { href: annotateHref(cell.layer, cell.cell) }, "Annotate its triggers")),
      );
    },
    (error) => replace(place, failure(error)),
  );
  return whole;
}

/** A note that is saved while it is typed; what could not be saved stays in this browser. @param {data.Cell} cell @param {string} note @param {string} kept */
function notebook(cell, note, kept) {
  const said = h("span", { class: "soft small", role: "status" });
  let timer = 0;
  let stored = note;
  const save = async () => {
    clearTimeout(timer);
    const text = field.value;
    if (text === stored) {
      forget(kept);
      return;
    }
    try {
      await data.post("api/notes", { layer: cell.layer, cell: cell.cell, text });
      stored = text;
      if (field.value === text) forget(kept);
      said.textContent = "Saved.";
    } catch (error) {
      said.textContent = `Not saved: ${/** @type {Error} */ (error).message}`;
    }
  };
  const field = h("textarea", {
    id: "note",
    rows: 3,
    "aria-label": `A note on ${cell.address}`,
    placeholder: "What does this cell remember?",
    onchange: save,
    oninput: () => {
      said.textContent = "";
      keep(kept, field.value);
      clearTimeout(timer);
      timer = window.setTimeout(save, 1000);
    },
  });
  const left = recall(kept);
  field.value = left ?? note;
  if (left !== null && left !== note)
    replace(said, "Not saved yet. ", h("button", { type: "button", class: "quiet", onclick: save }, "Save"));
  return h("p", { class: "notebook" }, field, said);
}
