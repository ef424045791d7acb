"""What makes a key fire: its triggers, as the scan stored them (Table 1). Nothing is computed, so there is no table."""

from __future__ import annotations

from .record import KEYS, Analysis, Examples, Figure, Paper

ANALYSIS = Analysis(
    name="triggers",
    question="What makes a key fire?",
    part=KEYS,
    order=1,
    figures=(
        Figure(
            name="triggers",
            label="Table 1",
            title="Cells and their triggers",
            caption="Cells from the lowest to the highest layers whose triggers share most. Marked: the prefix's last token; "
            "after the arrow: the token that follows.",
            mark=Examples(cells=6, triggers=4),
            paper=Paper(
                "Experts who read the top 25 triggers of 160 keys found at least one recurring pattern for every key: n-grams "
                "in the lower layers, topics in the upper ones.",
                "3.6 patterns per key; 65 to 80 % of the triggers covered",
            ),
        ),
    ),
)
