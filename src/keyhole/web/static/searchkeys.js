// @ts-check
/** The search's list of keys: those whose triggers end in what is asked for, contain it, or are followed by it. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { marked } from "./marks.js";
import { bar, cellLink, listed, preview } from "./parts.js";
import { find, Look, RELATIONS } from "./phrases.js";
import { keys, NOTHING } from "./ranking.js";
import { distinct, shown, shownAll } from "./sought.js";
import { counted, number, percent, visible, whole } from "./text.js";

/** @typedef {import("./sought.js").Sought} Sought */
/** @typedef {import("./phrases.js").Relation} Relation */
/** @typedef {{firing: import("./phrases.js").ByRelation, triggers: number, texts?: number, read?: number, unknown?: string[]}} Found */

/** @type {Record<Relation, {name: string, says: string, title: string}>} */
const SAYS = {
  ends: { name: "ends in", says: "end in", title: "the last token of the trigger, at which the key fires" },
  contains: { name: "contains", says: "contain", title: "anywhere in the prefix" },
  next: { name: "next token", says: "are followed by", title: "the token after the trigger" },
};
/** Tokens shown around a match that is far from the end of a trigger, and at its end. */
const AROUND = 3;

/** @param {Sought} each @param {data.Run} run @param {AbortSignal} signal @returns {Promise<Found>} */
async function firing({ token: id, term }, run, signal) {
  if (id === null) return find(term, run, signal);
  const page = await data.tokens(id);
  const of = (/** @type {Relation} */ relation) => page[relation][id] ?? NOTHING;
  return { triggers: page.triggers, firing: { ends: of("ends"), contains: of("contains"), next: of("next") } };
}

/**
 * Fill a place with the three lists of keys, one of which is shown.
 * @param {HTMLElement} place
 * @param {Sought[]} asked
 * @param {data.Run} run
 * @param {AbortSignal} signal
 * @param {{kind: string, isOfKind: (layer: number, cell: number) => boolean}} only
 * @param {{relation: string | null, choose: (relation: Relation) => void}} tab
 */
export async function keysOf(place, asked, run, signal, { kind, isOfKind }, tab) {
  const sought = distinct(asked);
  const found = await Promise.all(sought.map((each) => firing(each, run, signal)));
  const tokens = sought.every(({ token }) => token !== null);
  const triggers = Math.max(...found.map((each) => each.triggers));
  const lists = RELATIONS.map((relation) => {
    const each = found.map(({ firing }) => firing[relation]);
    const every = keys(each, triggers, run.search.prior, tokens && relation !== "contains");
    const hits = every.filter(({ place }) => {
      const { layer, cell } = data.axis.split(place);
      return isOfKind(layer, cell);
    });
    const cut = each.some(({ cells, rows }) => cells > new Set(rows.map(([place]) => place)).size);
    const all = sought.length === 1 && !kind ? each[0].cells : hits.length;
    return { relation, hits, all, cut, of: kind ? every.length : null };
  });
  const list = h("div");
  /** @param {Relation} relation */
  const draw = (relation) => {
    const chosen = /** @type {(typeof lists)[number]} */ (lists.find((each) => each.relation === relation));
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === relation));
    replace(list, summary(chosen, sought, found), chosen.hits.length > 0 && rows(chosen, sought, run, signal));
  };
  const buttons = lists.map(({ relation, all, cut, hits, of }) =>
    h(
      "button",
      {
        type: "button",
        value: relation,
        title: SAYS[relation].title,
        onclick: () => {
          draw(relation);
          tab.choose(relation);
        },
      },
      SAYS[relation].name,
      " ",
      h("span", { class: "soft" }, `${whole(all)}${cut && !of && all === hits.length ? "+" : ""}`),
    ),
  );
  replace(place, h("div", { class: "switch relations", role: "group", "aria-label": "Relation" }, buttons), list);
  const first = lists.find(({ relation }) => relation === tab.relation) ?? lists.find(({ hits }) => hits.length) ?? lists[0];
  draw(first.relation);
}

/**
 * @param {{relation: Relation, hits: import("./ranking.js").Key[], all: number, cut: boolean, of: number | null}} list of: how many there
 *   were before those of a kind were chosen
 * @param {Sought[]} sought
 * @param {Found[]} found
 */
function summary({ relation, hits, all, cut, of }, sought, found) {
  const { says } = SAYS[relation];
  const unknown = found.flatMap((each) => each.unknown ?? []);
  const partly = found
    .filter(({ texts = 0, read = 0 }) => read < texts)
    .map(({ texts = 0, read = 0 }) => ` Only the first ${whole(read)} of ${whole(texts)} texts with its words were read.`);
  if (of)
    return h(
      "p",
      { class: "soft", role: "status" },
      `Of this kind: ${hits.length ? whole(hits.length) : "none"} of the ${cut ? "best " : ""}${counted(of, "cell")} with triggers that ${says} `,
      shownAll(sought),
      ".",
      partly,
    );
  if (!hits.length)
    return h(
      "p",
      { role: "status" },
      `No trigger ${relation === "ends" ? "ends in" : relation === "contains" ? "contains" : "is followed by"} `,
      shownAll(sought),
      ".",
      unknown.length > 0 && [` No text has the word${unknown.length > 1 ? "s" : ""} `, h("q", {}, h("bdi", {}, visible(unknown.join(", ")))), "."],
    );
  return h(
    "p",
    { class: "soft", role: "status" },
    `${counted(all, "cell")}${cut && all === hits.length ? " or more" : ""} with triggers that ${says} `,
    shownAll(sought),
    `${all > hits.length ? `; the best ${whole(hits.length)} are listed` : ""}.`,
    partly,
  );
}

/** @param {{relation: Relation, hits: import("./ranking.js").Key[]}} list @param {Sought[]} sought @param {data.Run} run @param {AbortSignal} signal */
function rows({ relation, hits }, sought, run, signal) {
  return listed(hits, (hit) => {
    const { layer, cell } = data.axis.split(hit.place);
    const least = hit.least ? "at least " : "";
    return h(
      "li",
      {},
      h(
        "span",
        { class: "hit" },
        cellLink(layer, cell),
        marked(layer, cell),
        bar(hit.share, hit.side > 0 ? "fire" : "chill"),
        h(
          "span",
          {
            class: "num soft small",
            title: `${percent(hit.share)} of its triggers; ${number(hit.lift, 2)} times the share among all triggers of the run`,
          },
          `${least}${hit.hits} of ${counted(hit.of, "trigger")}, ×${number(hit.lift, 2)}`,
          hit.side < 0 && `, ${run.model.gated ? "other" : "negative"} side`,
        ),
      ),
      sought.length > 1 &&
        h(
          "span",
          { class: "matched small soft" },
          hit.matched.map(([i, hits]) => h("span", {}, shown(sought[i]), ` ${hits}`)),
        ),
      preview(data.axis.address(layer, cell), signal, {
        promoted: 5,
        negative: hit.side < 0,
        pick: (found) => picked(hit.side > 0 ? found.triggers : found.negative, relation, hit.matched.map(([i]) => sought[i])),
      }),
    );
  });
}

/**
 * The first trigger that has the relation to a term, with what was searched for marked; the first of all if the match lies before what
 * is shown of it.
 * @param {data.Trigger[]} triggers
 * @param {Relation} relation
 * @param {Sought[]} sought
 */
function picked(triggers, relation, sought) {
  for (const trigger of triggers)
    for (const each of sought) {
      const where = matches(trigger, relation, each);
      if (where) return [relation === "contains" ? near(trigger, where) : { trigger, mark: new Set() }];
    }
  return triggers.slice(0, 1).map((trigger) => ({ trigger, mark: new Set() }));
}

/** The tokens of a trigger that match; null if it does not have the relation. @param {data.Trigger} trigger @param {Relation} relation @param {Sought} sought */
function matches({ tokens, at }, relation, { token: id, piece, term }) {
  if (id !== null) {
    const where = relation === "ends" ? at : relation === "next" ? at + 1 : tokens.slice(0, at + 1).lastIndexOf(piece);
    return tokens[where] === piece ? [where] : null;
  }
  const look = new Look(tokens.join(""), term);
  /** @type {number[]} where each token ends */
  const ends = [];
  for (const each of tokens) ends.push((ends.at(-1) ?? 0) + Array.from(each).length);
  if (!look.relations(0, ends[at]).includes(relation)) return null;
  const begin = look.found.findLast((start) => start + look.wanted.length <= ends[at]) ?? -1;
  return tokens.map((_, i) => i).filter((i) => ends[i] > begin && (ends[i - 1] ?? 0) < begin + look.wanted.length);
}

/** A trigger without what lies between a match and its end, so that both can be seen. @param {data.Trigger} trigger @param {number[]} where */
function near(trigger, where) {
  const { tokens, at, shade } = trigger;
  const [first, last] = [where[0], where[where.length - 1]];
  const [upTo, from] = [last + 1 + AROUND, at - 2 * AROUND];
  if (upTo >= from) return { trigger, mark: new Set(where) };
  const begin = Math.max(0, first - 2 * AROUND);
  const kept = (/** @type {any[]} */ all, /** @type {any} */ between) => [...all.slice(begin, upTo), between, ...all.slice(from)];
  return {
    trigger: {
      ...trigger,
      tokens: kept(tokens, " … "),
      shade: shade && kept(shade, 0),
      at: upTo - begin + 1 + at - from,
      cut: /** @type {[number, number]} */ ([trigger.cut[0] + begin, trigger.cut[1]]),
    },
    mark: new Set(where.map((i) => i - begin)),
  };
}
