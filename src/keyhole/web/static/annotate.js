// @ts-check
/** Annotations after the paper's protocol: which of a key's triggers share a pattern, what the pattern is, shallow or semantic. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { forget, keep, names, recall } from "./memory.js";
import { annotateHref, failure, line } from "./parts.js";
import { counted, fnv1a, number, visible } from "./text.js";

const NAME = "keyhole.annotator";
const LAYER = "keyhole.annotate.layer";
const TRIES = 2000;

/** @typedef {{patterns: data.Pattern[], active: number}} Draft what is being said of a key */
/** @typedef {Draft & {layer?: number, cell?: number, annotator?: string}} Kept a draft as this browser keeps it until it is saved */

/** @param {import("./app.js").Place} place */
export async function render({ run, layer, cell, signal }) {
  if (!run.live) return { title: "Annotate", body: absent() };
  const name = recall(NAME) ?? "";
  if (!new RegExp(`^${run.annotating.name}$`, "u").test(name))
    return { title: "Annotate", body: h("div", {}, h("h1", {}, "Annotate"), intro(run), who(run, layer, cell)) };
  const { annotations } = await data.annotations();
  const mine = annotations.filter((each) => same(each.annotator) === same(name));
  if (layer < 0) {
    const next = await choose(run, mine, chosenLayer());
    if (next && !signal.aborted) location.replace(annotateHref(next.layer, next.cell));
    return {
      title: "Annotate",
      body: h(
        "div",
        {},
        h("h1", {}, "Annotate"),
        h(
          "p",
          {},
          next
            ? "Opening the next key …"
            : `No other key was found here that has ${run.annotating.least} triggers or more and that you have not annotated. Choose another layer.`,
        ),
        next ? null : who(run, -1, -1),
      ),
    };
  }
  const found = await data.cell(layer, cell);
  return { title: `Annotate ${found.address}`, body: desk(run, found, name, mine) };
}

function absent() {
  return h(
    "div",
    {},
    h("h1", {}, "Annotate"),
    h(
      "p",
      { class: "missing" },
      "These pages were exported and cannot save. To annotate keys, serve the run: ",
      h("code", {}, "keyhole serve RUN"),
    ),
  );
}

/** @param {data.Run} run */
function intro(run) {
  return h(
    "p",
    { class: "lead" },
    `For each key you see the ${Math.min(run.config.top, run.annotating.triggers)} prefixes on which it fires most. Mark those that share a pattern (at least ${run.annotating.least}), say what they share, and whether it is shallow (words, their form or place) or semantic (what the text is about). A key may have several patterns, or none.`,
  );
}

/** Two names are one person's if this is equal, as in common/names.py. @param {string} name */
const same = (name) => name.toLowerCase().normalize("NFC");

/** What the names of this run's drafts begin with. @param {data.Run} run */
const drafts = (run) => `keyhole.draft.${run.checksum}.`;

/** The layer that the reader chose to annotate; −1: all. */
function chosenLayer() {
  const kept = recall(LAYER);
  const layer = kept === null || kept === "" ? -1 : Number(kept);
  return Number.isInteger(layer) && layer < data.axis.depth ? layer : -1;
}

/**
 * The next key to annotate. Everyone gets the same random keys in the same order, so that annotators can be compared.
 * If no layer was chosen, the layers take turns.
 * @param {data.Run} run
 * @param {data.Annotation[]} mine
 * @param {number} only a layer, or −1
 */
async function choose(run, mine, only) {
  const { axis } = data;
  const done = new Set(mine.map((each) => axis.place(each.layer, each.cell)));
  const limit = Math.min(TRIES, only < 0 ? axis.length * 4 : axis.size(only) * 8);
  for (let i = 0; i < limit; i++) {
    const layer = only < 0 ? i % axis.depth : only;
    const cell = fnv1a(`${layer}:${only < 0 ? Math.floor(i / axis.depth) : i}`) % axis.size(layer);
    const place = axis.place(layer, cell);
    if (done.has(place)) continue;
    done.add(place);
    const found = await data.cell(layer, cell);
    if (found.triggers.length >= run.annotating.least) return { layer, cell };
  }
  return null;
}

/** Who annotates, and where. @param {data.Run} run @param {number} layer @param {number} cell */
function who(run, layer, cell) {
  const field = h("input", {
    id: "annotator",
    type: "text",
    value: recall(NAME) ?? "",
    autocomplete: "name",
    required: true,
    oninput: () => field.setCustomValidity(""),
    maxlength: 60,
    title: "up to 60 characters of any script, the first a letter, a digit or an emoji; no slash",
  });
  const pick = h(
    "select",
    { id: "annotate-layer" },
    h("option", { value: "" }, "all layers in turn"),
    data.axis.layers.map((_, i) =>
      h("option", { value: i, selected: i === chosenLayer() }, `layer ${data.axis.label(i)}`),
    ),
  );
  const start = /** @param {Event} event */ (event) => {
    event.preventDefault();
    const name = field.value.trim().replace(/\s+/gu, " ").normalize("NFC");
    const fits = new RegExp(`^${run.annotating.name}$`, "u").test(name) && same(name) !== "rules";
    field.setCustomValidity(fits ? "" : `Take another name: ${field.title}. “rules” stands for patterns that were computed.`);
    if (!field.reportValidity()) return;
    keep(NAME, name);
    keep(LAYER, pick.value);
    const to = layer >= 0 ? annotateHref(layer, cell) : "#/annotate";
    if (location.hash === to) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = to;
  };
  return h(
    "form",
    { class: "controls", onsubmit: start },
    h("label", { for: "annotator" }, "Your name"),
    field,
    h("label", { for: "annotate-layer" }, "Keys of"),
    pick,
    h("button", { type: "submit" }, "Start"),
  );
}

/**
 * @param {data.Run} run
 * @param {data.Cell} cell
 * @param {string} name
 * @param {data.Annotation[]} mine
 */
function desk(run, cell, name, mine) {
  const { least, kinds } = run.annotating;
  const kept = `${drafts(run)}${cell.address}.${same(name)}`;
  const before = mine.findLast((each) => each.layer === cell.layer && each.cell === cell.cell);
  const left = read(kept);
  /** @type {Draft} */
  const draft = left
    ? { patterns: left.patterns, active: left.active }
    : { patterns: structuredClone(before?.patterns ?? []), active: 0 };
  if (!draft.patterns.length) draft.patterns.push(empty());
  const triggers = h("ol", { class: "marks" });
  const side = h("div", { class: "patterns" });
  const said = h(
    "p",
    { role: "status", class: "small" },
    left && "This is your draft. It is not saved yet: it stays in this browser until you save it.",
  );

  const store = () =>
    keep(kept, JSON.stringify({ ...draft, layer: cell.layer, cell: cell.cell, annotator: same(name) }));

  function drawTriggers() {
    replace(
      triggers,
      cell.triggers.slice(0, run.annotating.triggers).map((trigger, i) => {
        const box = h("input", {
          type: "checkbox",
          checked: draft.patterns[draft.active].triggers.includes(i),
          "aria-label": `Trigger ${i + 1} belongs to pattern ${letter(draft.active)}`,
          onchange: () => {
            const pattern = draft.patterns[draft.active];
            pattern.triggers = box.checked
              ? [...pattern.triggers, i].sort((a, b) => a - b)
              : pattern.triggers.filter((each) => each !== i);
            store();
            label(i, tags);
            drawPatterns();
          },
        });
        const tags = h("span", { class: "tags" });
        label(i, tags);
        return h(
          "li",
          {},
          h("label", {}, box, h("span", { class: "num soft" }, number(trigger.c)), line(trigger), tags),
        );
      }),
    );
  }

  /** The patterns a trigger belongs to. @param {number} i @param {HTMLElement} tags */
  function label(i, tags) {
    replace(
      tags,
      draft.patterns.flatMap((pattern, at) =>
        pattern.triggers.includes(i)
          ? [h("span", { class: `tag ${at === draft.active ? "on" : ""}` }, letter(at))]
          : [],
      ),
    );
  }

  function drawPatterns() {
    const focused = document.activeElement?.id;
    replace(
      side,
      draft.patterns.map((pattern, at) => {
        const text = h("textarea", {
          id: `description-${at}`,
          rows: 2,
          maxlength: run.annotating.description,
          oninput: () => {
            pattern.description = text.value;
            store();
            ready();
          },
        });
        text.value = pattern.description;
        const choices = kinds.map((kind) =>
          h(
            "label",
            { class: "toggle" },
            h("input", {
              type: "radio",
              name: `kind-${at}`,
              id: `kind-${at}-${kind}`,
              value: kind,
              checked: pattern.kind === kind,
              onchange: () => {
                pattern.kind = kind;
                store();
              },
            }),
            kind,
          ),
        );
        return h(
          "fieldset",
          { class: at === draft.active ? "on" : null },
          h(
            "legend",
            {},
            h(
              "button",
              {
                type: "button",
                id: `pattern-${at}`,
                class: "quiet",
                "aria-pressed": String(at === draft.active),
                onclick: () => {
                  draft.active = at;
                  store();
                  drawTriggers();
                  drawPatterns();
                },
              },
              `Pattern ${letter(at)}`,
            ),
          ),
          h(
            "p",
            { class: "soft small" },
            `${counted(pattern.triggers.length, "trigger")} marked${pattern.triggers.length < least ? `, at least ${least} are needed` : ""}`,
          ),
          h("label", { for: `description-${at}`, class: "small" }, "What they share"),
          text,
          h(
            "div",
            { class: "controls", role: "group", "aria-label": `Kind of pattern ${letter(at)}` },
            choices,
            draft.patterns.length > 1 &&
              h(
                "button",
                {
                  type: "button",
                  class: "plain",
                  "aria-label": `Remove pattern ${letter(at)}`,
                  onclick: () => {
                    draft.patterns.splice(at, 1);
                    draft.active = Math.min(draft.active, draft.patterns.length - 1);
                    store();
                    drawTriggers();
                    drawPatterns();
                  },
                },
                "✕",
              ),
          ),
        );
      }),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            draft.patterns.push(empty());
            draft.active = draft.patterns.length - 1;
            store();
            drawTriggers();
            drawPatterns();
          },
        },
        "Another pattern",
      ),
    );
    if (focused) document.getElementById(focused)?.focus();
    ready();
  }

  const begun = () => draft.patterns.filter((pattern) => pattern.triggers.length || pattern.description.trim());
  function ready() {
    const all = begun();
    saving.disabled =
      !all.length || all.some((pattern) => pattern.triggers.length < least || !pattern.description.trim());
    none.disabled = all.length > 0;
  }

  /** @param {data.Pattern[]} patterns @param {boolean} skipped */
  async function save(patterns, skipped) {
    said.textContent = "Saving …";
    try {
      await data.post("api/annotations", { annotator: name, layer: cell.layer, cell: cell.cell, patterns, skipped });
    } catch (error) {
      const lost = error instanceof data.Failure && error.code === "run_changed";
      replace(said, failure(error), !lost && "Nothing is lost: your marks stay in this browser.");
      return;
    }
    forget(kept);
    if (said.isConnected) location.hash = "#/annotate";
  }

  const saving = h(
    "button",
    {
      type: "button",
      onclick: () =>
        save(
          begun().map((pattern) => ({ ...pattern, description: pattern.description.trim() })),
          false,
        ),
    },
    "Save, next",
  );
  const none = h("button", { type: "button", class: "quiet", onclick: () => save([], false) }, "No pattern");
  const skip = h("button", { type: "button", class: "quiet", onclick: () => save([], true) }, "Skip");
  drawTriggers();
  drawPatterns();
  const inLayer = mine.filter((each) => each.layer === cell.layer && !each.skipped).length;
  const done = mine.filter((each) => !each.skipped).length;
  return h(
    "div",
    { class: "annotate" },
    h(
      "div",
      { class: "pagehead" },
      h("h1", {}, "Annotate ", h("a", { href: data.axis.href(cell.layer, cell.cell) }, cell.address)),
      h(
        "p",
        { class: "soft small" },
        h("bdi", {}, visible(name)),
        `: ${counted(done, "key")} annotated, ${inLayer} in layer ${data.axis.label(cell.layer)}${before ? "; this one among them" : ""}`,
      ),
    ),
    others(run, name, kept),
    h("details", {}, h("summary", {}, "Instructions and your name"), intro(run), who(run, -1, -1)),
    cell.triggers.length < least
      ? h(
          "p",
          { class: "missing" },
          `This key has fewer than ${least} triggers. `,
          h("a", { href: "#/annotate" }, "Go to the next one"),
        )
      : h(
          "div",
          { class: "two" },
          h("section", { class: "column keyside", "aria-label": "Triggers" }, triggers),
          h(
            "section",
            { class: "column sticky", "aria-label": "Patterns" },
            side,
            h("div", { class: "controls" }, saving, none, skip),
            said,
          ),
        ),
  );
}

/** @returns {data.Pattern} */
const empty = () => ({ triggers: [], description: "", kind: "shallow" });

/** @param {number} at */
const letter = (at) => String.fromCharCode(65 + (at % 26));

/** Links to the other keys of which this annotator has a draft. @param {data.Run} run @param {string} name @param {string} but */
function others(run, name, but) {
  const found = names(drafts(run))
    .filter((kept) => kept !== but)
    .flatMap((kept) => {
      const { layer = -1, cell = -1, annotator } = read(kept) ?? {};
      return annotator === same(name) && cell >= 0 && cell < (data.axis.layers[layer] ? data.axis.size(layer) : 0)
        ? [{ layer, cell }]
        : [];
    });
  return (
    found.length > 0 &&
    h(
      "p",
      { class: "soft small drafts" },
      "Drafts of yours that are not saved yet: ",
      found.flatMap(({ layer, cell }, i) => [
        i ? ", " : "",
        h("a", { href: annotateHref(layer, cell) }, data.axis.address(layer, cell)),
      ]),
    )
  );
}

/** A draft that this browser kept. @param {string} kept @returns {Kept | null} */
function read(kept) {
  try {
    const draft = JSON.parse(recall(kept) ?? "null");
    return Array.isArray(draft?.patterns) && draft.patterns.length ? draft : null;
  } catch {
    return null;
  }
}
