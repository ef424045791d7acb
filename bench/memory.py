"""Memory that planning takes beyond the model: corpora of growing length, a tiny model, each plan in a process of its own.

It must not grow with the corpus, because the plan is on disk.

    python bench/memory.py
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))


def measure(path: str, tokens: int) -> None:
    """In a process of its own: the largest resident size before and after planning."""
    from common import plan_for
    from families import tiny

    from keyhole.scanning.config import ScanConfig

    model = tiny("llama")
    model.coefficients("warm up")
    config = ScanConfig(unit="line", batch_tokens=1 << 16)
    with tempfile.TemporaryDirectory() as folder:
        plan_for(model, Path(folder) / "warm", [path], 10_000, config)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        plan = plan_for(model, Path(folder) / "x", [path], tokens, config)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(plan.summary.tokens, plan.summary.distinct_prefixes, (after - before) // 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million-tokens", type=int, nargs="+", default=[1, 4, 16, 48])
    parser.add_argument("--measure", nargs=2)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], int(options.measure[1]))
        return
    words = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "a",
        "is",
        "that",
        "it",
        "was",
        "for",
        "on",
        "are",
        "with",
        "as",
        "his",
        "they",
        "be",
        "at",
        "one",
        "have",
        "this",
        "from",
        "or",
        "had",
        "by",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.txt"
        rng = random.Random(0)
        with path.open("w") as file:
            for _ in range(max(options.million_tokens) * 1_000_000 // 60):
                file.write(" ".join(rng.choices(words, k=18)) + "\n")
        print("      tokens   distinct prefixes   memory over the smallest plan's")
        for million in options.million_tokens:
            command = [sys.executable, __file__, "--measure", str(path), str(million * 1_000_000)]
            tokens, distinct, grown = map(int, subprocess.check_output(command, text=True).split())
            print(f"{tokens:12,}   {distinct:17,}   {grown:,} MB (allowed: 200)")


if __name__ == "__main__":
    main()
