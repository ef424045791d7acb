"""An analysis with every kind of figure and with claims of known effects, so that tests need not know the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synthetic import fill

from keyhole.analyses import claims, registry
from keyhole.analyses.record import (
    Analysis,
    Baseline,
    Bins,
    Claim,
    Column,
    Figure,
    Found,
    Lines,
    Listing,
    Measurement,
    Paper,
    Part,
    Series,
    Shown,
    Stack,
    Verdict,
)

NAMES = ("large", "small", "bare", "absent")
STATEMENTS = [f"The planted effect '{name}' is above 0.1" for name in NAMES]


def _judge(name: str) -> Claim:
    def judge(found: Measurement) -> Verdict:
        if found.facts.get("applies") == 0:
            return claims.not_applicable("planted", "it was planted so")
        return claims.judge(claims.read_effect(found.facts, name, 0.1), "planted", f"the planted {name}")

    return Claim(f"The planted effect '{name}' is above 0.1", judge)


def _number(means: str) -> Column:
    return Column("DOUBLE", means)


PLANTED = Analysis(
    name="planted",
    question="What was planted?",
    part="Planted",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("INTEGER", "how many"),
        "up": _number("a share"),
        "down": _number("another"),
        "begin": _number("where a bin begins"),
        "finish": _number("where it ends"),
    },
    facts={
        "applies": Column("INTEGER", "0 if the claims do not apply"),
        **{key: column for name in NAMES for key, column in claims.effect_columns(name, "planted").items()},
    },
    rows=lambda run: Found([]),
    figures=(
        Figure(
            "planted_lines",
            "Planted lines",
            "Lines.",
            Lines(
                "share",
                [Series("up", "up", "wilson"), Series("down", "down", colour="orange")],
                [Baseline("half", 0.5)],
            ),
            claims=tuple(_judge(name) for name in NAMES[:2]),
            paper=Paper("The paper planted it too.", "0.3 | or so"),
        ),
        Figure(
            "planted_bins", "Planted bins", "Bins.", Bins("x", "x", "y", "bins", "begin", "finish", "up", "rate", "all")
        ),
        Figure(
            "planted_stack",
            "Planted stack",
            "A stack.",
            Stack("share", (Part("up", "up", "blue"), Part("down", "down", "orange")), 1),
            claims=tuple(_judge(name) for name in NAMES[2:]),
        ),
        Figure(
            "planted_list",
            "Planted list",
            "A list.",
            Listing(
                (Shown("layer", "number"), Shown("up", "percent")),
                lambda run, rows: [[row["layer"], row["up"]] for row in rows],
                "rows",
            ),
        ),
    ),
)


@contextmanager
def listed() -> Iterator[None]:
    """The planted analysis, among the others."""
    registry.add(PLANTED)
    try:
        yield
    finally:
        registry.remove(PLANTED.name)


def plant(path: Path, layers: int, up: float, **effects: tuple[float, ...] | bool) -> None:
    """Fill the planted table of a run: `up` in every layer, and effects as (value, lo, hi) or (value,)."""
    rows = [
        {"layer": layer, "n": 100, "up": up, "down": 1 - up, "begin": layer / 10, "finish": (layer + 1) / 10}
        for layer in range(layers)
    ]
    facts: dict[str, Any] = dict.fromkeys(PLANTED.facts)
    for name, found in effects.items():
        if isinstance(found, bool):
            facts[name] = int(found)
        else:
            facts |= dict(zip((name, f"{name}_lo", f"{name}_hi"), (*found, None, None), strict=False))
    fill(path, "planted", rows, facts)
