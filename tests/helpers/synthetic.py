"""Rows for every table, shaped like the paper's published curves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.analyses import registry
from keyhole.analyses.stats import rate_interval as wilson
from keyhole.store import tables

Tables = dict[str, list[dict[str, Any]]]
SAMPLE = {"prefixes": 30, "unit": "line", "source": "valid", "files": "<i>sample</i>", "hold_out": 0.0}
SAMPLE |= {"drawn": "prefixes", "seed": 0}
"""Facts about held-out text."""


def fill(path: Path, name: str, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> None:
    """Write a table as `analyze` does."""
    tables.write_table(path, name, rows, facts, schemas=registry.schemas())


def facts_like_the_paper() -> dict[str, dict[str, Any]]:
    """By table, the facts that go with `like_the_paper`: effects as the paper's numbers would give them."""

    def effect(name: str, value: float, half: float) -> dict[str, float]:
        return {name: value, f"{name}_lo": value - half, f"{name}_hi": value + half}

    return {
        "mutation": {"cells": 100, "cells_least": 100, "triggers": 50, "one_token": 12}
        | effect("over_first", 0.4, 0.02)
        | effect("over_random", 0.32, 0.02)
        | effect("over_middle", 0.35, 0.02)
        | effect("less_above", 0.2, 0.03),
        "agreement": {"lens": "norm", "alone": 0.4}
        | effect("above_chance", 0.02, 0.002)
        | effect("beyond_bigram", 0.015, 0.002)
        | effect("lower_part", 0.0002, 0.0003)
        | effect("rise", 0.015, 0.002),
        "rank": {"lens": "norm"} | effect("auc_upper", 0.25, 0.01) | effect("auc_rise", 0.2, 0.02),
        "confidence": {"lens": "norm", "divisor": 3.0} | effect("surer_minus_less", 0.006, 0.002),
        "confident": {"lens": "norm", "divisor": 3.0, "triggers": 50}
        | effect("agree", 0.46, 0.09)
        | effect("agree_excess", 0.44, 0.09),
    }


def like_the_paper(layers: int, cells: int = 1536, n: int = 4000, seed: int = 0) -> Tables:
    rng = np.random.default_rng(seed)
    depth = [layer / max(1, layers - 1) for layer in range(layers)]

    def noisy(value: float, spread: float = 0.01) -> float:
        return float(np.clip(value + rng.normal(0, spread), 0, 1))

    def around(value: float, size: int = n) -> dict[str, float]:
        lo, hi = wilson(value, size)
        return {"lo": lo, "hi": hi}

    found: Tables = {name: [] for name in ("activity", "mutation", "agreement", "rank", "space", "ablation")}
    for layer, d in enumerate(depth):
        fraction = noisy(0.45 - 0.35 * math.exp(-(((d - 0.6) / 0.35) ** 2)))
        found["activity"].append(
            {"layer": layer, "n": cells, "active_fraction": fraction, "lo": fraction - 0.01, "hi": fraction + 0.01}
            | {"dead": (dead := int(rng.integers(0, 3)) if d > 0.9 else 0), "cells": cells, "alive": 1 - dead / cells}
            | {f"alive_{end}": value for end, value in around(1 - dead / cells, cells).items()}
        )
        last = -0.62 + 0.3 * d
        kinds = [("first", None, -0.08), ("last", None, last), ("random", None, -0.15), ("middle", None, -0.12)]
        for dropped, distance, change in kinds + [("distance", i, last / i) for i in range(1, 9)]:
            change += float(rng.normal(0, 0.01))
            found["mutation"].append(
                {"layer": layer, "dropped": dropped, "distance": distance, "n": 5000, "cells": 100}
                | {"mean_change": change, "lo": change - 0.02, "hi": change + 0.02, "median_change": change - 0.01}
                | {"median_lo": change - 0.03, "median_hi": change + 0.01}
            )
        for lens, scale in (("norm", 1.0), ("raw", 0.7)):
            rising = 0.001 + 0.035 * d**4
            for target, rate in (
                ("next", rising),
                ("last", 0.004 + 0.05 * (1 - d) ** 3),
                ("word start", rising * 0.8),
                ("inside a word", rising * 1.3),
            ):
                rate = noisy(rate * scale, 0.0008)
                found["agreement"].append(
                    {"layer": layer, "target": target, "lens": lens, "n": cells, "rate": rate, **around(rate, cells)}
                    | {"permuted": 0.001, "same_last": 0.003, "unigram": 0.002}
                )
            middle, auc = 24000 * math.exp(-2.6 * d), 0.5 + 0.3 * d
            found["rank"].append(
                {"layer": layer, "lens": lens, "n": cells, "p5": middle / 60, "p25": middle / 5, "median": middle}
                | {"p75": min(49000, middle * 1.9), "p95": min(49100, middle * 4)}
                | {"auc": auc, "lo": auc - 0.01, "hi": auc + 0.01}
            )
        for name, rows in section5_rows(layer, d, fraction, cells, n, rng).items():
            found.setdefault(name, []).extend(rows)
        for reading, far in (("raw", 12.0), ("norm", 6.0), ("mapped", 3.0)):
            kl, r2 = far * (1 - d), 0.3 + 0.7 * d
            found["space"].append(
                {"layer": layer, "reading": reading, "n": n, "ridge": 0.1 if reading == "mapped" else None}
                | {"r2": r2, "r2_lo": r2 - 0.05, "r2_hi": r2 + 0.05, "r2_null": -0.01}
                | {"cka": r2, "cka_lo": r2 - 0.05, "cka_hi": r2 + 0.05, "cka_null": 0.05}
                | {"kl": kl, "kl_lo": 0.9 * kl, "kl_hi": 1.1 * kl, "kl_null": 4.0}
                | {"marginal": kl / 2, "marginal_lo": 0.4 * kl, "marginal_hi": 0.6 * kl, "marginal_null": 0.2}
            )
        for cell in (*(int(each) for each in rng.choice(cells, 2, replace=False)), None):
            delta = 0.01 + 0.05 * d
            found["ablation"].append(
                {"layer": layer, "cell": cell, "n": 1 if cell is not None else 2, "triggers": 5, "delta": delta}
                | {"lo": delta - 0.005, "hi": delta + 0.005, "null_cell": 0.005, "null_token": 0.0, "above": 0.8}
            )
    edges = [10 ** (-3.5 + 0.35 * i) for i in range(11)]
    found["confidence"] = [
        {"part": "bin", "layer": None, "bin": i, "max_prob_lo": edges[i], "max_prob_hi": min(1.0, edges[i + 1])}
        | {"n": (size := int(20000 * 0.4**i) + 8), "rate": (rate := min(1.0, 0.004 * 1.55**i)), **around(rate, size)}
        | {"permuted": 0.001}
        for i in range(10)
    ] + [
        {"part": part, "layer": layer, "bin": i, "max_prob_lo": 0.01 + i / 10, "max_prob_hi": 0.1 + i / 10}
        | {"n": cells // 2, "rate": (rate := 0.001 + (0.02 + 0.02 * i) * d**4), **around(rate, cells // 2)}
        | {"permuted": 0.001}
        for i, part in enumerate(("less sure half", "surer half"))
        for layer, d in enumerate(depth)
    ]
    words = [" the", " of", " Paris", "ing", ",", " however", "\n", " million", " which", " Congress"]
    found["confident"] = [
        {
            "layer": layers - 1 - i % max(1, layers // 3),
            "cell": int(rng.integers(cells)),
            "token": words[i % len(words)],
        }
        | {"max_prob": 0.9 - i / 150, "share": (share := max(0.0, 0.92 - i / 50)), **around(share, 50)}
        | {"permuted": 0.02}
        for i in range(100)
    ]
    found["cases"] = [
        {
            "prefix": "The committee of the two Houses has met in the",
            "top_r": " same",
            "top_y": " city",
            "top_o": " first",
        }
        | {"similarity": float(rng.uniform(-0.05, 0.45)), "percentile": 0.8, "related": int(i < 34)}
        for i in range(100)
    ]
    return found


def section5_rows(
    layer: int, d: float, fraction: float, cells: int, n: int, rng: np.random.Generator
) -> dict[str, list[dict[str, Any]]]:
    """The rows of a layer in the tables that are measured on held-out prefixes."""

    def share(name: str, value: float, size: int = n) -> dict[str, float]:
        lo, hi = wilson(value, size)
        return {name: value, f"{name}_lo": lo, f"{name}_hi": hi}

    budget: dict[str, Any] = {"layer": layer, "n": n, "cells": cells, "active_fraction": fraction}
    budget |= {"active_lo": fraction - 0.01, "active_hi": fraction + 0.01}
    for name, value, random in (
        ("effective", 0.2, 0.3),
        ("n90", 0.25, 0.32),
        ("dominance", 0.01, 0.005),
        ("kstar", 0.2, 0.6),
    ):
        budget |= share(name, value) | {f"{name}_median": value, f"{name}_random": random}
    composition = [
        {"layer": layer, "cells": which, "output": output, "n": n, "dealt": 0.97}
        | dict(zip(("zero_agreement", "lo", "hi"), share("", 0.95 - 0.22 * d - less).values(), strict=True))
        for which, less in (("active", 0.0), ("all", 0.1), ("n90", -0.03))
        for output in ("y", "o")
    ]
    middle = 0.05 + 0.6 * d**3
    parts = np.array([0.62 - 0.1 * d, 0.03, 0.1 + 0.3 * d, 0.25 - 0.2 * d]) + rng.uniform(0, 0.01, 4)
    refinement: dict[str, Any] = {"layer": layer, "n": n, "match_dealt": 0.03}
    refinement |= share("residual_match", 0.3 + 0.05 * d + 0.6 * max(0.0, d - 0.4) / 0.6) | share("current", 0.02)
    refinement |= share("final_prob", middle) | {"final_prob_p25": middle / 3, "final_prob_median": middle}
    refinement |= {"final_prob_p75": min(0.99, middle * 1.8)}
    for name, value in zip(("residual", "ffn", "agreement", "composition"), parts / parts.sum(), strict=True):
        refinement |= share(name, float(value))
    part: dict[str, Any] = {"layer": layer, "n": n}
    for name, value in (("size", 0.4 + 0.2 * d), ("ff_changes", 0.2), ("attention_changes", 0.1), ("decisions", 0.6)):
        part |= share(name, value)
    veto: dict[str, Any] = {"layer": layer, "n": n, "changed": 900, "paired": 700}
    for name, value in (("veto", 0.4), ("promotion", 0.9), ("share", 0.3), ("near", 0.9)):
        veto |= share(name, value)
    veto |= (
        {"rank_p25": 2.0, "rank_median": 3.0, "rank_p75": 7.0}
        | share("veto_other", 0.1)
        | share("promotion_other", 0.1)
    )
    training = {"layer": layer, "n": 500, "cells": cells, "share": 0.6, "lo": 0.55, "hi": 0.65}
    return {
        "budget": [budget],
        "composition": composition,
        "refinement": [refinement],
        "part": [part],
        "veto": [veto],
        "training": [training],
    }


def section5_facts() -> dict[str, dict[str, Any]]:
    """Facts of the same tables that confirm what the paper says."""

    def effects(half: float = 0.01, **values: float) -> dict[str, float]:
        return {
            key: number
            for name, value in values.items()
            for key, number in ((name, value), (f"{name}_lo", value - half), (f"{name}_hi", value + half))
        }

    shares = effects(n90_pooled=0.25, n90_sparser=0.07, kstar_pooled=0.2, kstar_earlier=0.4)
    zero = effects(zero_pooled=0.8, zero_least=0.73, stop_share=0.6, stop_more=0.2, short_share=0.43, short_more=0.2)
    refined = effects(match_rise=0.5, match_early=0.33, prob_rise=0.4, stands=0.7, compromise=0.8)
    return {
        "budget": SAMPLE | {"lens": "norm", "settled": 30} | shares | effects(active_inside=0.05, active_drop=0.2),
        "composition": SAMPLE | {"lens": "norm", "agreeing": 2000, "stop_base": 0.4, "short_base": 0.23} | zero,
        "refinement": SAMPLE | {"left_out": "0"} | refined,
        "cases": SAMPLE
        | {"composed": 400, "cases": 100, "variants": 200, "variants_related": 0.9}
        | effects(0.09, share=0.34, mean_percentile=0.8),
        "part": SAMPLE | {"left_out": "0"} | effects(size_rise=0.2, decisions_rise=0.2),
        "veto": SAMPLE | {"held": 30, "left_out": "0", "chosen": 3} | effects(vetoes=0.6),
        "training": SAMPLE | {"compared": 500} | effects(more=0.6),
    }
