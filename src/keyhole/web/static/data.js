// @ts-check
/** What the page knows: fetched from `data/…` (server and export alike) and `api/…` (server only), kept, and named here. */

import * as unpack from "./unpack.js";

/**
 * @typedef {{keyhole: string, live: boolean, checksum: string,
 *   model: {name: string, family: string, layers: number, cells: number, signed: boolean},
 *   corpus: {sources: string[], documents: number, units: number, tokens: number, distinct_prefixes: number, scanned_prefixes: number},
 *   config: {top: number, per: string, unit: string, context: number},
 *   lenses: string[], lens: string | null, shading: boolean, worth: string[], words: number, dead: number}} Run
 * @typedef {{name: string, title: string, lo: number, hi: number, scale: string, data: string, kinds?: string[]}} Measure
 * @typedef {{layers: number, cells: number, measures: Measure[]}} CellMap
 * @typedef {{claim: string, verdict: string, why: string, test?: string}} Verdict
 * @typedef {{name: string, label: string, title: string, caption: string, note: string, spec: any, finding: string, published: string, verdicts: Verdict[]}} Figure
 * @typedef {{active: number[], max: number[], min: number[], trigger: (string | null)[], last: (string | null)[], next: (string | null)[],
 *   dead: number[], promotes?: string[][], agreement?: (number | null)[], max_prob?: (number | null)[], norm?: (number | null)[]}} Columns
 * @typedef {{layer: number, columns: Columns}} Layer
 * @typedef {{c: number, unit: number, position: number, count: number, tokens: string[], at: number, cut: [number, number], shade?: string}} Trigger
 * @typedef {{token: string, hits: number, of: number}} Agreement
 * @typedef {[string, number]} Said
 * @typedef {{lens: string, norm: number, max_prob: number, entropy: number, promoted: Said[], demoted: Said[],
 *   agreement: Agreement | null, negative_agreement: Agreement | null, rank: number | null}} Value
 * @typedef {{address: string, layer: number, cell: number, dead: boolean,
 *   stats: {n: number, active: number, mean: number, std: number, max: number, min: number},
 *   histogram: {edges: number[], counts: number[], n: number} | null,
 *   triggers: Trigger[], negative: Trigger[], values: Value[],
 *   similar_keys: [string, number][], similar_values: [string, number][]}} Cell
 * @typedef {{layer: number, cell: number, scale: number, positions: number[] | null}} Edit
 * @typedef {{triggers: number[], description: string, kind: string}} Pattern
 * @typedef {{annotator: string, layer: number, cell: number, patterns: Pattern[], skipped: boolean}} Annotation
 * @typedef {{annotations: Annotation[], notes: Record<string, string>}} Annotations
 * @typedef {{cell: number, m: number, strength: number, effect: number}} Contribution
 * @typedef {{tokens: string[], position: number, token: string, edited: boolean, prediction: Said[], original: Said[],
 *   chosen: {piece: string, logit: number, p: number, original_logit: number, original_p: number},
 *   layers: {layer: number, before: Said[], after: Said[], strongest: Contribution[], effective: Contribution[]}[]}} Prompt
 */

/** What went wrong, in words for the reader. */
export class Failure extends Error {
  /** @param {string} message @param {string} [code] the server's name for it */
  constructor(message, code = "") {
    super(message);
    this.code = code;
  }
}

/** The event that says whether the server still serves the run of this page: its detail is a code of `LOST`, or "" if it does. */
export const STANDING = "keyhole-standing";
const LOST = ["run_changed", "run_gone"];
/** The run this page shows, for every request to name: a server may have been given another one meanwhile. */
let bound = "";

const KEPT = 400;
/** @type {Map<string, Promise<any>>} */
const kept = new Map();

/**
 * @param {string} path
 * @returns {Promise<any>}
 */
function get(path) {
  const known = kept.get(path);
  if (known) return known;
  const asked = request(path).catch((error) => {
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
  let response;
  try {
    const named = bound ? { "keyhole-run": bound } : {};
    response = await fetch(path, { credentials: "same-origin", ...options, headers: { ...options?.headers, ...named } });
  } catch {
    throw new Failure(`${path} could not be fetched. Is the server still running?`);
  }
  const body = await response.json().catch(() => null);
  const code = body?.error?.code ?? "";
  if (response.ok || LOST.includes(code)) window.dispatchEvent(new CustomEvent(STANDING, { detail: code }));
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
export const run = async () => {
  const found = await get("data/run.json");
  if (found.live) bound = found.checksum;
  return found;
};
/** @returns {Promise<CellMap>} */
export const map = () => get("data/map.json");
/** @returns {Promise<{figures: Figure[]}>} */
export const figures = () => get("data/figures.json");
/** @param {number} layer @returns {Promise<Layer>} */
export const layer = (layer) => get(`data/layers/${layer}.json`);
/** @param {number} layer @param {number} cell @returns {Promise<Cell>} */
export const cell = (layer, cell) => get(`data/cells/${layer}/${cell}.json`).then(unpack.cell);
/** @returns {Promise<{pieces: string[]}>} */
export const vocabulary = () => get("data/vocabulary.json");
/** @param {number} token @returns {Promise<{promoted: Record<string, number[][]>, demoted: Record<string, number[][]>}>} */
export const tokens = async (token) =>
  unpack.tokens(await get(`data/tokens/${Math.floor(token / 64)}.json`), (await run()).model.cells);
/** @param {number} bucket @returns {Promise<{words: Record<string, number[]>}>} */
export const words = (bucket) => get(`data/words/${bucket}.json`);
/** Large, so not kept. @param {number} chunk @returns {Promise<{units: Record<string, {text: string, cells: number[][]}>}>} */
export const units = async (chunk) =>
  unpack.units(await request(`data/units/${chunk}.json`), (await run()).model.cells);
/** Never kept: others write there too. @returns {Promise<Annotations>} */
export const annotations = () => request("data/annotations.json", { cache: "no-store" });
/** @returns {Promise<{model: string, loaded: boolean, limits: {prompt_tokens: number, edits: number, prompt_characters: number, positions: number}}>} */
export const status = () => request("api/status", { cache: "no-store" });
