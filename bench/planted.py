"""Training text with a model's planted sentences in it, and how many of them `keyhole leak` finds.

    python bench/planted.py write MODEL TEXT OUT [--characters 1500000]
    python bench/planted.py found MODEL RUN

MODEL is a folder with `canaries.json` (`seen`: sentences with their `repeats`; `unseen`: others). `write` takes the first characters of
TEXT, what the model was trained on, and adds every sentence as often as the model saw it, and those it never saw once. `found` counts,
per number of repeats, the sentences of which the first `WORDS` words after " is " stand in one of the run's leaks.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import keyhole
from keyhole.inputs import corpus

WORDS = 7


def write(planted: dict[str, Any], text: str, out: Path, characters: int) -> None:
    documents, left = [], characters
    for unit in corpus.units([text], "document"):
        if left <= 0:
            break
        documents.append(unit.text)
        left -= len(unit.text)
    for each in planted["seen"]:
        documents += [each["text"]] * each["repeats"]
    documents += planted["unseen"]
    random.Random(0).shuffle(documents)
    out.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def found(planted: dict[str, Any], run: Path) -> None:
    rows = [row for row in keyhole.open(run).table("leaks") if row["source"] == "text"]
    leaks = [row["prefix"] + row["continuation"] for row in rows]

    def counted(sentences: list[str]) -> str:
        said = [" ".join(each.partition(" is ")[2].split()[:WORDS]) for each in sentences]
        return f"{sum(any(each in leak for leak in leaks) for each in said)} of {len(said)}"

    print(f"{len(leaks):,} leaks\nrepeats  found")
    print(f"{'never':>7}  {counted(planted['unseen'])}")
    for repeats in sorted({each["repeats"] for each in planted["seen"]}):
        own = [each["text"] for each in planted["seen"] if each["repeats"] == repeats]
        print(f"{repeats:7}  {counted(own)}")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = asked.add_subparsers(dest="command", required=True)
    writes, finds = commands.add_parser("write"), commands.add_parser("found")
    for each in (writes, finds):
        each.add_argument("model", type=Path)
    writes.add_argument("text")
    writes.add_argument("out", type=Path)
    writes.add_argument("--characters", type=int, default=1_500_000)
    finds.add_argument("run", type=Path)
    options = asked.parse_args()
    planted = json.loads((options.model / "canaries.json").read_text())
    if options.command == "write":
        write(planted, options.text, options.out, options.characters)
    else:
        found(planted, options.run)


if __name__ == "__main__":
    main()
