"""Progress in a notebook, against a stand-in for IPython's display."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import explored
import pytest

import keyhole
from keyhole.common import notebook


class Screen:
    """What IPython does of what is needed here: shows a text, and replaces it on request."""

    def __init__(self, kernel: object) -> None:
        self.shown: list[list[str]] = []
        module, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        module.get_ipython = lambda: types.SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        display.HTML = str  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        self.modules = {"IPython": module, "IPython.display": display}

    def display(self, text: str, *, display_id: bool) -> Any:
        assert display_id
        mine = [text]
        self.shown.append(mine)
        return types.SimpleNamespace(update=mine.append)


def installed(monkeypatch: pytest.MonkeyPatch, kernel: object) -> Screen:
    screen = Screen(kernel)
    for name, module in screen.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return screen


def test_a_scan_and_an_analysis_are_shown_in_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path) -> None:
    screen = installed(monkeypatch, kernel=object())
    monkeypatch.setattr(notebook, "EVERY", 0.0)
    run = keyhole.scan(explored.model(), [text], out=tmp_path / "run", top=3, unit="line", context=64)
    (scanned,) = screen.shown
    full = re.search(r'value="(\d+)" max="\1"></progress> \1 of \1 tokens, ', scanned[-1])
    assert full is not None  # repeated windows are read once: fewer tokens than the corpus has
    assert 0 < int(full[1]) <= run.manifest["corpus"]["tokens"]
    keyhole.analyze(run, only=["shading"], model=explored.model())
    stages = screen.shown[1:]
    assert stages
    for lines in stages:
        assert re.search(r'value="(\d+)" max="\1"', lines[-1]), "a stage ends full"
        assert lines[-1].rstrip("</div>").endswith("100%")


def test_a_label_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = installed(monkeypatch, kernel=object())
    notebook.stages("<b>\x1b[31m", 3)(3)
    assert "<b>" not in screen.shown[0][-1]
    assert "\x1b" not in screen.shown[0][-1]


def test_drawings_are_rationed_and_the_last_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = installed(monkeypatch, kernel=object())
    advance = notebook.stages("cells", 10_000)
    for _ in range(10_000):
        advance(1)
    assert len(screen.shown[0]) < 50
    assert 'value="10000"' in screen.shown[0][-1]


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = installed(monkeypatch, kernel=None)  # IPython in a terminal
    notebook.stages("cells", 3)(3)
    assert notebook.bar() is None
    assert screen.shown == []
