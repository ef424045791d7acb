// @ts-check
/** The page's data: fetched from `data/…` (of a server or an export) and `api/…` (of a server), and kept. */

import { Cells } from "./cells.js";
import * as packs from "./packs.js";
import { Part } from "./part.js";
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
 * @typedef {import("../types.js").Tried} Tried
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

/** Which cells there are, if this is an export of a part of a run; null if all are. @type {Part | null} */
export let part = null;

/** Whether a cell can be shown. @param {number} layer @param {number} cell */
export const has = (layer, cell) => part === null || part.has({ layer, cell });

/** The cell that is shown some cells further on. @param {import("./cells.js").At} at @param {number} by */
export const step = (at, by) => (part ?? axis).step(at, by);

/** The layers of which cells can be shown. */
export const layersShown = () => axis.layers.map((_, layer) => layer).filter((layer) => !part || part.hasLayer(layer));

/** The layer some layers further on, of those that can be shown; after the last comes the first. @param {number} layer @param {number} by */
export const layerStep = (layer, by) => {
  const shown = layersShown();
  return shown.at((Math.max(0, shown.indexOf(layer)) + by) % shown.length) ?? layer;
};

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
/** The event that says that the server has new analyses of the run. What was kept of the old ones is dropped. */
export const NEWS = "keyhole-news";
/** The versions of the analyses that answers were made from. A late answer from before is no news. @type {Set<string>} */
const versions = new Set();

/** @param {string | null} version of the analyses that an answer was made from */
function noted(version) {
  if (!version || versions.has(version)) return;
  versions.add(version);
  if (versions.size === 1) return;
  kept.clear();
  window.dispatchEvent(new CustomEvent(NEWS));
}

/** @type {(Code | "")[]} */
const LOST = ["run_changed", "run_gone"];
/** How many requests were sent, and how many of them before the run was last found to be lost. */
let sent = 0;
let sentBeforeLoss = 0;
/** The checksum of the run this page shows. Every request names it, because the server may serve another run by now. */
let bound = "";

/** The addresses that the page was drawn from, and the ETag of every answer. @type {Set<string>} */
const used = new Set();
/** @type {Map<string, string | null>} */
const tags = new Map();

/** A page begins to be drawn. */
export function begin() {
  used.clear();
}

/** Whether the server answers the questions of this page otherwise by now. */
export async function changed() {
  const same = [...used].map(async (path) => {
    const response = await fetched(path, { method: "HEAD", headers: bound ? { "keyhole-run": bound } : {} });
    return response.headers.get("etag") === tags.get(path);
  });
  return (await Promise.all(same)).includes(false);
}

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
  used.add(path);
  const known = kept.get(path);
  if (known) return known;
  const asked = read(path)
    .then(unpacked)
    .catch((error) => {
      kept.delete(path);
      throw error;
    });
  kept.set(path, asked);
  if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
  return asked;
}

const RUN = "data/run.json";
/** How the files of an export are read; null if a server answers. @type {import("../types.js").Export | null} */
let site = null;

/** The answer at an address below data/, from a server or from the files of an export. @param {string} path @returns {Promise<any>} */
export async function read(path) {
  used.add(path);
  // an export may have been replaced: what the browser kept of run.json would name packs that are gone
  if (!site || !packs.packed(site, path)) return request(path, path === RUN ? { cache: "no-cache" } : {});
  const found = await packs.answer(site, path, file).catch((error) => {
    throw error instanceof Failure ? error : new Failure(`${path} could not be read: ${error.message}`);
  });
  if (found === undefined) throw new Failure(`There is no ${path} in this export.`);
  return found;
}

/** @param {string} path @param {RequestInit} [options] */
async function fetched(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Failure(`${path} could not be fetched. Is the server still running?`);
  }
}

/** A file of an export. @param {string} path */
async function file(path) {
  const response = await fetched(path);
  if (response.ok) return response;
  throw new Failure(`${path} was answered with ${response.status} ${response.statusText}. Is the export complete?`);
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
export async function request(path, options) {
  const { response, number } = await answered(path, options);
  return checked(path, response, number);
}

/**
 * The answer as it begins, and the number of the request.
 * @param {string} path
 * @param {RequestInit} [options]
 */
async function answered(path, options) {
  const number = ++sent;
  const headers = new Headers(options?.headers);
  if (bound) headers.set("keyhole-run", bound);
  const response = await fetched(path, { ...options, headers });
  tags.set(path, response.headers.get("etag"));
  noted(response.headers.get("keyhole-analyses"));
  return { response, number };
}

/**
 * The JSON of an answer, or its error.
 * @param {string} path
 * @param {Response} response
 * @param {number} number
 */
async function checked(path, response, number) {
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

/**
 * A file that the server makes.
 * @param {string} path
 * @param {any} body
 * @returns {Promise<Blob>}
 */
export async function postForFile(path, body) {
  const headers = { "content-type": "application/json" };
  const { response, number } = await answered(path, { method: "POST", headers, body: JSON.stringify(body) });
  return response.ok ? response.blob() : checked(path, response, number);
}

/**
 * The lines of an answer that is streamed, each when it comes. Ends without an error when the signal aborts.
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* stream(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const lost = new Failure(`${path} was cut off. Is the server still running?`);
  try {
    const { response, number } = await answered(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok || !response.body) {
      await checked(path, response, number);
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read().catch(() => Promise.reject(lost));
      const lines = (rest + (value ?? "")).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const found = JSON.parse(line);
        if (found.error) throw new Failure(found.error.message, found.error.code);
        yield found;
      }
      if (done && rest) throw lost;
      if (done) return;
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** @returns {Promise<Run>} */
export const run = () =>
  get(RUN, (/** @type {Run} */ found) => {
    if (found.live) bound = found.checksum;
    site = found.export ?? null;
    axis = new Cells(found.layers);
    part = found.export?.part ? new Part(found.export.part, axis) : null;
    patterned = found.patterns !== null;
    return found;
  });
/** Not kept, because what annotators found is one of the measures. @returns {Promise<import("../types.js").CellMap>} */
export const map = () => request("data/map.json");
/** @param {number} measure @returns {Promise<import("../types.js").MeasureMap>} */
export const measureMap = (measure) => read(`data/maps/${measure}.json`);
/** @returns {Promise<import("../types.js").Planes>} */
export const planes = () => get("data/planes.json", same);
/** @param {number} plane @returns {Promise<import("../types.js").Points>} */
export const points = (plane) => get(`data/points/${plane}.json`, same);
/** @param {number} plane @param {number} measure @returns {Promise<import("../types.js").ManyPoints>} */
export const pointBins = (plane, measure) => read(`data/pointbins/${plane}/${measure}.json`);
/** @param {number} plane @param {number} measure @param {number} tile @returns {Promise<import("../types.js").ManyPoints>} */
export const pointCells = (plane, measure, tile) => read(`data/pointcells/${plane}/${measure}/${tile}.json`);
/** @param {number} measure @param {number} block @returns {Promise<import("../types.js").MapCells>} */
export const mapCells = (measure, block) => read(`data/mapcells/${measure}/${block}.json`);
/** @param {number} measure @param {number} block @returns {Promise<import("../types.js").MapRanks>} */
export const mapRanks = (measure, block) => read(`data/mapranks/${measure}/${block}.json`);
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
/** The prefixes that examples below the top are chosen from. @returns {Promise<import("./unpack.js").Sample>} */
export const sample = () => get("data/sample.json", async (packed) => unpack.sample(packed, (await run()).packing));
/** @returns {Promise<import("../types.js").CellTable>} */
export const table = () => get("data/table.json", same);
/** Not kept, because measures.js keeps what it needs of it. @param {number} column @param {number} block @returns {Promise<import("../types.js").ColumnBlock>} */
export const columnBlock = (column, block) => read(`data/columns/${column}/${block}.json`);
/** @param {number} layer @param {number} cell @returns {Promise<Beside>} */
export const beside = (layer, cell) =>
  get(`data/beside/${layer}/${cell}.json`, async (packed) => ({
    ...packed,
    cell: unpack.cell(packed.cell, (await run()).packing),
  }));
/** How the layer is in the run beside this one. @param {number} layer @returns {Promise<import("../types.js").LayerBeside>} */
export const overlaps = (layer) => get(`data/overlaps/${layer}.json`, same);
/** Claims and figures of this run and of the one beside it. @returns {Promise<import("../types.js").Comparison>} */
export const comparison = () => get("data/comparison.json", same);
/** @returns {Promise<import("../types.js").Vocabulary>} */
export const vocabulary = () => get("data/vocabulary.json", same);
/** The page of answers on which a token or a unit is. @param {number} number */
export const page = async (number) => Math.floor(number / (await run()).packing.page);
/** @param {number} token */
export const tokens = async (token) =>
  get(`data/tokens/${await page(token)}.json`, (packed) => unpack.tokens(packed, axis));
/** @param {number} bucket @returns {Promise<import("../types.js").Words>} */
export const words = (bucket) => get(`data/words/${bucket}.json`, same);
/** Where a unit and those near it are. @param {number} unit @returns {Promise<import("../types.js").Documents>} */
export const documents = async (unit) =>
  get(`data/documents/${Math.floor(unit / (await run()).packing.units)}.json`, same);
/** The passages with the tokens of the corpus from one to another. @param {number} begin @param {number} end */
export const passages = async (begin, end) => {
  const { passage: size, separator } = (await run()).packing;
  const first = Math.floor(begin / size);
  return Promise.all(
    Array.from({ length: Math.max(0, Math.ceil(end / size) - first) }, (_, i) =>
      get(`data/passages/${first + i}.json`, (packed) => unpack.passage(packed, separator)),
    ),
  );
};
/** The pattern of a rank. @param {number} rank */
export const pattern = async (rank) => {
  const { page: size } = (await run()).packing;
  const rows = await get(`data/patterns/${await page(rank)}.json`, unpack.patterns);
  return rows[rank % size];
};
/** Not kept, because it is large. @param {number} page */
export const units = async (page) => unpack.units(await read(`data/units/${page}.json`));
/** Not kept, because others write there too. @returns {Promise<import("../types.js").Annotations>} */
export const annotations = () => request("data/annotations.json", { cache: "no-store" });
/**
 * The cells that people marked. Asked again on every page, because others write there too; the browser keeps an answer that did not
 * change. Use marks.js, which adds what the reader of an export marked in this browser.
 * @returns {Promise<import("../types.js").Collections>}
 */
export const collections = () => request("data/collections.json", { cache: "no-cache" });
/** @returns {Promise<import("../types.js").Status>} */
export const status = () => request("api/status", { cache: "no-store" });

/** What is being analyzed, and what is missing. @returns {Promise<import("../types.js").Coming>} */
export async function coming() {
  // not by `request`: it names no run, and so is answered also if the run is lost
  const response = await fetch("api/coming", { credentials: "same-origin", cache: "no-store" });
  const found = await response.json();
  noted(found.version);
  return found;
}

/** @param {any} answer */
function same(answer) {
  return answer;
}
