"""Progress bars on a terminal; nothing is shown if there is none."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..common.output import printable


def _progress(
    *columns: TextColumn | BarColumn | TaskProgressColumn | TimeRemainingColumn | TimeElapsedColumn,
) -> Progress:
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    return Progress(*columns, console=console, disable=not console.is_terminal)


class Bar:
    """The progress of a scan: tokens, tokens per second, time left."""

    def __enter__(self) -> Bar:
        self._progress = _progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("loading", total=None, rate="")
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def planned(self, tokens: int) -> None:
        self._progress.update(self._task, description="planning", rate=f"{tokens:,} tokens")

    def begin(self, tokens: int, done: int) -> None:
        self._progress.reset(self._task, total=tokens, completed=done, description="scanning", rate="")

    def advance(self, tokens: int) -> None:
        self._progress.advance(self._task, tokens)
        speed = self._progress.tasks[0].speed
        self._progress.update(self._task, rate=f"{speed:,.0f} tokens/s" if speed else "")


class Stages:
    """The progress of an analysis: one bar per stage."""

    def __enter__(self) -> Callable[[str, int], Callable[[int], None]]:
        self._progress = _progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TimeElapsedColumn(),
        )
        return self._begin

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def _begin(self, what: str, total: int) -> Callable[[int], None]:
        self._progress.start()  # only now: a refusal before the first stage is then the only output
        task = self._progress.add_task(printable(what), total=total)
        return lambda done: self._progress.advance(task, done)
