// @ts-check
/**
 * The cells that people marked: a star, tags, a note. A server saves them in the run. The pages of an export cannot: there they stay in
 * the reader's browser, on top of what the export brought, and can be downloaded.
 */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { parse } from "./cells.js";
import { keep, recall } from "./memory.js";
import { visible, whole } from "./text.js";

/**
 * @typedef {import("../types.js").Marks} Marks
 * @typedef {Partial<Marks>} Saved what is left out was not changed
 */

/** The event after which every view shows the marks anew; its detail is the place of the cell that changed, or −1. */
export const MARKED = "keyhole-marked";
/** @type {Marks} */
const NONE = Object.freeze({ starred: false, tags: [], note: "" });
/** Names of collections, which cannot be tags, as in store/collections.py. */
const NAMES = ["starred", "all"];
const FORGETFUL = "this browser stores no more. It is kept until you leave the page: export your collections now.";
/** @type {Promise<Map<number, Marks>> | null} the marks that this page was drawn with */
let known = null;
/** @type {Map<number, Marks>} the same, once they are here */
let here = new Map();

window.addEventListener("hashchange", () => (known = null)); // others may have marked cells since

/** Every marked cell by its place on the axis. @returns {Promise<Map<number, Marks>>} */
export function markedPlaces() {
  known ??= load().catch((error) => {
    known = null;
    throw error;
  });
  return known;
}

async function load() {
  const [run, { cells }] = await Promise.all([data.run(), data.collections()]);
  const found = placed(cells);
  if (!run.live)
    for (const [place, marks] of placed(own(run))) found.set(place, { ...(found.get(place) ?? NONE), ...marks });
  here = sorted([...found]);
  return here;
}

/** What a cell is marked with. @param {number} layer @param {number} cell @returns {Promise<Marks>} */
export async function marksOf(layer, cell) {
  return (await markedPlaces()).get(data.axis.place(layer, cell)) ?? NONE;
}

/** Whether there is a star, a tag or a note. @param {Marks} marks */
export const any = ({ starred, tags, note }) => starred || tags.length > 0 || note.trim() !== "";

/**
 * Mark a cell; what is left out stays as it is. Every view that shows the cell's marks is drawn anew.
 * @param {number} layer
 * @param {number} cell
 * @param {Saved} changes
 * @returns {Promise<Marks>} what it is marked with now
 */
export async function mark(layer, cell, changes) {
  const run = await data.run();
  const place = data.axis.place(layer, cell);
  /** @type {Marks} */
  let now = { ...(await marksOf(layer, cell)), ...changes };
  let stays = true;
  if (run.live) now = (await data.post("api/marks", { layer, cell, ...changes })).marks;
  else {
    if (!fits(now, run)) throw new data.Failure(`a note has at most ${whole(run.annotating.note)} characters, and a tag cannot be called ${NAMES.join(" or ")}.`);
    const mine = own(run);
    const address = data.axis.address(layer, cell);
    mine[address] = { ...mine[address], ...changes };
    stays = keep(ownName(run), JSON.stringify(mine));
  }
  here = sorted([...here, [place, now]]);
  known = Promise.resolve(here);
  window.dispatchEvent(new CustomEvent(MARKED, { detail: place }));
  if (!stays) throw new data.Failure(FORGETFUL);
  return now;
}

/** By place, without the cells that are not marked any more. @param {[number, Marks][]} all a later one counts */
function sorted(all) {
  const newest = new Map(all);
  return new Map([...newest].filter(([, marks]) => any(marks)).sort(([a], [b]) => a - b));
}

/**
 * Add a file of marks that `download` or `keyhole collections` wrote.
 * @param {any} file
 * @returns {Promise<{cells: number, changed: number}>}
 */
export async function importFile(file) {
  const run = await data.run();
  const done = run.live ? await data.post("api/collections", file) : await importHere(run, file);
  known = null;
  window.dispatchEvent(new CustomEvent(MARKED, { detail: -1 }));
  return done;
}

/** All marks as the file that `importFile` takes. */
export async function exportFile() {
  const [{ keyhole, model }, all] = await Promise.all([data.collections(), markedPlaces()]);
  const cells = Object.fromEntries(
    Array.from(all, ([place, marks]) => {
      const { layer, cell } = data.axis.split(place);
      return [data.axis.address(layer, cell), marks];
    }),
  );
  return { keyhole, model, cells };
}

// In the reader's browser

/** @param {data.Run} run */
const ownName = (run) => `keyhole.marks.${run.checksum}`;

/** What this browser keeps for the reader of an export, by address. @param {data.Run} run @returns {Record<string, Saved>} */
function own(run) {
  try {
    const kept = JSON.parse(recall(ownName(run)) ?? "{}");
    return Object.fromEntries(Object.entries(kept).filter(([, marks]) => fits(marks, run)));
  } catch {
    return {};
  }
}

/** Whether marks are what the server would take. @param {any} marks @param {data.Run} run @returns {marks is Saved} */
function fits(marks, run) {
  const { tag, tags: most, note: longest } = run.annotating;
  const shape = new RegExp(`^${tag}$`, "u");
  if (typeof marks !== "object" || marks === null) return false;
  const { starred = false, tags = [], note = "", ...rest } = marks;
  return (
    Object.keys(rest).length === 0 &&
    typeof starred === "boolean" &&
    Array.isArray(tags) &&
    tags.length <= most &&
    tags.every((each) => typeof each === "string" && shape.test(each) && !NAMES.includes(each)) &&
    typeof note === "string" &&
    note.length <= longest
  );
}

/** As the server does: all of it or nothing, and what is there stays. @param {data.Run} run @param {any} file */
async function importHere(run, file) {
  const entries = Object.entries(file?.cells ?? {});
  if (typeof file?.cells !== "object" || file.cells === null)
    throw new data.Failure('A collection is a JSON object with "cells": what each cell is marked with, by its address.');
  const { model } = await data.collections();
  if (file.model && file.model.fingerprint !== model.fingerprint)
    throw new data.Failure("This collection is of another model: its addresses name other cells. Nothing was imported.");
  const wrong = entries.filter(([address, marks]) => !located(address) || !fits(marks, run)).map(([address]) => address);
  if (wrong.length)
    throw new data.Failure(
      `Nothing was imported: ${wrong.slice(0, 5).join(", ")}${wrong.length > 5 ? ` and ${wrong.length - 5} more` : ""} ${wrong.length > 1 ? "are no cells of this run, or their marks are" : "is no cell of this run, or its marks are"} not possible.`,
    );
  const mine = own(run);
  const all = await markedPlaces();
  let changed = 0;
  for (const [place, theirs] of placed(file.cells)) {
    const before = all.get(place) ?? NONE;
    const after = both(before, { ...NONE, ...theirs });
    if (JSON.stringify(before) === JSON.stringify(after)) continue;
    const { layer, cell } = data.axis.split(place);
    if (!fits(after, run))
      throw new data.Failure(`Nothing was imported: ${data.axis.address(layer, cell)} would have too many tags or too long a note.`);
    mine[data.axis.address(layer, cell)] = after;
    changed++;
  }
  if (!keep(ownName(run), JSON.stringify(mine))) throw new data.Failure(FORGETFUL);
  return { cells: entries.length, changed };
}

/** Two people's marks of one cell. @param {Marks} ours @param {Marks} theirs @returns {Marks} */
function both(ours, theirs) {
  const added = theirs.note.trim() !== "" && !ours.note.includes(theirs.note.trim());
  return {
    starred: ours.starred || theirs.starred,
    tags: [...new Set([...ours.tags, ...theirs.tags])],
    note: !added ? ours.note : ours.note.trim() ? `${ours.note.trimEnd()}\n\n${theirs.note}` : theirs.note,
  };
}

/**
 * Marks by place instead of by address.
 * @template {Saved} S
 * @param {Record<string, S>} cells
 * @returns {Map<number, S>}
 */
function placed(cells) {
  /** @type {[number, S][]} */
  const found = [];
  for (const [address, marks] of Object.entries(cells)) {
    const at = located(address);
    if (at) found.push([data.axis.place(at.layer, at.cell), marks]);
  }
  return new Map(found);
}

/** The cell of an address that someone wrote; null if there is none. @param {string} address */
function located(address) {
  const at = data.axis.locate(parse(address));
  return at && at.cell >= 0 ? at : null;
}

// Beside an address

/**
 * The star and the tags of a cell, small, to stand beside its address anywhere. Empty if it has none; it follows what is saved.
 * Tags have no hidden characters (`fits`, and the server's checks), so they are shown as they are: emoji may need their joiners.
 * @param {number} layer
 * @param {number} cell
 */
export function marked(layer, cell) {
  const place = data.axis.place(layer, cell);
  const chips = h("span", { class: "marked", "data-marked": place });
  if (known) draw(chips, here.get(place));
  markedPlaces().then(
    (all) => draw(chips, all.get(place)),
    () => {}, // an address is readable without them
  );
  return chips;
}

/**
 * An element that has the class `starred` while its cell has a star: for lists without room for chips.
 * @template {Element} E
 * @param {E} element
 * @param {number} layer
 * @param {number} cell
 * @returns {E}
 */
export function starred(element, layer, cell) {
  const place = data.axis.place(layer, cell);
  element.setAttribute("data-starred", String(place));
  const toggle = (/** @type {Map<number, Marks>} */ all) =>
    void element.classList.toggle("starred", all.get(place)?.starred ?? false);
  if (known) toggle(here);
  markedPlaces().then(toggle, () => {}); // an address is readable without it
  return element;
}

/** @param {Element} chips @param {Marks | undefined} marks */
function draw(chips, marks) {
  replace(
    chips,
    marks?.starred && h("span", { class: "star", role: "img", "aria-label": "starred", title: "starred" }, "★"),
    marks?.tags.map((tag) => h("span", { class: "mark" }, h("bdi", {}, tag))),
    marks?.note.trim() && h("span", { class: "noted", role: "img", "aria-label": "has a note", title: visible(marks.note.slice(0, 300)) }, "✎"),
  );
}

window.addEventListener(MARKED, async () => {
  const all = await markedPlaces().catch(() => here);
  for (const chips of document.querySelectorAll("[data-marked]"))
    draw(chips, all.get(Number(chips.getAttribute("data-marked"))));
  for (const element of document.querySelectorAll("[data-starred]"))
    element.classList.toggle("starred", all.get(Number(element.getAttribute("data-starred")))?.starred ?? false);
});
