// @ts-check
/** Two runs on the overview: their claims, and what was scanned in each. */
import { badge, capital } from "./claims.js";
import * as data from "./data.js";
import { h } from "./dom.js";
import { counted, number, visible, whole } from "./text.js";

/** @typedef {import("../types.js").Comparison} Comparison */
/** @typedef {import("../types.js").ComparedClaim} ComparedClaim */

/** @param {string} text */
const named = (text) => h("bdi", {}, visible(text));

/**
 * Every claim on both runs.
 * @param {Comparison} found
 */
export function claims({ name, claims, missing }) {
  if (!claims.length) return null;
  const results = /** @type {const} */ (["differs", "no clear difference", "cannot be compared"]);
  const tally = results
    .map((result) => [result, claims.filter((each) => each.result === result).length])
    .filter(([, count]) => count)
    .map(([result, count]) => `${result}: ${count}`);
  return h(
    "details",
    { class: "claims both", open: true },
    h("summary", {}, "Every claim in both runs (", tally.join(", "), ")"),
    h(
      "p",
      { class: "soft small" },
      "Beside this run: ",
      named(name),
      ". The difference is the effect here minus the effect there, with its 95 % interval. A claim differs if its p for no difference, corrected for the number of claims (Holm), is below 0.05.",
    ),
    missing.length > 0 &&
      h(
        "p",
        { class: "soft small" },
        `Not filled there: ${missing.join(", ")}. Fill them: `,
        h("code", {}, "keyhole analyze OTHER"),
      ),
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Claim", "Here", "There", "Difference", "Adjusted p", ""].map((title) => h("th", { scope: "col" }, title)),
          ),
        ),
        h("tbody", {}, claims.map(row)),
      ),
    ),
  );
}

/** @param {ComparedClaim} claim */
function row({ figure, here, there, result, why, difference, adjusted }) {
  const outcome = (/** @type {import("../types.js").Verdict | null} */ verdict) =>
    h(
      "td",
      {},
      verdict ? badge(verdict.verdict) : "–",
      verdict?.effect && h("span", { class: "effect num" }, ` ${visible(verdict.effect.said)}`),
    );
  return h(
    "tr",
    {},
    h("td", {}, capital(here.claim), h("span", { class: "soft small" }, ` ${visible(figure)}`)),
    outcome(here),
    outcome(there),
    h("td", { class: "num" }, difference ? visible(difference.said) : "–"),
    h("td", { class: "num" }, adjusted === null ? "–" : adjusted < 0.001 ? "< 0.001" : number(adjusted, 2)),
    h(
      "td",
      { class: result === "differs" ? null : "soft small", title: why ? visible(why) : null },
      result === "differs" ? h("b", {}, result) : there === null ? "not measured there" : why ? visible(why) : result,
    ),
  );
}

/**
 * The verdict of a claim in the other run, below that of this run.
 * @param {Comparison} found
 * @param {string} claim
 */
export function there({ name, claims }, claim) {
  const compared = claims.find(({ here }) => here.claim === claim);
  if (!compared) return null;
  const { there, result } = compared;
  return h(
    "p",
    { class: "small there" },
    "In ",
    named(name),
    ": ",
    there ? badge(there.verdict) : "not measured",
    there?.effect ? ` effect ${visible(there.effect.said)}` : "",
    result === "differs" ? "; it differs." : ".",
  );
}

/**
 * What was scanned, a column per run.
 * @param {data.Run} run
 * @param {Comparison} found
 * @param {(run: Pick<data.Run, "model" | "corpus" | "config">, shape: string) => [string, string][]} facts
 */
export function scanned(run, { name, run: other }, facts) {
  const shape = `${data.axis.depth} layers × ${data.axis.widths} cells`;
  /** @type {[string, string][][]} */
  const both = [
    [...facts(run, `${shape} = ${whole(data.axis.length)}`), ["Never fired", counted(run.dead, "cell")]],
    [...facts(other, `${other.shape} = ${whole(other.cells)}`), ["Never fired", counted(other.dead, "cell")]],
  ];
  return h(
    "div",
    { class: "scroll", tabindex: "0" },
    h(
      "table",
      { class: "bothruns" },
      h(
        "thead",
        {},
        h("tr", {}, h("td"), h("th", { scope: "col" }, "This run"), h("th", { scope: "col" }, named(name))),
      ),
      h(
        "tbody",
        {},
        both[0].map(([title, here], i) =>
          h("tr", {}, h("th", { scope: "row" }, title), h("td", {}, named(here)), h("td", {}, named(both[1][i][1]))),
        ),
      ),
    ),
    run.beside?.why ? h("p", { class: "soft small" }, visible(run.beside.why)) : null,
  );
}
