// @ts-check
/** Finds an answer of an export: most of its addresses are not files, but lie in packs of many answers. */
import { pack } from "./columns.js";

/** @typedef {import("../types.js").Export} Export */

/** Packs that are kept, decoded. */
const KEPT = 24;
/** @type {Map<string, Promise<import("./columns.js").Pack>>} */
const kept = new Map();
/** @type {Promise<any> | null} */
let texts = null;

/** `data/cells/3/17.json` → cells, [3, 17]. @param {string} path */
function parse(path) {
  const [name, ...numbers] = path.replace(/^data\/|\.json$/g, "").split("/");
  return { name, numbers: numbers.map(Number) };
}

/**
 * Whether an address lies in a pack.
 * @param {Export} site
 * @param {string} path
 */
export function packed(site, path) {
  const { name, numbers } = parse(path);
  return numbers.length > 0 && Object.hasOwn(site.packs, name);
}

/**
 * The answer at an address; undefined if the export has none there.
 * @param {Export} site
 * @param {string} path
 * @param {(file: string) => Promise<Response>} fetched
 */
export async function answer(site, path, fetched) {
  const { name, numbers } = parse(path);
  const first = site.packs[name].findLast((each) => compare(each, numbers) <= 0);
  if (!first) return undefined;
  const file = `data/${[name, ...first].join("-")}.pack?${site.stamp}`;
  const known = kept.get(file);
  const found = known ?? open(file, site, fetched);
  if (!known) found.catch(() => kept.delete(file));
  kept.delete(file); // the one that was used last is dropped last
  kept.set(file, found);
  if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
  return (await found).find(numbers);
}

/**
 * @param {string} file
 * @param {Export} site
 * @param {(file: string) => Promise<Response>} fetched
 * @returns {Promise<import("./columns.js").Pack>}
 */
async function open(file, site, fetched) {
  /** @returns {Promise<any>} */
  const shared = () =>
    (texts ??= open(`data/texts.pack?${site.stamp}`, site, fetched)
      .then(({ find }) => find([0]))
      .catch((error) => {
        texts = null;
        throw error;
      }));
  const bytes = await (await fetched(file)).arrayBuffer();
  return pack(await decompressed(bytes), shared);
}

/** @param {ArrayBuffer} bytes */
async function decompressed(bytes) {
  const [one, two] = new Uint8Array(bytes, 0, 2);
  if (one !== 0x1f || two !== 0x8b) return bytes; // the host said that it is compressed, and the browser undid it
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** @param {number[]} a @param {number[]} b */
function compare(a, b) {
  const i = a.findIndex((number, i) => number !== b[i]);
  return i < 0 ? 0 : a[i] - b[i];
}
