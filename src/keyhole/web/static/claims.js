// @ts-check
/** The headline of the overview: how many claims have which outcome, and each with the effect that it rests on. */
import { h } from "./dom.js";
import { counted, number, visible } from "./text.js";

/** @typedef {import("../types.js").Claim} Claim */

/** @param {string} outcome */
export function badge(outcome) {
  return h("span", { class: `badge ${outcome.replaceAll(" ", "-")}` }, outcome);
}

/** @param {string} text */
export function capital(text) {
  return visible(text.slice(0, 1).toUpperCase() + text.slice(1))
    .replace(/\.$/, "")
    .replace(/ (?=[<=%] ?)|(?<=[<=]) /g, "\u00a0");
}

/** @param {Claim[]} claims @param {string[]} outcomes */
export function headline(claims, outcomes) {
  if (!claims.length) return null;
  const tally = outcomes.map((outcome) => [
    badge(outcome),
    ` ${claims.filter((each) => each.verdict.verdict === outcome).length}  `,
  ]);
  return [
    h("p", { class: "tally" }, `Of ${counted(claims.length, "claim")}: `, tally.flat()),
    h(
      "details",
      { class: "claims" },
      h("summary", {}, "Every claim with its effect"),
      h(
        "p",
        { class: "soft small" },
        "A claim holds if the 95 % interval of its effect lies above the smallest effect that would matter, and does not hold if it lies below. The p is corrected for the number of claims (Holm).",
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
              ["Verdict", "Claim", "Effect (95 % interval)", "At least", "Adjusted p", "In"].map((title) =>
                h("th", { scope: "col" }, title),
              ),
            ),
          ),
          h("tbody", {}, claims.map(row)),
        ),
      ),
    ),
  ];
}

/** @param {Claim} claim */
function row({ figure, verdict }) {
  const { effect, adjusted } = verdict;
  return h(
    "tr",
    {},
    h("td", {}, badge(verdict.verdict)),
    h("td", {}, capital(verdict.claim)),
    h("td", { class: "num" }, effect ? visible(effect.said) : "–"),
    h("td", { class: "num" }, effect ? number(effect.against) : "–"),
    h("td", { class: "num" }, adjusted === null ? "–" : adjusted < 0.001 ? "< 0.001" : number(adjusted, 2)),
    h("td", { class: "soft" }, visible(figure)),
  );
}
