"""How claims are judged: tests that several analyses share, and how their evidence is written as text.

A claim rests on one effect with a 95 % interval over what was sampled (cells, prefixes, documents), and on the smallest effect
that would matter. It `holds` if the interval lies above that, `does not hold` if it lies below, and is `unclear` otherwise. It is
`not applicable` if the question has no meaning for the model, as "m > 0" has none if the sign is a convention. Layers are never
treated as independent draws: a claim about depth compares the highest third of the layers with the lowest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .record import Column, Effect, Fact, Facts, Outcome, Verdict
from .stats import Interval

LEVEL = 0.05


# Numbers as text


def percent(value: float) -> str:
    """A share for reading: 0.04 %, 3.5 %, 68 %."""
    value = 100 * value
    digits = f"{value:.0f}" if value == 0 or abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"
    return digits.replace("-", "−") + " %"


def interval(lo: float, hi: float) -> str:
    low, high = percent(lo).removesuffix(" %"), percent(hi)
    return f"{low} to {high}"


def points(*values: float) -> str:
    """A difference of shares, or the ends of its interval, in percentage points."""
    return " to ".join(percent(value).removesuffix(" %") for value in values) + " points"


def numbers(*values: float) -> str:
    """A number, or the ends of its interval, with three digits after the point."""
    return " to ".join(minus(value, 3) for value in values)


def told(what: str, effect: Effect | None, show: Callable[..., str] = points) -> str:
    """What was measured, and the effect with its interval."""
    if effect is None:
        return what
    ends = "" if effect.lo is None or effect.hi is None else f" ({show(effect.lo, effect.hi)})"
    return f"{what}: {show(effect.value)}{ends}"


def with_interval(effect: Effect | None) -> str:
    """A share with its interval, if it has one: `34 % (31 to 37 %)`."""
    if effect is None:
        return "not known"
    ends = "" if effect.lo is None or effect.hi is None else f" ({interval(effect.lo, effect.hi)})"
    return percent(effect.value) + ends


def minus(value: float, digits: int) -> str:
    """A number with a real minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def layer_ranges(layers: Sequence[int]) -> str:
    """Layers as text: at most three ranges of neighbours."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(named[:3]) + (", …" if len(named) > 3 else "")


# Effects as facts


def effect_columns(name: str, means: str) -> dict[str, Column]:
    """The facts that hold an effect with its interval: what it is must be said in `means`."""
    return {
        name: Column("DOUBLE", means),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
    }


def effect_facts(name: str, found: Interval) -> dict[str, Fact]:
    """An effect for the facts of a table; nothing is known of one that is not a number."""
    known = found if math.isfinite(found.value) else Interval(math.nan)
    return {name: None if math.isnan(known.value) else known.value, f"{name}_lo": known.lo, f"{name}_hi": known.hi}


def read_effect(facts: Facts, name: str, against: float) -> Effect | None:
    """An effect from the facts of a table; None if it could not be measured."""
    value, lo, hi = (
        None if (fact := facts.get(key)) is None else float(fact) for key in (name, f"{name}_lo", f"{name}_hi")
    )
    return None if value is None else Effect(value, lo, hi, against)


# Kinds of judgement


def judge(effect: Effect | None, test: str, evidence: str) -> Verdict:
    """The verdict on a claim that a larger effect speaks for. `test` names what is compared and the smallest effect."""
    if effect is None or effect.lo is None or effect.hi is None:
        return Verdict("unclear", test, evidence if effect else "there is nothing to measure it on", effect)
    outcome: Outcome = (
        "holds" if effect.lo > effect.against else "does not hold" if effect.hi < effect.against else "unclear"
    )
    return Verdict(outcome, test, evidence, effect)


def judge_fact(facts: Facts, name: str, against: float, test: str, what: str, said: str = "") -> Verdict:
    """The verdict on a claim whose effect is a share, or a difference of shares, that is stored among the facts."""
    effect = read_effect(facts, name, against)
    return judge(effect, test, f"{what}: {with_interval(effect)}{said}")


def not_applicable(test: str, why: str) -> Verdict:
    """The verdict on a claim that has no meaning for this model."""
    return Verdict("not applicable", test, why)
