// @ts-check
/** What a key waits for: its patterns, with their numbers, and how well they predict where it fires. */
import * as data from "./data.js";
import { h } from "./dom.js";
import { bar } from "./parts.js";
import { counted, number, percent, visible, whole } from "./text.js";

/** @typedef {import("../types.js").KeyPatterns} Key */
/** @typedef {import("../types.js").FoundPattern} Pattern */

/** Tokens of which a cell says how far it needs them. */
const NEEDS = 5;

/** What the numbers mean. @type {Record<string, [name: string, meaning: string]>} */
const MEANING = {
  shallow: ["shallow", "decided by the last tokens and their form"],
  semantic: ["semantic", "decided by topic or meaning, once the last tokens and their form are taken away"],
  covered: ["triggers", "how many of the triggers that were looked at (the strongest, 25 at most) carry the pattern"],
  lift: [
    "lift",
    "how much more often the key fires where the rule matches than anywhere in the text it was found in: the share of its matches at which the key fires, divided by the share of all positions at which it fires",
  ],
  q_value: [
    "q",
    "false-discovery rate: the expected share of patterns with at least as many bits saved that are found in triggers dealt out over the layer’s keys",
  ],
  auprc: [
    "AUPRC",
    "area under precision and recall on held-out text, from 0 to 1; a position counts as firing if its coefficient is above the cell’s 99.9th percentile there, so chance is about 0.001",
  ],
  interval: ["interval", "95 % interval of the AUPRC over the documents of the held-out text"],
  f1: ["F1", "harmonic mean of precision and recall on held-out text, at the rule’s own threshold"],
  pearson: ["Pearson", "correlation of the predicted with the true coefficient, over the positions of the held-out text"],
  promoted: [
    "next token promoted",
    "share of the rule’s matches in held-out text whose next token is among those that the value promotes most; in brackets, the same for the tokens that another cell of the layer promotes",
  ],
  removed: [
    "cell off",
    "mean change of the log-probability of that next token when the cell is switched off, at matches where it is promoted",
  ],
  needs: ["needs", "mean relative change of the coefficient, over the triggers, if this one token is dropped"],
  rules: ["its rules", "the key’s patterns together with the weights of the last tokens"],
  list: [
    "its patterns alone",
    "the key’s patterns without the weights of the last tokens: a position has the share of firing positions of the first pattern that matches it",
  ],
  last_token: ["last-token lookup", "baseline: the mean coefficient given the last token, learned on the same text"],
  bigram: [
    "bigram lookup",
    "baseline: the mean coefficient given the last two tokens, or the last one if the pair is unknown, learned on the same text",
  ],
  neighbour: ["neighbours", "baseline: the nearest neighbours in the embedding of the last tokens, in the same text"],
  other: ["another key’s", "baseline: the rules of another key of the layer"],
  permuted: ["permuted", "baseline: rules found for triggers that were dealt out over the layer’s keys"],
  random: ["random weights", "baseline: rules found for the same key of the model with random weights"],
};
const METHODS = ["rules", "list", "last_token", "bigram", "neighbour", "other", "permuted", "random"];

// The patterns of a cell

/**
 * The patterns of one side of a key. The rows of its triggers get the numbers of those they carry, and are marked while the
 * reader points at a pattern or has pressed its number.
 * @param {Key} key
 * @param {data.Run} run
 * @param {HTMLElement[]} rows of the key's triggers, in their order
 */
export function patterns(key, run, rows) {
  if (!key.patterns.length)
    return h("p", { class: "soft small" }, `No pattern found among its ${counted(key.read, "trigger")}.`);
  /** The pattern whose number is pressed, and the one that is pointed at; −1: none. */
  let pressed = -1;
  const mark = (/** @type {number} */ which) => {
    const carry = new Set(key.patterns[which]?.triggers);
    rows.forEach((row, i) => row.classList.toggle("carries", carry.has(i)));
    items.forEach((item, i) => item.classList.toggle("on", i === which));
  };
  const items = key.patterns.map((pattern, i) => {
    const press = h(
      "button",
      {
        type: "button",
        class: "tag",
        "aria-pressed": "false",
        "aria-label": `Mark the triggers that carry pattern ${i + 1}`,
        title: "Mark its triggers",
        onclick: () => {
          pressed = pressed === i ? -1 : i;
          buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(j === pressed)));
          mark(pressed);
        },
        onfocus: () => mark(i),
        onblur: () => mark(pressed),
      },
      i + 1,
    );
    return h(
      "li",
      { onpointerenter: () => mark(i), onpointerleave: () => mark(pressed) },
      press,
      h(
        "div",
        {},
        h("p", { class: "rule" }, h("bdi", {}, visible(pattern.description)), " ", kind(pattern.kind)),
        facts(pattern, key),
      ),
    );
  });
  const buttons = items.map((item) => /** @type {HTMLButtonElement} */ (item.querySelector("button")));
  rows.forEach((row, i) => row.append(tags(key.patterns, i)));
  const covered = new Set(key.patterns.flatMap((pattern) => pattern.triggers)).size;
  return h(
    "div",
    { class: "found" },
    h(
      "p",
      { class: "soft small" },
      `${covered} of its ${counted(key.read, "strongest trigger")} carry at least one. `,
      run.patterns?.held_out &&
        `Scored on ${counted(run.patterns.held_out.tokens, "token")} they were not found in.`,
    ),
    h("ol", { class: "rules" }, items),
    needs(key),
    scores(key),
    meanings(key),
  );
}

/** A kind as a chip. @param {Pattern["kind"]} name */
export function kind(name) {
  return h("span", { class: `badge ${name}`, title: MEANING[name][1] }, name);
}

/** The numbers of the patterns that a trigger carries, each in a place of its own. @param {Pattern[]} patterns @param {number} trigger */
function tags(patterns, trigger) {
  const carried = patterns.map(({ triggers }) => triggers.includes(trigger));
  const numbers = carried.flatMap((is, i) => (is ? [i + 1] : []));
  return h(
    "span",
    { class: "tags" },
    numbers.length > 0 && h("span", { class: "hidden" }, ` carries ${numbers.length > 1 ? "patterns" : "pattern"} ${numbers.join(", ")}`),
    carried.map((is, i) =>
      h("span", { class: is ? "tag" : "tag none", "aria-hidden": "true", title: is ? visible(patterns[i].description) : null }, is ? i + 1 : "\u00a0"),
    ),
  );
}

/** A number with its name; its title says what it means. @param {string} name @param {string} shown */
const fact = (name, shown) => h("span", { title: MEANING[name][1] }, shown);

/** The numbers of a pattern. @param {Pattern} pattern @param {Key} key */
function facts(pattern, key) {
  const { auprc, f1, pearson, promoted, promoted_null, removed } = pattern;
  const measured = [
    fact("covered", `${pattern.triggers.length} of ${key.read}`),
    h(
      "span",
      { title: `${MEANING.lift[1]} (${whole(pattern.hits)} of ${counted(pattern.matches, "match", "matches")})` },
      `lift ${number(pattern.lift)}`,
    ),
    fact("q_value", `q ${number(pattern.q_value, 2)}`),
    auprc === null ? h("span", {}, "not scored") : fact("auprc", `AUPRC ${auprc.toFixed(2)}`),
    f1 !== null && fact("f1", `F1 ${f1.toFixed(2)}`),
    pearson !== null && fact("pearson", `Pearson ${decimal(pearson)}`),
    promoted !== null &&
      fact(
        "promoted",
        `next token promoted ${percent(promoted)}${promoted_null === null ? "" : ` (another cell’s ${percent(promoted_null)})`}`,
      ),
    removed !== null && fact("removed", `cell off ${decimal(removed)}`),
  ];
  return h("p", { class: "soft small numbers" }, measured);
}

/** Two decimals, with a real minus. @param {number | null} value */
const decimal = (value) => (value === null ? "–" : value.toFixed(2).replace("-", "−"));

/** Which tokens the key needs. @param {Key} key */
function needs(key) {
  const names = ["last token", "one before it", "third last", "fourth last", "fifth last"];
  const said = key.needs.slice(0, NEEDS).flatMap((fall, i) => {
    if (fall === null) return [];
    return [`${names[i]} ${fall < 0 ? "+" : "−"}${percent(Math.abs(fall))}`];
  });
  return said.length > 0 && h("p", { class: "small needs", title: MEANING.needs[1] }, `If one token is dropped: ${said.join(", ")}.`);
}

/** How well the key's patterns predict where it fires, beside the baselines. @param {Key} key */
function scores(key) {
  const rows = METHODS.filter((method) => Object.hasOwn(key.scores, method));
  if (!rows.length) return null;
  return h(
    "table",
    { class: "scores" },
    h("caption", {}, "How well its rules tell where it fires"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "method"),
        ["auprc", "f1", "pearson"].map((name) =>
          h("th", { scope: "col", class: "num", title: MEANING[name][1] }, MEANING[name][0]),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map((method) => {
        const { auprc, lo, hi, auprc_99, f1, pearson } = key.scores[method];
        const [name, meaning] = MEANING[method];
        const at = auprc_99 === null ? "" : `; with firing above the 99th percentile: ${decimal(auprc_99)}`;
        return h(
          "tr",
          { class: method === "rules" ? "own" : null },
          h("th", { scope: "row", title: meaning }, name),
          h(
            "td",
            { class: "num" },
            h(
              "span",
              {},
              bar(auprc ?? 0, method === "rules" ? "fire" : "plain"),
              h("span", { title: MEANING.auprc[1] + at }, decimal(auprc)),
              lo !== null && hi !== null && h("span", { class: "soft interval", title: MEANING.interval[1] }, `${decimal(lo)} to ${decimal(hi)}`),
            ),
          ),
          h("td", { class: "num", title: MEANING.f1[1] }, decimal(f1)),
          h("td", { class: "num", title: MEANING.pearson[1] }, decimal(pearson)),
        );
      }),
    ),
  );
}

/** The meanings again, for those who cannot point. @param {Key} key */
function meanings(key) {
  const methods = METHODS.filter((method) => Object.hasOwn(key.scores, method));
  const names = ["covered", "lift", "q_value", "auprc", ...(methods.length ? ["interval"] : []), "f1", "pearson"];
  if (key.patterns.some(({ promoted }) => promoted !== null)) names.push("promoted");
  if (key.patterns.some(({ removed }) => removed !== null)) names.push("removed");
  if (key.needs.length) names.push("needs");
  return h(
    "details",
    { class: "meanings" },
    h("summary", {}, "What these numbers mean"),
    h(
      "dl",
      {},
      [...names, ...methods, "shallow", "semantic"].map((name) =>
        h("div", {}, h("dt", {}, MEANING[name][0]), h("dd", {}, `${MEANING[name][1]}.`)),
      ),
    ),
  );
}

/** What is said of a key of which no side was looked at. @param {data.Run} run */
export function missing(run) {
  return h(
    "p",
    { class: "soft small" },
    run.patterns ? "Not looked at: " : "Patterns were not looked for: ",
    h("code", {}, `keyhole patterns RUN${run.patterns ? " --cells all" : ""}`),
  );
}
