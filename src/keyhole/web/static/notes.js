// @ts-check
/** What people wrote about a cell: the patterns they found, and a note that is saved while it is typed. */
import { collectionHref } from "./collect.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { mark, marksOf } from "./marks.js";
import { forget, keep, recall } from "./memory.js";
import { annotateHref, failure } from "./parts.js";
import { counted, visible } from "./text.js";

/** Notes and patterns. @param {data.Cell} cell @param {data.Run} run */
export function written(cell, run) {
  const place = h("div");
  Promise.all([data.annotations(), marksOf(cell.layer, cell.cell)]).then(
    ([{ annotations }, { note }]) => {
      const made = annotations.filter((each) => each.layer === cell.layer && each.cell === cell.cell);
      replace(
        place,
        found(made),
        notebook(cell, note, `keyhole.note.${run.checksum}.${cell.address}`),
        !run.live &&
          h(
            "p",
            { class: "soft small" },
            "These pages were exported: what you write stays in this browser. ",
            h("a", { href: collectionHref() }, "Collections"),
            " saves it as a file.",
          ),
        run.live &&
          cell.triggers.length >= run.annotating.least &&
          h("p", {}, h("a", { href: annotateHref(cell.layer, cell.cell) }, "Annotate its triggers")),
      );
    },
    (error) => replace(place, failure(error)),
  );
  return h(
    "section",
    { class: "written", "aria-labelledby": "notes-title" },
    h("h2", { id: "notes-title" }, "Notes"),
    place,
  );
}

/** The patterns that annotators found in a cell. @param {data.Annotation[]} annotations of the cell */
export function found(annotations) {
  return annotations
    .filter(({ skipped }) => !skipped)
    .flatMap(({ annotator, patterns }) =>
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
    );
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
      said.textContent = "Saved.";
      return;
    }
    try {
      await mark(cell.layer, cell.cell, { note: text });
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
