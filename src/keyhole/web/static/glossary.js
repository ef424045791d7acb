// @ts-check
/** The words of these pages, each in a sentence or two. docs/glossary.md has the same, and a test compares them. */
import { h } from "./dom.js";

/** The paper that the words come from. */
export const PAPER = "https://aclanthology.org/2021.emnlp-main.446/";

/** @type {[string, string][]} */
export const TERMS = [
  ["cell", "A key and its value: one of the many memories of a feed-forward layer. L12.345 is cell 345 of layer 12, both counted from 0."],
  ["key", "The part of a cell that reads: a vector, compared with what the layer sees at each token. How well they match is the coefficient."],
  ["value", "The part of a cell that writes: a vector that is added to the prediction in the making, times the coefficient."],
  ["coefficient", "How strongly a key fires at a token, written m: what the activation function, and the gate if there is one, make of the match between key and input."],
  ["prefix", "The beginning of a text up to a token: all that the model has read when it predicts the next one. A prefix that occurs often is counted once, with its count."],
  ["trigger", "A prefix with one of the cell’s largest coefficients in the corpus that was scanned. Its last token, where the key fires, is boxed; the next token is underlined."],
  ["the other side", "Triggers whose coefficient has the opposite sign: there the cell writes minus its value, and what it demotes becomes likelier. In a layer with a gate, the sign with the strongest coefficient comes first."],
  ["promoted, demoted", "The tokens that a value makes likelier and less likely: those with the largest and the smallest logits when the value is read through a lens."],
  ["lens", "How a vector inside the model is read as tokens. raw multiplies it with the unembedding; norm first scales it as the model’s final norm does; mapped first maps it to the last layer."],
  ["max p", "The largest probability that a value alone gives to a token, at the strength it has at its top trigger. Large: the value insists on few tokens."],
  ["agreement", "The share of a cell’s triggers that are followed by the very token its value promotes most."],
  ["rank", "The place of the token that follows the top trigger among all tokens, sorted by what the value promotes. 1 is agreement."],
  ["peak", "The largest coefficient divided by the root mean square of all: how far the strongest trigger stands out from the rest. 1 if all are alike."],
  ["dead", "A cell whose key never fires in the corpus that was scanned."],
  ["kind", "A label that a number decides, such as n-gram, positional, entropy or token-suppressing; the page of a cell shows the number and its threshold. SQL and the table have short names: ngram, last_token, promoting, suppressing."],
  ["pattern", "What several triggers of a key have in common, as a rule that runs without the model. The first one is the cell’s label."],
  ["effect", "What a cell’s addition does to the logit of a chosen token. Direct: read off the last layer, everything else unchanged. Measured: the model is run again with the cell switched off."],
  ["run", "What one scan found, as a folder: every cell’s triggers, and what the analyses added."],
  ["leak", "Text of a corpus that the model says by heart: after the words before it, greedy decoding gives its next tokens exactly, eight or more."],
  ["exposure", "How much likelier a line is than others of the same form, in bits: log2 of the number of lines compared, minus log2 of its rank among them."],
  ["n90", "How many cells must be switched off, first to last in a ranking, until the model says at most a tenth of a leak’s tokens, also with up to twice as many."],
];

export async function render() {
  return {
    title: "Glossary",
    body: h(
      "div",
      {},
      h("h1", {}, "Glossary"),
      h(
        "p",
        { class: "lead" },
        "The words are those of ",
        h("a", { href: PAPER, rel: "noreferrer", target: "_blank" }, h("cite", {}, "Transformer Feed-Forward Layers Are Key-Value Memories")),
        " (Geva, Schuster, Berant, Levy; EMNLP 2021).",
      ),
      h(
        "dl",
        { class: "glossary" },
        TERMS.map(([term, meaning]) => h("div", {}, h("dt", {}, term), h("dd", {}, meaning))),
      ),
    ),
  };
}
