"""How fast `keyhole --help` answers, compared with an empty Python program.

python bench/help.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(*arguments: str) -> float:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    empty, helped = seconds("-c", "pass"), seconds("-m", "keyhole.cli", "--help")
    print(
        f"python -c pass   {empty:.3f} s\nkeyhole --help   {helped:.3f} s   ({helped / empty:.1f}×; aim: about 0.3 s)"
    )
