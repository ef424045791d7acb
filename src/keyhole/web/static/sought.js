// @ts-check
/** What is searched for: each term of a query with the token that it means. */
import * as data from "./data.js";
import { h } from "./dom.js";
import { token } from "./parts.js";
import { meant, MOST_TERMS, searchHref, terms } from "./query.js";
import { visible, whole } from "./text.js";

/**
 * @typedef {{term: import("./query.js").Term, token: number | null, piece: string, forms: number[], offered: number[], more: number}} Sought
 *   token: the one that the term means, null if it is a text of several tokens; piece: how that token, or the text, reads;
 *   forms: all tokens that are the term, apart from case and a space; offered: what else it may mean
 */

const OFFERED = 12;

/**
 * @param {string} asked
 * @param {string | null} wanted tokens that the reader chose, one per term
 * @returns {Promise<Sought[]>}
 */
export async function sought(asked, wanted) {
  const { pieces } = await data.vocabulary();
  const chosen = (wanted ?? "").split(",");
  return Promise.all(
    terms(asked)
      .slice(0, MOST_TERMS)
      .map(async (term, i) => {
        const all = meant(pieces, term);
        const forms = all.filter(({ isIt }) => isIt).map(({ id }) => id);
        const named = chosen[i] && pieces[Number(chosen[i])] !== undefined ? Number(chosen[i]) : null;
        const id = named ?? (term.exact && pieces[forms[0]] !== term.text ? null : await used(forms));
        return {
          term,
          token: id,
          piece: id === null ? term.text : pieces[id],
          forms,
          offered: all.slice(0, OFFERED).map(({ id }) => id),
          more: Math.max(0, all.length - OFFERED),
        };
      }),
  );
}

/** The first token that a trigger ends in or contains, or that a value promotes; the first if there is none. @param {number[]} forms */
async function used(forms) {
  for (const id of forms.slice(0, 4)) {
    const page = await data.tokens(id);
    if (page.contains[id] || page.next[id] || page.promoted[id] || page.demoted[id]) return id;
  }
  return forms[0] ?? null;
}

/** The terms that mean something else than those before them: `money or money` is one term. @param {Sought[]} all */
export function distinct(all) {
  /** @type {Map<string, Sought>} */
  const found = new Map();
  for (const each of all) {
    const { text, exact } = each.term;
    const name = each.token === null ? `${exact} ${exact ? text : text.trim().toLowerCase()}` : String(each.token);
    if (!found.has(name)) found.set(name, each);
  }
  return [...found.values()];
}

/** The term as it is shown. @param {Sought} each */
export const shown = ({ token: id, piece }) => (id === null ? h("q", {}, h("bdi", {}, visible(piece))) : token(piece));

/** Several terms in a sentence. @param {Sought[]} all */
export const shownAll = (all) => all.flatMap((each, i) => [i ? (i === all.length - 1 ? " or " : ", ") : "", shown(each)]);

/**
 * What each term may mean, to choose from.
 * @param {Sought[]} all
 * @param {string} asked
 * @param {string} more of the address, to keep
 */
export async function choices(all, asked, more) {
  const { pieces } = await data.vocabulary();
  return all.flatMap((each, i) => {
    if (each.offered.length < 2 && each.token !== null) return [];
    const href = (/** @type {number} */ id) =>
      `${searchHref(asked)}&token=${all.map(({ token: own }, k) => (k === i ? id : (own ?? ""))).join(",")}${more}`;
    return [
      h(
        "nav",
        { class: "chips", "aria-label": `Tokens that ${visible(each.term.text.trim())} may mean` },
        each.token === null && h("span", { class: "soft small" }, each.offered.length ? "No token; part of " : null),
        each.offered.map((id) =>
          h("a", { class: "chip", href: href(id), "aria-current": id === each.token ? "true" : null }, token(pieces[id])),
        ),
        each.more > 0 && h("span", { class: "soft small" }, `and ${whole(each.more)} more that contain it`),
      ),
    ];
  });
}
