// @ts-check
/** Which keys' triggers end in a text of several tokens, contain it, or are followed by it: found in the texts themselves, as
 * searching/phrases.py does. */
import * as data from "./data.js";
import { mixed, score } from "./ranking.js";
import { fnv1a, words } from "./text.js";

/** @typedef {"ends" | "contains" | "next"} Relation */
/** @typedef {Record<Relation, import("./ranking.js").Firing>} ByRelation */
/** @typedef {{firing: ByRelation, triggers: number, texts: number, read: number, unknown: string[]}} Phrase */

/** @type {Relation[]} */
export const RELATIONS = ["ends", "contains", "next"];

/**
 * The keys whose triggers have each relation to a text. Case does not matter, unless the term is exact.
 * @param {import("./query.js").Term} term
 * @param {data.Run} run
 * @param {AbortSignal} signal
 * @returns {Promise<Phrase>}
 */
export async function find(term, run, signal) {
  const wanted = [...new Set(words(term.text))];
  const lists = await Promise.all(
    wanted.map(async (word) => {
      const page = await data.words(fnv1a(word) % run.search.words);
      return Object.hasOwn(page.words, word) ? page.words[word] : [];
    }),
  );
  const unknown = wanted.filter((_, i) => !lists[i].length);
  const rest = lists.slice(1).map((list) => new Set(list));
  const units = unknown.length || !wanted.length ? [] : lists[0].filter((unit) => rest.every((set) => set.has(unit)));
  const read = units.slice(0, run.search.texts);
  const pages = [...new Set(await Promise.all(read.map(data.page)))];
  /** @type {Record<Relation, Map<string, [number, number, number]>>} */
  const counts = { ends: new Map(), contains: new Map(), next: new Map() };
  let triggers = 0;
  for (const number of pages) {
    const page = await data.units(number);
    if (signal.aborted) break;
    triggers = page.triggers;
    for (const unit of read) if (page.units[unit]) count(counts, page.units[unit], term, run.config.top);
  }
  const firing = /** @type {ByRelation} */ (
    Object.fromEntries(RELATIONS.map((each) => [each, ranked([...counts[each].values()], triggers, run.search)]))
  );
  return { firing, triggers, texts: units.length, read: read.length, unknown };
}

/**
 * @param {Record<Relation, Map<string, [number, number, number]>>} counts by place and side: place, hits, triggers of that side
 * @param {data.Unit} unit
 * @param {import("./query.js").Term} term
 * @param {number} top
 */
function count(counts, unit, term, top) {
  const look = new Look(unit.text, term);
  if (!look.found.length) return;
  for (const { side, end, places } of unit.held) {
    const begin = unit.starts.findLast((start) => start < end) ?? 0;
    for (const relation of look.relations(begin, end))
      for (const place of places) {
        const of = unit.few.get(place)?.[side > 0 ? 0 : 1] ?? top;
        const known = counts[relation].get(`${place} ${side}`) ?? [place, 0, of];
        known[1] += side;
        counts[relation].set(`${place} ${side}`, known);
      }
  }
}

/** @param {[number, number, number][]} rows @param {number} triggers @param {data.Run["search"]} search */
function ranked(rows, triggers, { prior, most }) {
  const hits = rows.reduce((sum, [, n]) => sum + Math.abs(n), 0);
  const base = hits / Math.max(triggers, 1);
  const scored = rows.map((row) => ({ row, score: score(Math.abs(row[1]), row[2], base, prior) }));
  scored.sort((a, b) => b.score - a.score || mixed(a.row[0]) - mixed(b.row[0]) || b.row[1] - a.row[1]);
  return { cells: new Set(rows.map(([place]) => place)).size, hits, rows: scored.slice(0, most).map(({ row }) => row) };
}

/** Looks for a term in one text, at whole words. Characters are counted as Python counts them. */
export class Look {
  /** @param {string} text @param {import("./query.js").Term} term */
  constructor(text, term) {
    const bare = term.text.trim() || term.text;
    /** @type {string[]} */
    this.text = letters(text, term.exact);
    this.wanted = letters(bare, term.exact);
    /** @type {number[]} where it begins */
    this.found = [];
    for (let at = 0; at + this.wanted.length <= this.text.length; at++)
      if (this.wanted.every((letter, i) => this.text[at + i] === letter) && this.#begins(at)) this.found.push(at);
  }

  /** How the prefix from `begin` to `end` stands to the term. @param {number} begin @param {number} end @returns {Relation[]} */
  relations(begin, end) {
    const size = this.wanted.length;
    let after = end;
    while (after < this.text.length && /\s/u.test(this.text[after])) after++;
    /** @type {[Relation, boolean][]} */
    const all = [
      ["ends", end - size >= begin && this.found.includes(end - size)],
      [
        "contains",
        this.found.some((at) => at >= begin && at + size <= end && (at + size === end || this.#ends(at + size))),
      ],
      ["next", this.found.includes(after) && this.#ends(after + size)],
    ];
    return all.filter(([, holds]) => holds).map(([relation]) => relation);
  }

  /** @param {number} at */
  #begins(at) {
    return at === 0 || !(letter(this.text[at - 1]) && letter(this.wanted[0]));
  }

  /** @param {number} at */
  #ends(at) {
    return at >= this.text.length || !(letter(this.text[at]) && letter(this.wanted[this.wanted.length - 1]));
  }
}

/** The letters of a text; in lower case, unless it is exact, so that none changes its place. @param {string} text @param {boolean} exact */
function letters(text, exact) {
  return Array.from(text, (each) => {
    const low = each.toLowerCase();
    return exact || Array.from(low).length !== 1 ? each : low;
  });
}

/** @param {string} text */
const letter = (text) => /[\p{L}\p{M}\p{N}'’]/u.test(text);
