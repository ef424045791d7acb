"""The paper's findings in our words, figure by figure, with its published numbers.

Geva, Schuster, Berant, Levy: Transformer Feed-Forward Layers Are Key-Value Memories, EMNLP 2021. Figures and tables keep
the paper's numbers; what the paper does not have is numbered S.
"""

from __future__ import annotations

from dataclasses import dataclass

CITATION = (
    "Geva, Schuster, Berant, Levy: Transformer Feed-Forward Layers Are Key-Value Memories. EMNLP 2021, arXiv 2012.14913"
)
ITS_MODEL = "a 16-layer, word-level model with 65,536 cells, trained on WikiText-103"


@dataclass(frozen=True)
class Finding:
    """A figure of the paper: what it shows, what was found, the number that was published."""

    name: str
    label: str
    part: str
    title: str
    caption: str
    finding: str
    published: str


PARTS = KEYS, VALUES, OUTPUT = "Keys", "Values", "From cells to predictions"

FINDINGS = (
    Finding(
        "mutation",
        "Figure 3",
        KEYS,
        "Which token a key listens to",
        "Relative change of a cell's coefficient when one token of a trigger is dropped. Band: 95 % interval.",
        "Keys react most to the end of their prefix: without its last token a trigger loses most of its strength, less so "
        "in the upper layers, where patterns are about topics more than words.",
        "the last token costs most, less so in upper layers (100 keys a layer, top 50 triggers)",
    ),
    Finding(
        "activity",
        "Figure S1",
        KEYS,
        "How often keys fire",
        "Share of coefficients above zero, over every distinct prefix of the corpus. Band: 95 % interval, "
        "taking prefixes as the sample.",
        "Every key that was read had a recognisable pattern among its triggers. A key that never fires could have none.",
        "160 of 160 sampled keys",
    ),
    Finding(
        "agreement",
        "Figure 4",
        VALUES,
        "Whether a value says what its key saw",
        "Share of cells whose value's top token is the token that follows the key's strongest trigger (next), or the one "
        "that ends it (last). Band: 95 % interval.",
        "In the lower layers a value's top token has nothing to do with what follows its key's trigger. In the upper "
        "layers it agrees far more often than chance.",
        "about 0 in layers 1–10, up to 3.5 % above; chance 0.0004 %",
    ),
    Finding(
        "rank",
        "Figure 5",
        VALUES,
        "How high a value ranks that token",
        "Rank of the trigger's next token in the value's distribution over the vocabulary; 1 is the top. Logarithmic.",
        "Even where the next token is not on top, values of higher layers place it higher.",
        "the rank improves with depth",
    ),
    Finding(
        "confidence",
        "Figure 6",
        VALUES,
        "Sure values agree more",
        "Agreement with the next token, for values grouped by the largest probability in their distribution. "
        "Box: 95 % interval.",
        "A value that puts much probability on one token is more likely to agree with its key.",
        "agreement rises with max(p)",
    ),
    Finding(
        "active",
        "Figure 7",
        OUTPUT,
        "How many cells speak at once",
        "Share of a layer's coefficients above zero, at sampled prefixes. Band: 95 % interval, taking prefixes as the "
        "sample.",
        "Each prediction stirs hundreds to thousands of cells in every layer, fewer towards the upper middle.",
        "10 to 50 %, lowest near layer 10 of 16",
    ),
    Finding(
        "zero_agreement",
        "Figure 8",
        OUTPUT,
        "A layer says what no cell says",
        "Share of prefixes where no active cell's top token is the layer's top token. Band: 95 % interval.",
        "A layer's output is a composition: its top token is usually that of none of its cells. The exceptions are mostly "
        "stop words and very short prefixes.",
        "at least 68 % in every layer; where a cell agrees, 60 % stop words and 43 % prefixes under 5 tokens",
    ),
    Finding(
        "residual_match",
        "Figure 9",
        OUTPUT,
        "When the prediction is made",
        "Share of prefixes where the residual's top token, before the layer, is the model's final one. Band: 95 % interval.",
        "Part of the predictions stand from the lowest layers on; the rest are settled fast in the upper layers.",
        "about a third in the lowest layers, growing fast from layer 10 of 16",
    ),
    Finding(
        "final_probability",
        "Figure 10",
        OUTPUT,
        "How sure the residual is of it",
        "Probability that the residual, before the layer, gives the model's final token. Band: the middle half of the "
        "prefixes.",
        "The residual's probability for the final token grows along the same curve.",
        "same trend as Figure 9",
    ),
    Finding(
        "shares",
        "Figure 11",
        OUTPUT,
        "Who decides",
        "Top tokens of the residual r, the layer y and their sum o, compared. Whisker: 95 % interval of the line between "
        "what stands and what changes.",
        "The residual's prediction mostly stands. A layer hardly ever puts its own token through; when the prediction "
        "changes, it changes to a compromise.",
        "residual and agreement dominate; ffn is rare",
    ),
)

TABLE_1 = Finding(
    "triggers",
    "Table 1",
    KEYS,
    "Cells and their triggers",
    "Cells from the lowest to the highest layers whose triggers share most. Marked: the prefix's last token; behind the "
    "arrow: the token that follows.",
    "Experts who read the top 25 triggers of 160 keys found at least one recurring pattern for every key: n-grams in "
    "the lower layers, topics in the upper ones.",
    "3.6 patterns a key; 65 to 80 % of the triggers covered",
)
TABLE_2 = Finding(
    "confident",
    "Table 2",
    VALUES,
    "The surest values",
    "Values with the largest max(p), their top token, and the share of the key's triggers that it follows.",
    "The values that are surest of one token sit in the upper layers, and about half of them name the token that follows "
    "one of their triggers.",
    "97 of 100 in layers 11–16; 46 of 100 agree with one of the top 50 triggers",
)
TABLE_CASES = Finding(
    "cases",
    "Table S1",
    OUTPUT,
    "Compromises of the last layer",
    "Prefixes where the last layer's sum o has a top token that is neither the residual's (r) nor the layer's (y). "
    "Similarity: cosine of r's and o's tokens in the unembedding.",
    "Most last-layer compromises move to a token that is far in meaning from what it replaces.",
    "66 of 100 distant, 34 related, read by hand",
)
