// @ts-check
/** What people wrote about a cell: patterns they found, and a note that saves itself. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { failure } from "./parts.js";
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
        run.live ? notebook(cell, note) : note && h("p", { class: "note" }, h("bdi", {}, visible(note))),
        run.live &&
          cell.triggers.length > 2 &&
          h("p", {}, h("a", { href: `#/annotate/L${cell.layer}/${cell.cell}` }, "Annotate its triggers")),
      );
    },
    (error) => replace(place, failure(error)),
  );
  return whole;
}

/** A note that saves itself. @param {data.Cell} cell @param {string} note */
function notebook(cell, note) {
  const said = h("span", { class: "soft small", role: "status" });
  let timer = 0;
  let stored = note;
  const save = async () => {
    clearTimeout(timer);
    const text = field.value;
    if (text === stored) return;
    try {
      await data.post("api/notes", { layer: cell.layer, cell: cell.cell, text });
      stored = text;
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
      clearTimeout(timer);
      timer = window.setTimeout(save, 1000);
    },
  });
  field.value = note;
  return h("p", { class: "notebook" }, field, said);
}
