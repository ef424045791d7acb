"""A small corpus, and a run over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from families import CONTEXT

import keyhole
from keyhole.models.model import Model


def corpus(path: Path, count: int = 40) -> Path:
    """Lines of a few words, some alike."""
    random = np.random.default_rng(7)
    words = ["the", "cat", "sat", "on", "a", "mat", "of", "Paris", "dog", "ran", "to", "it"]
    lines = [" ".join(random.choice(words, random.integers(1, 8))) for _ in range(count)]
    path.write_text("\n".join(lines) + "\nx\n", encoding="utf-8")
    return path


def scanned(model: Model, folder: Path, **options: object) -> keyhole.Run:
    text = corpus(folder / "text.txt")
    chosen = {"unit": "line", "top": 4, "context": CONTEXT, "hold_out": 0.35, **options}
    return keyhole.scan(model, [text], out=folder / "run", **chosen)  # type: ignore[arg-type]
