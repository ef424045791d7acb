// @ts-check
/** Collecting a cell: its star, and its tags. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { mark, MARKED, markedPlaces, marksOf } from "./marks.js";
import { forget, keep, recall } from "./memory.js";
import { counted, visible } from "./text.js";

/** The page of a collection: a tag's, or `{show: "starred"}`, `{show: "noted"}`, `{show: "annotated"}`. @param {Record<string, string>} [asked] */
export const collectionHref = (asked = {}) => {
  const query = new URLSearchParams(asked).toString();
  return `#/collections${query && `?${query}`}`;
};

/**
 * Star and tags of a cell, to be changed. They follow what is saved elsewhere on the page.
 * @param {number} layer
 * @param {number} cell
 * @param {data.Run} run
 * @param {AbortSignal} signal
 */
export function collecting(layer, cell, run, signal) {
  const said = h("span", { class: "soft small", role: "status" });
  const chips = h("span", { class: "tagchips" });
  const place = h(
    "div",
    { class: "collecting", role: "group", "aria-label": "Collect this cell" },
    starButton(layer, cell, signal, said),
    chips,
    tagForm(layer, cell, run, said),
    said,
  );
  const draw = async () => {
    const { tags } = await marksOf(layer, cell);
    replace(chips, tags.map((tag) => chip(layer, cell, tag, said)));
  };
  const failed = (/** @type {unknown} */ error) => (said.textContent = /** @type {Error} */ (error).message);
  draw().catch(failed);
  window.addEventListener(MARKED, () => draw().catch(failed), { signal });
  return place;
}

/** @param {HTMLElement} said @param {unknown} error */
function tell(said, error) {
  said.textContent = `Not saved: ${/** @type {Error} */ (error).message}`;
}

/**
 * @param {number} layer
 * @param {number} cell
 * @param {AbortSignal} signal
 * @param {HTMLElement} said where an error is shown
 */
export function starButton(layer, cell, signal, said) {
  const address = data.axis.address(layer, cell);
  const sign = h("span", { "aria-hidden": "true" }, "☆");
  const button = h(
    "button",
    {
      type: "button",
      class: "quiet starring",
      "data-star": address,
      "aria-pressed": "false",
      "aria-label": `Star ${address}`,
      title: "Star (s)",
      onclick: async () => {
        said.textContent = "";
        try {
          await mark(layer, cell, { starred: button.getAttribute("aria-pressed") !== "true" });
        } catch (error) {
          tell(said, error);
        }
      },
    },
    sign,
  );
  const draw = async () => {
    const { starred } = await marksOf(layer, cell);
    button.setAttribute("aria-pressed", String(starred));
    sign.textContent = starred ? "★" : "☆";
  };
  const unknown = () => {}; // the page says elsewhere that the server does not answer
  draw().catch(unknown);
  window.addEventListener(MARKED, () => draw().catch(unknown), { signal });
  return button;
}

/** @param {number} layer @param {number} cell @param {string} tag @param {HTMLElement} said */
function chip(layer, cell, tag, said) {
  return h(
    "span",
    { class: "mark" },
    h("a", { href: collectionHref({ tag }) }, h("bdi", {}, tag)),
    h(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Remove the tag ${tag}`,
        onclick: async () => {
          said.textContent = "";
          try {
            const { tags } = await marksOf(layer, cell);
            await mark(layer, cell, { tags: tags.filter((each) => each !== tag) });
            document.getElementById("tag")?.focus(); // the button is gone
          } catch (error) {
            tell(said, error);
          }
        },
      },
      "✕",
    ),
  );
}

/** A field that adds tags. What is typed stays in this browser until it is saved. @param {number} layer @param {number} cell @param {data.Run} run @param {HTMLElement} said */
function tagForm(layer, cell, run, said) {
  const address = data.axis.address(layer, cell);
  const kept = `keyhole.tag.${run.checksum}.${address}`;
  const known = h("datalist", { id: "known-tags" });
  const field = h("input", {
    type: "text",
    id: "tag",
    list: "known-tags",
    "aria-label": `Add a tag to ${address}`,
    placeholder: "add a tag",
    autocomplete: "off",
    maxlength: 200,
    value: recall(kept) ?? "",
    oninput: () => (field.value ? keep(kept, field.value) : forget(kept)),
    onfocus: async () => {
      const all = new Set(Array.from((await markedPlaces()).values(), ({ tags }) => tags).flat());
      replace(known, [...all].sort().map((tag) => h("option", { value: tag })));
    },
  });
  const add = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const asked = field.value.split(",").map((tag) => tag.trim().replace(/\s+/gu, " ").normalize("NFC")).filter(Boolean);
    if (!asked.length) return;
    said.textContent = "";
    try {
      const { tags } = await marksOf(layer, cell);
      const all = [...new Set([...tags, ...asked])];
      check(all, run);
      await mark(layer, cell, { tags: all });
      field.value = "";
      forget(kept);
    } catch (error) {
      tell(said, error);
    }
  };
  return h(
    "form",
    { class: "tagform", onsubmit: add },
    field,
    known,
    h("button", { type: "submit", class: "quiet" }, "Add"),
  );
}

/** An error, if these cannot be a cell's tags. @param {string[]} tags @param {data.Run} run */
function check(tags, run) {
  const shape = new RegExp(`^${run.annotating.tag}$`, "u");
  const wrong = tags.find((tag) => !shape.test(tag));
  if (wrong !== undefined)
    throw new data.Failure(`“${visible(wrong)}” is too long for a tag, or has characters that cannot be seen.`);
  if (tags.length > run.annotating.tags)
    throw new data.Failure(`${counted(tags.length, "tag")} are too many: a cell has at most ${run.annotating.tags}.`);
}
