// @ts-check
/** The page's data: fetched from `data/…` (of a server or an export) and `api/…` (of a server), and kept. */

import { Cells } from "./cells.js";
import * as unpack from "./unpack.js";

/**
 * @typedef {import("../types.js").About} Run
 * @typedef {import("../types.js").Columns} Columns
 * @typedef {import("../types.js").Value} Value
 * @typedef {import("../types.js").Agreement} Agreement
 * @typedef {[string, number | null]} Said a token, with its logit or probability
 * @typedef {import("../types.js").Edit} Edit
 * @typedef {import("../types.js").Pattern} Pattern
 * @typedef {import("../types.js").Annotation} Annotation
 * @typedef {import("../types.js").Contribution} Contribution
 * @typedef {import("../types.js").Prompt} Prompt
 * @typedef {import("../types.js").Problem["code"]} Code
 * @typedef {import("./unpack.js").Trigger} Trigger
 * @typedef {import("./unpack.js").Cell} Cell
 * @typedef {import("./unpack.js").Unit} Unit
 * @typedef {Omit<import("../types.js").BesideCell, "cell"> & {cell: Cell}} Beside the same cell in the run beside this one
 * @typedef {import("./unpack.js").Speaker} Speaker
 */

/** The axis of the model's cells: known once `run` has answered, as it has before any page is drawn. */
export let axis = new Cells([]);

/** Whether patterns were looked for in the run; known when the axis is. */
export let patterned = false;

/** An error, in words for the reader. */
export class Failure extends Error {
  /** @param {string} message @param {Code | ""} [code] the server's name for it */
  constructor(message, code = "") {
    super(message);
    this.code = code;
  }
}

/** The event that says whether the server still serves the run of this page: its detail is a code of `LOST`, or "" if it does. */
export const STANDING = "keyhole-standing";
/** @type {(Code | "")[]} */
const LOST = ["run_changed", "run_gone"];
/** How many requests were sent, and how many of them before the run was last found to be lost. */
let sent = 0;
let sentBeforeLoss = 0;
/** The checksum of the run this page shows. Every request names it, because the server may serve another run by now. */
let bound = "";

/** Upper bound on the answers that are kept. */
const KEPT = 400;
/** @type {Map<string, Promise<any>>} */
const kept = new Map();

/**
 * An answer that never changes: fetched and unpacked once.
 * @template T
 * @param {string} path
 * @param {(answer: any) => T | Promise<T>} unpacked
 * @returns {Promise<T>}
 */
function get(path, unpacked) {
  const known = kept.get(path);
  if (known) return known;
  const asked = request(path)
    .then(unpacked)
    .catch((error) => {
      kept.delete(path);
      throw error;
    });
  kept.set(path, asked);
  if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
  return asked;
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
async function request(path, options) {
  const number = ++sent;
  let response;
  try {
    const headers = new Headers(options?.headers);
    if (bound) headers.set("keyhole-run", bound);
    response = await fetch(path, { credentials: "same-origin", ...options, headers });
  } catch {
    throw new Failure(`${path} could not be fetched. Is the server still running?`);
  }
  const body = await response.json().catch(() => null);
  /** @type {Code | ""} */
  const code = body?.error?.code ?? "";
  if (LOST.includes(code)) sentBeforeLoss = sent;
  // a late answer to a request that was sent before the loss does not say that the run is back
  if (LOST.includes(code) || (response.ok && number > sentBeforeLoss))
    window.dispatchEvent(new CustomEvent(STANDING, { detail: code }));
  if (response.ok && body !== null) return body;
  if (body?.error?.message) throw new Failure(body.error.message, code);
  if (response.status === 404) throw new Failure(`There is no ${path} here.`);
  throw new Failure(
    response.ok ? `${path} is no JSON.` : `${path} was answered with ${response.status} ${response.statusText}.`,
  );
}

/**
 * @param {string} path
 * @param {any} body
 */
export function post(path, body) {
  return request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

/** @returns {Promise<Run>} */
export const run = () =>
  get("data/run.json", (/** @type {Run} */ found) => {
    if (found.live) bound = found.checksum;
    axis = new Cells(found.layers);
    patterned = found.patterns !== null;
    return found;
  });
/** @returns {Promise<import("../types.js").CellMap>} */
export const map = () => get("data/map.json", same);
/** @returns {Promise<import("../types.js").Figures>} */
export const figures = () => get("data/figures.json", same);
/** @param {number} layer @returns {Promise<import("../types.js").LayerCells>} */
export const layer = (layer) => get(`data/layers/${layer}.json`, same);
/** The labels of a layer's cells, by number; none if patterns were not looked for. @param {number} layer @returns {Promise<Record<string, string>>} */
export const labels = async (layer) =>
  patterned ? get(`data/labels/${layer}.json`, (/** @type {import("../types.js").Labels} */ { labels }) => labels) : {};
/** @param {number} layer @param {number} cell @returns {Promise<Cell>} */
export const cell = (layer, cell) =>
  get(`data/cells/${layer}/${cell}.json`, async (packed) => unpack.cell(packed, (await run()).packing));
/** @returns {Promise<import("./kinds.js").Kinds>} */
export const kinds = () => get("data/kinds.json", unpack.kinds);
/** @param {number} layer @param {number} cell @returns {Promise<Beside>} */
export const beside = (layer, cell) =>
  get(`data/beside/${layer}/${cell}.json`, async (packed) => ({
    ...packed,
    cell: unpack.cell(packed.cell, (await run()).packing),
  }));
/** @returns {Promise<import("../types.js").Vocabulary>} */
export const vocabulary = () => get("data/vocabulary.json", same);
/** The page of answers on which a token or a unit is. @param {number} number */
export const page = async (number) => Math.floor(number / (await run()).packing.page);
/** @param {number} token */
export const tokens = async (token) =>
  get(`data/tokens/${await page(token)}.json`, (packed) => unpack.tokens(packed, axis));
/** @param {number} bucket @returns {Promise<import("../types.js").Words>} */
export const words = (bucket) => get(`data/words/${bucket}.json`, same);
/** The pattern of a rank. @param {number} rank */
export const pattern = async (rank) => {
  const { page: size } = (await run()).packing;
  const rows = await get(`data/patterns/${await page(rank)}.json`, unpack.patterns);
  return rows[rank % size];
};
/** Not kept, because it is large. @param {number} page */
export const units = async (page) => unpack.units(await request(`data/units/${page}.json`), axis);
/** Not kept, because others write there too. @returns {Promise<import("../types.js").Annotations>} */
export const annotations = () => request("data/annotations.json", { cache: "no-store" });
/** @returns {Promise<import("../types.js").Status>} */
export const status = () => request("api/status", { cache: "no-store" });

/** @param {any} answer */
function same(answer) {
  return answer;
}
