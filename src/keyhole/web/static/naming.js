// @ts-check
/** The search's list of patterns: those that name what is asked for, in their description or in their rule. */
import * as data from "./data.js";
import { append, h, replace } from "./dom.js";
import { cellLink, failure, label, listed } from "./parts.js";
import { kind as chip } from "./patterns.js";
import { counted, fnv1a, visible, whole, words } from "./text.js";

/**
 * The patterns whose description contains every word of a term, and those whose rule names one of its tokens, by rank. A word of `common`
 * is in so many patterns that only the best are listed: if other words are asked for too, it does not narrow the search (`narrowed`).
 * @param {import("./sought.js").Sought} sought
 * @param {NonNullable<data.Run["patterns"]>} about
 * @param {number} buckets
 */
async function ranked({ term, forms }, about, buckets) {
  const all = [...new Set(words(term.text))];
  const lists = await Promise.all(
    all.map(async (word) => {
      const { patterns = {} } = await data.words(fnv1a(word) % buckets);
      return Object.hasOwn(patterns, word) ? patterns[word] : [];
    }),
  );
  const common = all.filter((_, i) => lists[i].length >= about.most);
  const rare = lists.filter((list) => list.length < about.most);
  const [first = [], ...others] = rare.length ? rare : lists;
  const rest = others.map((list) => new Set(list.map(([rank]) => rank)));
  const said = first.filter(([rank]) => rest.every((set) => set.has(rank)));
  const named = await Promise.all(forms.map(async (id) => (await data.tokens(id)).rules[id] ?? []));
  return { ranks: [...said, ...named.flat()], common, narrowed: rare.length > 0 };
}

/**
 * The same for several terms: the best come first, one per cell.
 * @param {import("./sought.js").Sought[]} sought
 * @param {NonNullable<data.Run["patterns"]>} about
 * @param {number} buckets
 */
async function rankedAll(sought, about, buckets) {
  const found = await Promise.all(sought.map((each) => ranked(each, about, buckets)));
  /** @type {Map<number, number>} the best rank of each place */
  const best = new Map();
  for (const [rank, place] of found.flatMap(({ ranks }) => ranks).sort(([a], [b]) => a - b))
    if (!best.has(place)) best.set(place, rank);
  return {
    hits: Array.from(best, ([place, rank]) => ({ ...data.axis.split(place), rank })),
    common: found.flatMap(({ common }) => common),
    narrowed: found.some(({ narrowed }) => narrowed),
  };
}

/**
 * Fill a place with the cells whose patterns name what is asked for.
 * @param {HTMLElement} place
 * @param {string} asked
 * @param {import("./sought.js").Sought[]} sought its terms
 * @param {data.Run} run
 * @param {AbortSignal} signal
 * @param {(layer: number, cell: number) => boolean} isOfKind
 */
export async function naming(place, asked, sought, run, signal, isOfKind) {
  if (!run.patterns) return;
  const found = await rankedAll(sought, run.patterns, run.search.words);
  const hits = found.hits.filter(({ layer, cell }) => isOfKind(layer, cell));
  const quote = h("q", {}, h("bdi", {}, visible(asked.trim())));
  replace(
    place,
    hits.length
      ? h("p", { class: "soft", role: "status" }, `${counted(hits.length, "cell")} with a pattern that names it.`)
      : h("p", {}, "No pattern names ", quote, "."),
    found.common.length > 0 &&
      h(
        "p",
        { class: "soft small" },
        h("bdi", {}, visible(found.common.join(", "))),
        found.narrowed
          ? ` left out: in at least ${whole(run.patterns.most)} patterns.`
          : `: only the best ${whole(run.patterns.most)} patterns are listed.`,
      ),
    listed(hits, ({ layer, cell, rank }) => {
      const said = h("span", { class: "snippet" });
      const hit = h("span", { class: "hit" }, cellLink(layer, cell));
      Promise.all([data.pattern(rank), data.labels(layer)]).then(
        ([{ side, number: at, kind, description, auprc, covered, read }, labels]) => {
          append(hit, labels[cell] !== description && label(layer, cell, signal));
          replace(
            said,
            h("span", { class: "rule" }, h("bdi", {}, visible(description)), " ", chip(kind)),
            h(
              "span",
              { class: "soft small" },
              [
                auprc === null ? "not scored" : `AUPRC ${auprc.toFixed(2)}`,
                `${covered} of ${counted(read, "trigger")}`,
                at > 0 && `its pattern ${at + 1}`,
                side < 0 && `${run.model.gated ? "other" : "negative"} side`,
              ]
                .filter(Boolean)
                .join(", "),
            ),
          );
        },
        (error) => replace(said, failure(error)),
      );
      return h("li", {}, hit, said);
    }),
  );
}
