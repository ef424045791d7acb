"""The search for rules, key by key, in several processes. What they need is in files of the run, so each process opens the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import RunError
from ..store import layout
from ..store.annotations import READ
from ..store.patterns import Key
from ..store.run import Run
from . import firing
from .evidence import Effort
from .keys import LEVELS, Fires, Rule, Triggers, find_rules, make_key
from .lexicon import Lexicon
from .text import Ints, Text

REAL, RANDOM = "real", "random"
"""Whose coefficients were gathered: the model's, or those of the control with random weights."""
TEXT = ("tokens", "offsets", "documents")
"""The arrays of a text."""
SEARCHED = 1 << 20
"""Positions of the text, at most, that rules are searched in: windows evenly spaced in it. In more text, the search takes longer and
finds the same; evidence is fitted to all of it."""
CHUNK, MANY = 4, 1000
"""Keys that a process is given together, if there are at least that many; else one at a time, so that none waits long for the last."""


class Job(NamedTuple):
    """One side of a key whose rules are looked for, or a null: the same number of triggers, dealt out over the layer's keys."""

    what: str
    layer: int
    side: int
    number: int
    """of the cell among the chosen cells of its layer"""
    cell: int
    dealt: bool
    seed: int


class Order(NamedTuple):
    """A job whose rules were found, for its key to be made."""

    job: Job
    found: tuple[tuple[Rule, float], ...]
    """rules, each with its q-value"""
    needs: tuple[float, ...]
    effort: Effort


class Desk:
    """What a process has open while it works."""

    def __init__(self, path: str) -> None:
        self.run = Run(path)
        self._texts: dict[str, Text] = {}
        self._parts: dict[str, tuple[Text, Ints]] = {}

    @cached_property
    def lexicon(self) -> Lexicon:
        return Lexicon.of(self.run)

    def text(self, what: str) -> Text:
        """The text that rules are found in."""
        if what not in self._texts:
            tokens, offsets, documents = (
                np.array(layout.load_array(self.run.path, _name(what, name))) for name in TEXT
            )
            self._texts[what] = Text(tokens, offsets, documents, self.lexicon)
        return self._texts[what]

    def pairs(self, what: str, layer: int, side: int) -> firing.Pairs:
        if self.__dict__.get("_pairs_of") != (what, layer, side):
            self._pairs_of, self._pairs = (what, layer, side), firing.read(self.run, what, layer, side)
            self.__dict__.pop("_pool", None)
        return self._pairs

    def fires(self, job: Job) -> Fires:
        pairs = self.pairs(job.what, job.layer, job.side)
        if job.dealt:
            return self._dealt(pairs, job)
        return pairs.fires(job.number, len(self.text(job.what)))

    def _dealt(self, pairs: firing.Pairs, job: Job) -> Fires:
        """As many positions of each level as the key has, drawn from all keys of the layer."""
        length = len(self.text(job.what))
        if "_pool" not in self.__dict__:
            every = [pairs.fires(number, length) for number in range(len(pairs.offsets) - 1)]
            self._pool = tuple(
                np.concatenate(each) for each in zip(*((e.positions, e.levels) for e in every), strict=True)
            )
        positions, levels = self._pool
        own = pairs.fires(job.number, length)
        random = np.random.default_rng((job.seed, job.layer, job.number, job.side > 0))
        chosen = np.empty(0, np.int64)
        for level in range(len(LEVELS), 0, -1):  # the highest first: of several, a position keeps its highest
            among, number = np.flatnonzero(levels == level), int((own.levels == level).sum())
            drawn = among[random.integers(0, len(among), 4 * number + 1)] if len(among) else among
            drawn = drawn[np.sort(np.unique(positions[drawn], return_index=True)[1])]
            new = drawn[~np.isin(positions[drawn], positions[chosen])]
            chosen = np.concatenate([chosen, new[:number]])
        chosen = chosen[np.argsort(positions[chosen], kind="stable")]
        return Fires(positions[chosen], levels[chosen])

    def triggers(self, layer: int, cell: int, side: int) -> Triggers:
        """The strongest triggers of a key, as many as people read."""
        run, place = self.run, self.run.cells.place(layer, cell)
        there = run.side(negative=side < 0)
        windows = []
        for unit, position in zip(
            there.units[place, :READ].tolist(), there.positions[place, :READ].tolist(), strict=True
        ):
            if unit >= 0:
                windows.append(run.unit_tokens(unit)[run.window_start(position) : position + 1])
        return Triggers(Text.of(windows, np.zeros(len(windows)), self.lexicon))

    def search(self, job: Job, penalties: Sequence[float]) -> list[Rule]:
        if job.what not in self._parts:
            self._parts[job.what] = self.text(job.what).part(SEARCHED)
        text, at = self._parts[job.what]
        return find_rules(text, self.fires(job).within(at), seed=job.seed, penalties=penalties)

    def make(self, order: Order) -> Key:
        job = order.job
        there, text = self.fires(job), self.text(job.what)
        own = job.dealt or job.what != REAL
        triggers = _some(text, there) if own else self.triggers(job.layer, job.cell, job.side)
        return make_key(
            job.cell,
            job.side,
            text,
            there,
            order.found,
            triggers,
            seed=job.seed,
            needs=order.needs,
            effort=order.effort,
        )


def _some(text: Text, there: Fires) -> Triggers:
    """Firing positions in place of triggers, for keys whose triggers no scan has."""
    ends = there.fired[:READ]
    windows = [text.tokens[begin : end + 1] for begin, end in zip(text.starts(ends), ends, strict=True)]
    return Triggers(Text.of(windows, np.zeros(len(windows)), text.lexicon))


def save_text(run: Run, text: Text, what: str) -> None:
    """Keep a text for the processes that search in it."""
    for name in TEXT:
        layout.save_array(run.path, _name(what, name), getattr(text, name))


def _name(what: str, name: str) -> str:
    return f"{layout.PATTERNS_FIRED}_text_{what}_{name}"


# Processes

_desk: Desk | None = None


def _open(path: str) -> None:
    global _desk
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _desk = Desk(path)


def _end_with_parent() -> None:
    """A pool's processes wait for work even if nobody is left who could give it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _search(job: Job, penalties: Sequence[float]) -> list[Rule]:
    assert _desk is not None
    return _desk.search(job, penalties)


def _make(order: Order) -> Key:
    assert _desk is not None
    return _desk.make(order)


class Workers:
    """Searches and makes keys, in this process or in several."""

    def __init__(self, run: Run, pool: ProcessPoolExecutor | None) -> None:
        self._pool = pool
        self._own = Desk(str(run.path)) if pool is None else None

    def search(
        self, jobs: Sequence[Job], penalties: Sequence[Sequence[float]], advance: Callable[[int], None]
    ) -> list[list[Rule]]:
        return self._each(_search, (self._own.search if self._own else None), advance, jobs, penalties)

    def make(self, orders: Sequence[Order], advance: Callable[[int], None]) -> list[Key]:
        return self._each(_make, (self._own.make if self._own else None), advance, orders)

    def _each(self, there: Any, here: Any, advance: Callable[[int], None], *lists: Sequence[Any]) -> list[Any]:
        found = []
        together = CHUNK if len(lists[0]) >= MANY else 1
        done = map(here, *lists) if self._pool is None else self._pool.map(there, *lists, chunksize=together)
        try:
            for each in done:
                found.append(each)
                advance(1)
        except RuntimeError as error:
            if self._pool is None:
                raise
            raise RunError(
                f"A process that searched for patterns ended: {error} It may have run out of memory: use fewer (--processes), or "
                "less text (--tokens). What is done is kept: run the same command again."
            ) from None
        return found


@contextmanager
def workers(run: Run, processes: int) -> Iterator[Workers]:
    """Processes that search for rules; with one, this process does."""
    if processes < 2:
        yield Workers(run, None)
        return
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # each process has one core
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_open, initargs=(str(run.path),)
    )
    try:
        yield Workers(run, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads
