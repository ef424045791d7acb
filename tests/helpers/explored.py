"""A small analysed run over a text that tries things, for the tests of the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from families import tiny

import keyhole
from keyhole.models.model import Model

HOSTILE = [
    "<script>alert(1)</script> was said.",
    "<img src=x onerror=alert(1)> was drawn.",
    "\u202eevil\u2066 \x1b[31m was hidden.",
    "日本語: ein Straßenkätzchen läuft, l’été, ΟΔΟΣ too, and more of it after that.",
]


def model() -> Model:
    return tiny("gpt2")


def write(folder: Path) -> keyhole.Run:
    """The run `folder`/run: 3 layers × 24 cells, both sides, values through both lenses."""
    lines = [f"The cat number {i} sat on mat {i * i % 7}, and the dog looked on. {HOSTILE[i % 4]}" for i in range(24)]
    text = folder / "te<x>t.txt"
    text.write_text("\n".join([*lines, "x", "word " * 40]) + "\n", encoding="utf-8")
    run = keyhole.scan(model(), [text], out=folder / "run", top=6, unit="line", context=64)
    asked = ["activity", "agreement", "rank", "confidence", "confident"]
    return keyhole.analyze(run, only=asked, lens=["norm", "raw"], model=model())


def prompt(text: str, position: int | None = 0, token: str | None = "", **_: Any) -> dict[str, Any]:
    """An answer in place of the model's, of the right type: it says what was asked."""
    numbers = dict.fromkeys(("logit", "p", "original_logit", "original_p"), 0.5)
    chosen = {"piece": token or "", **numbers}
    return {"tokens": [text], "position": position or 0, "token": token or "", "edited": False, "prediction": []} | {
        "original": [],
        "chosen": chosen,
        "layers": [],
        "ranked": [],
        "without": None,
        "problems": [],
    }
