"""Progress in a notebook: one line that is redrawn in place. It is what scans and analyses show if nobody asks for anything else
and Python runs in a notebook; elsewhere nothing is shown. Commands show their own bars (`views/progress.py`)."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import Any

from .output import printable

EVERY = 0.25
"""Seconds between two drawings: a notebook keeps every one that it is sent."""


def in_notebook() -> bool:
    """Whether this Python runs the cells of a notebook. IPython in a terminal has no kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Line:
    """One line of the output: a label, a bar, and what is said after it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, label: str, done: int, total: int | None, said: str = "") -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        now, ended = time.monotonic(), total is not None and done >= total
        if self._handle is not None and now - self._drawn < EVERY and not ended:
            return
        self._drawn = now
        room = f'value="{done}" max="{max(total, 1)}"' if total is not None else ""
        text = f"{html.escape(printable(label))} <progress {room}></progress> {html.escape(said)}"
        shown = HTML(f'<div style="font:14px/1.5 system-ui,sans-serif">{text}</div>')
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Bar:
    """The progress of a scan: planning, then tokens and tokens per second."""

    def __init__(self) -> None:
        self._line, self._total, self._done, self._begun, self._first = _Line(), 0, 0, 0.0, 0

    def planned(self, tokens: int) -> None:
        self._line.draw("planning", 0, None, f"{tokens:,} tokens")

    def begin(self, tokens: int, done: int) -> None:
        self._total, self._done, self._first, self._begun = tokens, done, done, time.monotonic()

    def advance(self, tokens: int) -> None:
        self._done += tokens
        speed = (self._done - self._first) / max(time.monotonic() - self._begun, 1e-9)
        said = f"{self._done:,} of {self._total:,} tokens, {speed:,.0f} tokens/s"
        self._line.draw("scanning", self._done, self._total, said)


def _stage(what: str, total: int) -> Callable[[int], None]:
    """A line of its own for each stage of an analysis."""
    line, done = _Line(), 0
    line.draw(what, 0, total)

    def advance(by: int) -> None:
        nonlocal done
        done += by
        line.draw(what, done, total, f"{done / max(total, 1):.0%}")

    return advance


def bar() -> Bar | None:
    """For a scan; None outside a notebook."""
    return Bar() if in_notebook() else None


def stages(what: str, total: int) -> Callable[[int], None]:
    """For everything else: called at the beginning of a stage with its total, it returns what is called with each amount done."""
    return _stage(what, total) if in_notebook() else lambda done: None
