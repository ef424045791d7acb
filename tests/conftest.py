from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything asks the hub
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for the processes that tests start
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="keyhole-tests-")  # the key that runs are signed with
# Kernels that torch compiles, one folder for all processes of a run. The usual one outlives a run that was killed, and a kernel that
# was half written then, or compiled for another processor, ends the process that loads it.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="keyhole-kernels-"))

import hypothesis
import numpy as np
import pytest
import torch
from shared import SHARED

torch.set_num_threads(1)  # tiny models gain nothing from more
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
# Only a power cut tells whether a file was flushed, and tests/faults plays that by noting the calls. A real flush would take
# most of the time of a test that writes a run. The processes that tests start do flush.
os.fsync = os.fstat
hypothesis.settings.register_profile("keyhole", deadline=None)  # a busy machine is not a wrong answer
hypothesis.settings.load_profile("keyhole")


SLOW_FILES = {
    "faults": 0.1,
    "kernels/test_index.py": 0.3,
    "kernels/test_lens.py": 0.3,
    "models/test_compiled.py": 2,
    "scanning/engines/test_processes.py": 6,
    "scanning/test_contract.py": 1,
    "scanning/test_routed.py": 1,
    "test_narrowed.py": 2,
    "views/test_report.py": 1,
    "web/test_browser_widths.py": 2,
    "web/test_cells_js.py": 1,
    "web/test_openapi.py": 0.5,
}
"""Files and folders that `make check` leaves to `make test` as a whole, with the seconds a test takes there, roughly."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of slow files. With several processes, start the slowest files first, so that no process is left with one while the others are idle."""
    tests = Path(__file__).parent
    for item in items:
        within = item.path.relative_to(tests)
        for place in (within.as_posix(), within.parts[0]):
            if place in SLOW_FILES and item.get_closest_marker("slow") is None:
                item.add_marker(pytest.mark.slow(seconds=SLOW_FILES[place]))
    if not hasattr(config, "workerinput"):
        return
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += sum(mark.kwargs.get("seconds", 1) for mark in item.iter_markers("slow"))
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="session")
def wiki16() -> Path:
    """A real 16-layer ReLU model, if the machine has it."""
    folder = SHARED / "models" / "wiki16"
    if not folder.is_dir():
        pytest.skip("the shared model wiki16 is not on this machine")
    return folder


@pytest.fixture
def no_numpy_noise() -> Iterator[None]:
    """Triton's interpreter also computes what a mask discards, and numpy warns of it."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A small corpus with everything that makes triggers delicate: repeated lines, shared beginnings, a long line."""
    lines = [
        "The cat sat on the mat.",
        "The cat sat on the sofa, and the dog looked on.",
        "The cat sat on the mat.",
        "A dog ran. It was quick!",
        "The",
        "An ünïcode line — with “quotes” and 日本.",
        "The cat slept.",
        "",
        "Second document: the cat sat, again and again and again and again and again and again and again and again.",
        "A dog ran.",
        "The cat sat on the mat. Then it left.",
        "x",
    ]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
