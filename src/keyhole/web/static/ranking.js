// @ts-check
/**
 * How the cells that a search finds are ranked, as searching/ranking.py ranks them.
 *
 * A key: its share is the share of its triggers (of one side) that have the relation to the term. Its lift is that share divided by
 * the share among all triggers of the run. Cells are ranked by the share after some triggers of the run's average are added, so that
 * one trigger of one does not come before 40 of 50.
 */

/** @typedef {import("../types.js").Fires} Fires */
/** @typedef {{cells: number, hits: number, rows: Fires[]}} Firing the keys whose triggers have one relation to one term */
/** @typedef {{place: number, side: 1 | -1, hits: number, of: number, share: number, lift: number, matched: [number, number][], least: boolean}} Key least: there may be more hits */
/** @typedef {{place: number, logit: number, matched: [number, number, number][]}} Value */

/** @type {Firing} */
export const NOTHING = { cells: 0, hits: 0, rows: [] };

/** What keys are ranked by. @param {number} hits @param {number} of @param {number} base @param {number} prior */
export const score = (hits, of, base, prior) => (hits + prior * base) / (of + prior);

/** A number by which cells of equal score are ordered, if nothing else tells them apart: it mixes the layers. @param {number} place */
export const mixed = (place) => Math.imul(place, 2654435761) >>> 0;

/**
 * The keys of one or several terms, the best first, each cell once, by its better side.
 * @param {Firing[]} lists
 * @param {number} triggers of the run
 * @param {number} prior
 * @param {boolean} disjoint a trigger has the relation to one term at most, so hits add up; else a cell's hits, and its lift, are
 *   those of its best term
 * @returns {Key[]}
 */
export function keys(lists, triggers, prior, disjoint) {
  const bases = lists.map(({ hits }) => hits / Math.max(triggers, 1));
  const cut = lists.map(({ hits, rows }) => rows.reduce((sum, [, signed]) => sum + Math.abs(signed), 0) < hits);
  /** @type {Map<string, {place: number, side: 1 | -1, of: number, first: number, matched: [number, number][]}>} */
  const sides = new Map();
  lists.forEach(({ rows }, number) =>
    rows.forEach(([place, signed, of], rank) => {
      const [side, hits] = /** @type {[1 | -1, number]} */ (signed > 0 ? [1, signed] : [-1, -signed]);
      const known = sides.get(`${place} ${side}`) ?? { place, side, of, first: rank, matched: [] };
      known.first = Math.min(known.first, rank);
      known.matched.push([number, hits]);
      sides.set(`${place} ${side}`, known);
    }),
  );
  const order = [...sides.values()].map((each) => {
    const { of, matched } = each;
    const best = matched.reduce((one, other) => (other[1] > one[1] ? other : one));
    const hits = disjoint ? matched.reduce((sum, [, count]) => sum + count, 0) : best[1];
    const base = disjoint ? bases.reduce((sum, own) => sum + own, 0) : bases[best[0]];
    const unknown = cut.some((is, number) => is && !matched.some(([own]) => own === number));
    return { ...each, hits, base, least: unknown || (!disjoint && matched.length > 1), score: score(hits, of, base, prior) };
  });
  order.sort((a, b) => b.score - a.score || a.first - b.first || a.place - b.place || b.side - a.side);
  /** @type {Map<number, Key>} */
  const found = new Map();
  for (const { place, side, hits, of, base, matched, least } of order) {
    const share = hits / of;
    if (!found.has(place)) found.set(place, { place, side, hits, of, share, lift: base ? share / base : 0, matched, least });
  }
  return [...found.values()];
}

/**
 * The values of one or several tokens, largest sum of logits first.
 * @param {{place: number, logit: number, rank: number}[][]} lists one per token, strongest first
 * @returns {Value[]}
 */
export function values(lists) {
  /** @type {Map<number, Value & {first: number}>} */
  const found = new Map();
  lists.forEach((speakers, number) =>
    speakers.forEach(({ place, logit, rank }, at) => {
      const known = found.get(place) ?? { place, logit: 0, first: at, matched: [] };
      known.logit += logit;
      known.first = Math.min(known.first, at);
      known.matched.push([number, logit, rank]);
      found.set(place, known);
    }),
  );
  return [...found.values()].sort((a, b) => Math.abs(b.logit) - Math.abs(a.logit) || a.first - b.first || a.place - b.place);
}
