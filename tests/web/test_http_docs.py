"""docs/http.md against the addresses, and the example client against a live server."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import Site, lively

from keyhole.store.values import Values
from keyhole.web import docs

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_addresses_say() -> None:
    page = (ROOT / "docs" / "http.md").read_text("utf-8")
    assert page == docs.updated(page), "docs/http.md is out of date: python -m keyhole.web.docs"


def client(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "client.py"), *arguments],
        env={**os.environ, "KEYHOLE_URL": site.url, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.slow
def test_the_example_client(live: Site) -> None:
    run = live.run
    cell = run.cell(1, lively(run, 1))
    said = client(live, "cell", cell.address).stdout.splitlines()
    assert said[0].startswith("promotes")
    shown = [float(line.split()[0]) for line in said[2:]]
    assert shown == pytest.approx([each.coefficient for each in cell.triggers], abs=1e-3)
    promoted = Values(run, "norm").promoted(cell.layer, cell.index)[0]
    lines = client(live, "token", promoted.piece).stdout.splitlines()
    first = Values(run, "norm").promoting(promoted.token)[0]
    assert lines[0].split()[0] == first.address
    lines = client(live, "prompt", "The cat sat").stdout.splitlines()
    assert lines[5].startswith("largest effects")
    assert len(lines) == 16
    wrong = client(live, "cell", "L99.1")
    assert wrong.returncode == 1
    assert "L99.1 is no cell" in wrong.stderr
    assert "with a layer from L0 to" in wrong.stderr
    assert client(live, "token", "not a token").returncode == 1
    away = client(replace(live, url="http://127.0.0.1:1"), "cell", cell.address)
    assert away.returncode == 1
    assert "No server at http://127.0.0.1:1" in away.stderr
