// @ts-check
/**
 * What a query says: its terms, the token that each of them means, or the cell or text whose neighbours are asked for. Python reads a
 * query by the same rules (searching/query.py).
 */

/** @typedef {{text: string, exact: boolean}} Term exact: quoted, or typed with a leading space */

/** Terms of a query that are used. */
export const MOST_TERMS = 16;
const QUOTED = /^\s*"(.+?)"(?=\s*$|\s*\||\s+or\s)/is;
const BARE = /^.*?(?=$|\||\sor\s)/is;
const BETWEEN = /^\s*(?:\||or(?=\s))/i;

/**
 * The terms of a query, which `or` or `|` separates: `money or dollar`, `" not" | never`.
 * @param {string} asked
 * @returns {Term[]}
 */
export function terms(asked) {
  /** @type {Term[]} */
  const found = [];
  let rest = asked;
  while (rest.trim()) {
    const quoted = QUOTED.exec(rest);
    const [taken] = quoted ?? /** @type {RegExpExecArray} */ (BARE.exec(rest));
    const exact = Boolean(quoted) || (!found.length && rest === asked && /^\s/.test(taken));
    const text = quoted ? quoted[1] : exact ? taken.trimEnd() : taken.trim();
    if (text.trim() || quoted) found.push({ text, exact });
    rest = rest.slice(taken.length).replace(BETWEEN, "");
  }
  return found.length || !asked.trim() ? found : [{ text: asked.trim(), exact: false }];
}

const LIKE = /^\s*like\s+(.+?)\s*$/is;
const TEXT = /^"(.+)"$/s;

/** What a query asks the neighbours of: an address or a quoted text after `like`; null if it is no such query. @param {string} asked */
export function like(asked) {
  const wanted = LIKE.exec(asked)?.[1] ?? "";
  return TEXT.test(wanted) || /\d[./]\d/.test(wanted) ? wanted : null;
}

/** What stands between quotes; null if the text is not quoted. @param {string} text */
export const unquoted = (text) => TEXT.exec(text)?.[1] ?? null;

/**
 * The tokens that a term may mean, the likeliest first: the token that begins a word (or, if the term is exact, the token itself), the
 * same inside a word, those in another case; then those that contain it.
 * @param {string[]} pieces
 * @param {Term} term
 */
export function meant(pieces, { text, exact }) {
  const bare = text.trim() || text;
  const low = bare.toLowerCase();
  const first = exact ? text : ` ${bare}`;
  /** @type {[number, number, number][]} */
  const found = [];
  pieces.forEach((piece, id) => {
    const inner = piece.trim() || piece;
    let how = -1;
    if (piece === first) how = 0;
    else if (inner === bare) how = 1;
    else if (inner.toLowerCase() === low) how = piece.startsWith(" ") ? 2 : 3;
    else if (inner.toLowerCase().includes(low)) how = 4;
    if (how >= 0) found.push([how, Array.from(piece).length, id]);
  });
  found.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
  return found.map(([how, , id]) => ({ id, isIt: how < 4 }));
}

/** A text as a query that takes it as it stands. @param {string} text */
export const quoted = (text) => `"${text}"`;

/** The link to the search for a query. @param {string} asked */
export const searchHref = (asked) => `#/search?q=${encodeURIComponent(asked)}`;
