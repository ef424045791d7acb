// @ts-check
/** The search's list of values: those that promote what is asked for, and those that demote it. */
import { notYet } from "./coming.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { marked } from "./marks.js";
import { bar, cellLink, listed, preview } from "./parts.js";
import { meant, searchHref } from "./query.js";
import { values } from "./ranking.js";
import { choices, distinct, shown, shownAll } from "./sought.js";
import { counted, number, visible, whole, words } from "./text.js";

/** @typedef {import("./sought.js").Sought} Sought */
/** @typedef {(layer: number, cell: number) => boolean} IsOfKind */

/**
 * Fill a place with the values that promote and demote the tokens that are asked for.
 * @param {HTMLElement} place
 * @param {Sought[]} sought
 * @param {string} asked
 * @param {data.Run} run
 * @param {AbortSignal} signal
 * @param {{kind: string, isOfKind: IsOfKind}} only
 */
export async function valuesOf(place, sought, asked, run, signal, only) {
  if (!run.lens)
    return replace(
      place,
      h("p", { class: "missing" }, notYet("The values are not read yet", "Read them")),
    );
  const tokens = distinct(sought).filter(({ token }) => token !== null);
  const pages = await Promise.all(tokens.map(({ token }) => data.tokens(Number(token))));
  const side = (/** @type {"promoted" | "demoted"} */ name) => {
    const lists = tokens.map(({ token }, i) =>
      (pages[i][name][Number(token)] ?? []).map(({ layer, cell, logit, rank }) => ({
        place: data.axis.place(layer, cell),
        logit,
        rank,
      })),
    );
    const every = values(lists);
    const all = every.filter(({ place }) => {
      const { layer, cell } = data.axis.split(place);
      return only.isOfKind(layer, cell);
    });
    const of = only.kind ? every.length : null;
    const totals = tokens.map(({ token }, i) => pages[i].cut[String(token)]?.[name === "promoted" ? 0 : 1] ?? 0);
    const cut = totals.some((total) => total > run.search.speakers);
    return { all, cut, of, total: cut && tokens.length === 1 && !only.kind ? totals[0] : null };
  };
  const texts = sought.filter(({ token }) => token === null);
  const { pieces } = await data.vocabulary();
  const several = texts.map(({ term }) => words(term.text)).filter((each) => each.length > 1);
  const single = several.flat().filter((word) => meant(pieces, { text: word, exact: false }).some(({ isIt }) => isIt));
  replace(
    place,
    await choices(sought, asked, only.kind && `&kind=${only.kind}`),
    texts.length > 0 &&
      h(
        "p",
        {},
        `${texts.length > 1 ? "These are" : "This is"} no single token of the model: `,
        shownAll(texts),
        ". ",
        single.length > 0 && [
          "Search for one: ",
          ...single.flatMap((word, i) => [
            i ? ", " : "",
            h("a", { href: searchHref(word) }, h("bdi", {}, visible(word))),
          ]),
        ],
      ),
    tokens.length > 0 && [
      speakers("promote", tokens, side("promoted"), "say", signal),
      speakers("demote", tokens, side("demoted"), "unsay", signal),
    ],
  );
}

/**
 * @typedef {{all: import("./ranking.js").Value[], cut: boolean, of: number | null, total: number | null}} Spoken cut: there may be more;
 *   of: how many there were before those of a kind were chosen; total: how many there are, if that is known
 */

/** @param {string} verb @param {Sought[]} tokens @param {Spoken} found @param {string} kind @param {AbortSignal} signal */
function speakers(verb, tokens, { all, cut, of, total }, kind, signal) {
  if (!all.length && of)
    return h("p", {}, `None of the ${cut ? "best " : ""}${whole(of)} values that ${verb} `, shownAll(tokens), " is of this kind.");
  if (!all.length) return h("p", {}, `No value has `, shownAll(tokens), ` among the tokens it ${verb}s most.`);
  const largest = Math.max(...all.map(({ logit }) => Math.abs(logit)), 1e-9);
  const several = tokens.length > 1;
  return h(
    "div",
    {},
    h(
      "h3",
      {},
      of
        ? `Of this kind: ${whole(all.length)} of the ${cut ? "best " : ""}${whole(of)} values that ${verb} `
        : total === null
        ? `${counted(all.length, "value")}${cut ? " or more" : ""} ${!cut && all.length === 1 ? `${verb}s` : verb} `
        : `The best ${whole(all.length)} of ${whole(total)} values that ${verb} `,
      shownAll(tokens),
    ),
    listed(all, ({ place, logit, matched }) => {
      const { layer, cell } = data.axis.split(place);
      return h(
        "li",
        {},
        h(
          "span",
          { class: "hit" },
          cellLink(layer, cell),
          marked(layer, cell),
          bar(Math.abs(logit) / largest, kind),
          h("span", { class: "num soft small" }, `${number(logit)}${several ? "" : `, rank ${matched[0][2]}`}`),
        ),
        several &&
          h(
            "span",
            { class: "matched small soft" },
            matched.map(([i, each, rank]) => h("span", {}, shown(tokens[i]), ` ${number(each)}, rank ${rank}`)),
          ),
        preview(data.axis.address(layer, cell), signal, { triggers: 1, promoted: 5, demoted: verb === "demote" }),
      );
    }),
  );
}
