// @ts-check
/** A set of cells switched off together: a kind, a collection, what a search or a pattern names. One edit for each of its cells. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { added, asked } from "./edits.js";
import { counted, visible, whole } from "./text.js";

/** What a text names, if it is chosen: it is typed. */
const TYPED = { search: "cells, half of whose triggers contain …", pattern: "cells with a pattern of …" };

/** What is chosen and said: the list of edits is drawn anew after every answer. */
const state = { open: false, chosen: "", text: "", said: "" };
/** What the run offers; null until it is known. @type {import("../types.js").OfferedSets | null} */
let offered = null;

/** @param {import("./edits.js").Again} again */
export function editSets(again) {
  const said = h("p", { class: "soft small", role: "status" }, state.said);
  const say = (/** @type {string} */ text) => (said.textContent = state.said = text);
  const which = h("select", {
    id: "edit-set",
    "data-at": "edit-set",
    onchange: () => {
      state.chosen = which.value;
      typed();
    },
  });
  const text = h("input", {
    id: "edit-set-text",
    type: "text",
    value: state.text,
    size: 14,
    maxlength: 400,
    autocomplete: "off",
    "data-at": "edit-set-text",
    oninput: () => (state.text = text.value),
  });
  const label = h("label", { for: "edit-set-text", class: "hidden" }, "What names the set");
  const off = h("button", { type: "submit", class: "quiet", "data-at": "edit-set-off" }, "Switch off");
  const form = h(
    "form",
    { hidden: true },
    h("label", { for: "edit-set", class: "hidden" }, "Set of cells"),
    which,
    label,
    text,
    off,
  );

  /** A text is typed only if the set is named by one. */
  function typed() {
    text.hidden = label.hidden = !(which.value in TYPED);
  }

  function draw() {
    if (!offered) return;
    const typable = Object.entries(TYPED).filter(([name]) => name !== "pattern" || offered?.patterns);
    replace(
      which,
      ...offered.sets.map((each) =>
        h("option", { value: each.name, selected: each.name === state.chosen }, `${visible(each.title)} (${whole(each.cells)})`),
      ),
      ...typable.map(([name, title]) => h("option", { value: name, selected: name === state.chosen }, title)),
    );
    state.chosen = which.value;
    form.hidden = false;
    typed();
  }

  async function load() {
    try {
      offered = await data.request("api/sets", { cache: "no-store" });
      draw();
    } catch (error) {
      say(/** @type {Error} */ (error).message);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = which.value in TYPED ? `${which.value}:${text.value.trim()}` : which.value;
    if (name.endsWith(":")) {
      say("Type what the set is named by.");
      return;
    }
    off.disabled = true;
    say("Looking …");
    try {
      const found = /** @type {import("../types.js").CellSet} */ (await data.post("api/sets", { name }));
      const most = (await data.status()).limits.edits;
      const positions = asked.everywhere || asked.position === null ? null : [asked.position];
      const edits = found.cells.reduce((all, [layer, cell]) => added(all, { layer, cell, scale: 0, positions }), asked.edits);
      const cells = counted(found.total, "cell");
      if (found.cells.length < found.total || edits.length > most) {
        say(
          `${visible(found.name)} has ${cells}${asked.edits.length ? `, there are ${counted(asked.edits.length, "edit")} already` : ""}, and a prompt takes ${whole(most)} edits: nothing was added. ` +
            `A model can be made without them: keyhole edit RUN edits.json --out FOLDER, with [{"set": ${JSON.stringify(found.name)}, "scale": 0}] in edits.json.`,
        );
        return;
      }
      say(`${visible(found.name)}: ${cells} switched off ${positions ? "at this token" : "everywhere"}.`);
      again({ edits });
    } catch (error) {
      say(/** @type {Error} */ (error).message);
    } finally {
      off.disabled = false;
    }
  });

  const box = h(
    "details",
    { class: "sets", open: state.open },
    h("summary", { "data-at": "edit-sets" }, "Switch off a set of cells"),
    form,
    said,
  );
  box.addEventListener("toggle", () => {
    if (box.open === state.open) return;
    state.open = box.open;
    if (box.open) void load();
  });
  if (state.open && offered) draw();
  else if (state.open) void load();
  return box;
}
