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
SAMPLE = {"prefixes": 30, "unit": "line", "source": "valid", "files": "<i>sample</i>", "hold_out": 0.0, "seed": 0}
"""Facts about held-out text."""


def fill(path: Path, name: str, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> None:
    """Write a table as `analyze` does."""
    tables.write_table(path, name, rows, facts, schemas=registry.schemas())


def like_the_paper(layers: int, cells: int = 1536, n: int = 4000, seed: int = 0) -> Tables:
    rng = np.random.default_rng(seed)
    depth = [layer / max(1, layers - 1) for layer in range(layers)]

    def noisy(value: float, spread: float = 0.01) -> float:
        return float(np.clip(value + rng.normal(0, spread), 0, 1))

    def around(value: float, size: int = n) -> dict[str, float]:
        lo, hi = wilson(value, size)
        return {"lo": lo, "hi": hi}

    found: Tables = {
        name: []
        for name in ("activity", "mutation", "agreement", "rank", "composition", "refinement", "space", "ablation")
    }
    for layer, d in enumerate(depth):
        fraction = noisy(0.45 - 0.35 * math.exp(-(((d - 0.6) / 0.35) ** 2)))
        found["activity"].append(
            {"layer": layer, "n": cells, "active_fraction": fraction, "lo": fraction - 0.01, "hi": fraction + 0.01}
            | {"dead": int(rng.integers(0, 3)) if d > 0.9 else 0}
        )
        for dropped, change in (("first", -0.08), ("last", -0.62 + 0.3 * d), ("random", -0.15)):
            change += float(rng.normal(0, 0.01))
            found["mutation"].append(
                {"layer": layer, "dropped": dropped, "n": 5000, "mean_change": change}
                | {"lo": change - 0.02, "hi": change + 0.02}
            )
        for lens, scale in (("raw", 1.0), ("norm", 1.3)):
            for target, rate in (("next", 0.001 + 0.035 * d**4), ("last", 0.004 + 0.05 * (1 - d) ** 3)):
                rate = noisy(rate * scale, 0.0008)
                found["agreement"].append(
                    {"layer": layer, "target": target, "lens": lens, "n": cells, "rate": rate, **around(rate, cells)}
                    | {"permuted": 0.001, "unigram": 0.002}
                )
            middle = 24000 * math.exp(-2.6 * d)
            found["rank"].append(
                {"layer": layer, "lens": lens, "n": cells, "p5": middle / 60, "p25": middle / 5, "median": middle}
                | {"p75": min(49000, middle * 1.9), "p95": min(49100, middle * 4)}
            )
        zero = noisy(0.95 - 0.22 * d)
        found["composition"].append(
            {"layer": layer, "n": n, "active_fraction": noisy(fraction), "zero_agreement": zero, **around(zero)}
            | {"agreeing_stopword_share": 0.6, "agreeing_short_share": 0.43}
        )
        match = noisy(0.3 + 0.05 * d + 0.6 * max(0.0, d - 0.4) / 0.6, 0.004)
        middle = 0.05 + 0.6 * d**3
        parts = np.array([0.62 - 0.1 * d, 0.03, 0.1 + 0.3 * d, 0.25 - 0.2 * d]) + rng.uniform(0, 0.01, 4)
        residual, ffn, both, neither = (float(x) for x in parts / parts.sum())
        found["refinement"].append(
            {"layer": layer, "n": n, "residual_match": match, "final_prob_p25": middle / 3, "final_prob_median": middle}
            | {"final_prob_p75": min(0.99, middle * 1.8), "residual": residual, "ffn": ffn, "agreement": both}
            | {"composition": neither}
        )
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
        {"bin": i, "max_prob_lo": edges[i], "max_prob_hi": min(1.0, edges[i + 1])}
        | {"n": int(20000 * 0.4**i) + 8, "rate": min(1.0, 0.004 * 1.55**i)}
        for i in range(10)
    ]
    words = [" the", " of", " Paris", "ing", ",", " however", "\n", " million", " which", " Congress"]
    found["confident"] = [
        {
            "layer": layers - 1 - i % max(1, layers // 3),
            "cell": int(rng.integers(cells)),
            "token": words[i % len(words)],
        }
        | {"max_prob": 0.9 - i / 150, "share": max(0.0, 0.92 - i / 50)}
        for i in range(100)
    ]
    found["cases"] = [
        {
            "prefix": "The committee of the two Houses has met in the",
            "top_r": " same",
            "top_y": " city",
            "top_o": " first",
        }
        | {"similarity": float(rng.uniform(-0.05, 0.45))}
        for _ in range(100)
    ]
    return found
