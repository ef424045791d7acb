// @ts-check
/** The search's answer to `like L12.345` and `like "a text"`: the nearest keys and values. */
import { parse } from "./cells.js";
import { notYet } from "./coming.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { marked } from "./marks.js";
import { bar, cellLink, failure, listed, preview } from "./parts.js";
import { unquoted } from "./query.js";
import { counted, number, percent, visible } from "./text.js";

/** @typedef {import("../types.js").Nearest} Nearest */

/**
 * @param {string} wanted an address, or a text in quotes
 * @param {data.Run} run
 * @param {AbortSignal} signal
 */
export function near(wanted, run, signal) {
  const body = h("div", { "aria-busy": "true" }, h("p", { class: "soft" }, "Looking …"));
  const done = (/** @type {Parameters<typeof replace>} */ ...[, ...children]) => {
    body.removeAttribute("aria-busy");
    replace(body, ...children);
  };
  nearest(wanted, run, signal).then(
    (shown) => done(body, shown),
    (error) => done(body, failure(error)),
  );
  return body;
}

/** @param {string} wanted @param {data.Run} run @param {AbortSignal} signal */
async function nearest(wanted, run, signal) {
  const text = unquoted(wanted);
  if (text !== null) {
    if (!run.live)
      return h(
        "p",
        { class: "missing" },
        "The cells nearest to a text need the model, which these exported pages do not have. Start it with ",
        h("code", {}, "keyhole serve RUN"),
        ".",
      );
    const found = await data.post("api/nearest", { text });
    return both(found, signal, {
      keys: ["Keys that it makes fire", (x) => `${percent(x)} of its largest`],
      values: ["Values that promote it", (x) => `cosine ${number(x, 2)}`],
      says: `The model read ${counted(found.tokens.length, "token")}. Keys: the coefficient at the last of them, relative to the cell’s largest in the corpus. Values: cosine with the direction of its tokens in the unembedding, rare ones weighted most.`,
    });
  }
  const address = parse(wanted);
  const at = data.axis.locate(address);
  if (!address || !at || at.cell < 0)
    throw new Error(address ? data.axis.missing(address) : `‘${visible(wanted)}’ is no cell.`);
  const own = data.axis.address(at.layer, at.cell);
  const found = run.live ? await data.post("api/nearest", { cell: own }) : await fromCell(at);
  return h(
    "div",
    {},
    h("p", {}, "Nearest to ", cellLink(at.layer, at.cell), "."),
    both(found, signal, {
      keys: ["Keys that share most triggers with it", (x) => counted(x, "shared trigger")],
      values: ["Values with the largest cosine", (x) => `cosine ${number(x, 2)}`],
      says: run.live ? "" : "These exported pages have the first ten of each. More: keyhole serve RUN.",
    }),
  );
}

/** @param {import("./cells.js").At} at @returns {Promise<Nearest>} */
async function fromCell({ layer, cell }) {
  const { similar_keys: keys, similar_values: values } = await data.cell(layer, cell);
  return { tokens: [], keys, values: values ?? [] };
}

/**
 * @param {Nearest} found
 * @param {AbortSignal} signal
 * @param {{keys: [string, (x: number) => string], values: [string, (x: number) => string], says: string}} words
 */
function both(found, signal, words) {
  const column = (/** @type {"keys" | "values"} */ name, /** @type {string} */ kind) => {
    const [title, say] = words[name];
    const rows = found[name];
    const largest = Math.max(1e-9, ...rows.map(([, x]) => Math.abs(x ?? 0)));
    return h(
      "section",
      { "aria-labelledby": `near-${name}` },
      h("h2", { id: `near-${name}`, class: name === "keys" ? "key" : "value" }, title),
      rows.length
        ? listed(rows, ([address, x]) => {
            const { layer, cell } = data.axis.find(address);
            return h(
              "li",
              {},
              h(
                "span",
                { class: "hit" },
                cellLink(layer, cell),
                marked(layer, cell),
                bar(Math.abs(x ?? 0) / largest, kind),
                h("span", { class: "num soft small" }, say(x ?? 0)),
              ),
              preview(address, signal, { promoted: 5 }),
            );
          })
        : h("p", { class: "soft" }, name === "keys" ? "None." : notYet("Not searched for yet", "Find them")),
    );
  };
  return h(
    "div",
    {},
    words.says && h("p", { class: "soft small lead" }, words.says),
    h("div", { class: "two even results" }, column("keys", "fire"), column("values", "say")),
  );
}
