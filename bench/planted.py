"""Write training text in which a model's planted sentences stand as often as the model saw them, to look for leaks in.

    python bench/planted.py MODEL TEXT OUT [--characters 1500000]

MODEL is a folder with `canaries.json` (`seen`: sentences with their `repeats`; `unseen`: others, which are written once); TEXT is
what the model was trained on, of which the first characters are taken.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from keyhole.inputs import corpus


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("model", type=Path)
    asked.add_argument("text")
    asked.add_argument("out", type=Path)
    asked.add_argument("--characters", type=int, default=1_500_000)
    options = asked.parse_args()
    documents, left = [], options.characters
    for unit in corpus.units([options.text], "document"):
        if left <= 0:
            break
        documents.append(unit.text)
        left -= len(unit.text)
    planted = json.loads((options.model / "canaries.json").read_text())
    for each in planted["seen"]:
        documents += [each["text"]] * each["repeats"]
    documents += planted["unseen"]
    random.Random(0).shuffle(documents)
    options.out.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
