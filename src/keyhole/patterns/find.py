"""`keyhole patterns`: find what every key waits for, and score it on text it was not found in.

The steps, each of which leaves files in the run so that an interrupted search goes on from there:

1. a pass of the model over part of the scanned text: where the chosen keys fire, and what the baselines learn (`firing.py`);
2. which tokens the keys need: their triggers without one token (`needs.py`);
3. layer by layer, rules for every key and for dealt-out triggers, by whose number false discoveries are controlled;
4. the same for the control with random weights;
5. one pass over held-out text: the scores of the rules beside those of the baselines (`scoring.py`);
6. what the patterns have to do with the values (`fits.py`), and the tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ..common import notebook
from ..common.checks import whole
from ..common.files import fingerprint, read_small, replace_bytes
from ..errors import RunError, UsageError
from ..models.load import load
from ..models.model import SPLIT, Model
from ..models.rerun import model_of
from ..store import layout, manifest, underway
from ..store import patterns as stored
from ..store.patterns import Key
from ..store.run import Run
from . import lexicon
from .baselines import Baselines
from .discovery import LARGEST_Q, q_values
from .evidence import FULL, QUICK
from .firing import gather
from .firing import read as read_pairs
from .fits import fits
from .held import held_out_text, mining_text
from .keys import LEAST_FIRES, Rule
from .lexicon import Lexicon
from .needs import needs
from .scoring import score
from .text import Text
from .workers import RANDOM, REAL, Job, Order, Workers, save_text, workers

Texts = Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None
Progress = Callable[[str, int], Callable[[int], None]]
ALL = "all"
TOKENS, TOKENS_OF_ALL = 1 << 20, 1 << 18
"""Tokens of the scanned text that rules are found in, if nothing else is said: for some keys per layer, and for all."""
HELD_OUT = 1 << 19
"""Tokens of held-out text that they are scored on, at most."""
CONTROL_TOKENS = 1 << 18
"""Tokens of that text, at most, that the rules of the control are found in. More cannot help them: they are another model's."""
NULLS = 150
"""Dealt-out searches per layer. If it has fewer keys, some are made several times."""
RIVALS = 30
"""Keys per layer, at most, for which rules of dealt-out triggers and of random weights are made and scored: they cost as much as the
key's own, and say the same of all keys."""
POOL = 50
"""Triggers are dealt out over at least this many keys of a layer, if it has that many: of fewer, each would keep too much of its own."""
ABLATED = 10
"""Keys per layer whose triggers lose one token at a time, if nothing else is said: each costs a few hundred short texts."""
UNNEEDED, UNNEEDED_BITS = 0.05, 12.0
"""A condition on a token whose loss lowers the coefficient by less than the first number costs the second number of bits more."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """What decides the result, beside the run itself."""

    cells: int | Literal["all"]
    text: tuple[str, ...]
    tokens: int
    held_out_tokens: int
    held_out: tuple[str, ...]
    seed: int
    ablated: int
    baselines: bool
    scored: bool


def patterns(
    run: Run | str | os.PathLike[str],
    *,
    cells: int | str = 100,
    held_out: Texts = None,
    text: Texts = None,
    tokens: int | None = None,
    held_out_tokens: int = HELD_OUT,
    seed: int = 0,
    ablate: int | None = None,
    baselines: bool | None = None,
    score: bool = True,
    processes: int | None = None,
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    force: bool = False,
    progress: Progress = notebook.stages,
) -> Run:
    """Find and score the patterns of `cells` random keys per layer, or of all. They are stored in the run.

    `held_out` is text to score on; without it, what the scan held out. `text` is text to find rules in; without it, what was scanned.
    `ablate`: keys per layer whose triggers lose one token at
    a time; this and `baselines` are done unless all keys are looked at. `processes`: as many as there are cores, if it is not given. A search that was interrupted goes on.
    """
    if device == SPLIT or (isinstance(model, Model) and model.split):
        raise UsageError("Patterns need the model on one device: --device cuda or cpu, not split.")
    number = _number(cells)
    every = number == ALL
    files, found_in = _listed(held_out), _listed(text)
    settings = Settings(
        cells=number,
        text=tuple(map(_named, found_in)),
        tokens=whole("tokens", tokens if tokens is not None else TOKENS_OF_ALL if every else TOKENS, 1000),
        held_out_tokens=whole("held_out_tokens", held_out_tokens, 1000),
        held_out=tuple(map(_named, files)),
        seed=whole("seed", seed, 0),
        ablated=whole("ablate", ablate if ablate is not None else 0 if every else ABLATED, 0),
        baselines=(not every) if baselines is None else baselines,
        scored=score,
    )
    count = whole("processes", (os.cpu_count() or 1) if processes is None else processes, 1)
    path = run.path if isinstance(run, Run) else Path(run)
    manifest.read_manifest(path)
    with layout.locked(path) as held:
        progress = underway.Note(held, ["patterns"]).watching(progress)
        layout.drop_damaged(path)
        run = run if isinstance(run, Run) else Run(path)
        if run.manifest["config"].get("shard"):
            raise RunError(f"{run.path} is one shard of a scan. Merge the shards first (keyhole merge).")
        there = layout.read_patterns(path)
        if there is None or force or there.get("asked") != _plain(settings):
            load_model = lambda: model_of(run, model, device=device, trust_remote_code=trust_remote_code)  # noqa: E731
            _Search(run, settings, files, found_in, load_model, trust_remote_code, count, force, progress).go()
        else:
            _remove_steps(path)  # of a search that was stopped when all but this was done
    return run


def _remove_steps(path: Path) -> None:
    """Remove what a search keeps until it is complete."""
    with layout.writing_analyses(path):
        for file in path.glob(f"{layout.PATTERNS_FIRED}_*"):
            file.unlink()


def _listed(texts: Texts) -> list[str]:
    """The names of texts, of which one may be given alone."""
    return [str(each) for each in ([texts] if isinstance(texts, (str, os.PathLike)) else texts or [])]


def _named(text: str) -> str:
    """A text by its name and, if it is a file, by what is in it: other text of the same name is other text."""
    path = Path(text)
    return f"{path.name} {fingerprint(path)['sha256'][:16]}" if path.is_file() else text


def _number(cells: int | str) -> int | Literal["all"]:
    if cells == ALL:
        return "all"
    try:
        return whole("cells", int(cells) if isinstance(cells, str) else cells, 1)
    except ValueError:
        raise UsageError(f"--cells is a number of keys per layer, at least 1, or 'all', not {cells!r:.40}.") from None


def _plain(settings: Settings) -> dict[str, Any]:
    """As JSON gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return found


class _Search:
    def __init__(
        self,
        run: Run,
        settings: Settings,
        files: list[str],
        found_in: list[str],
        load_model: Callable[[], Model],
        trust_remote_code: bool,
        processes: int,
        force: bool,
        progress: Progress,
    ) -> None:
        self.run, self.settings, self._files, self._found_in = run, settings, files, found_in
        self._trust_remote_code = trust_remote_code
        self._load, self._processes, self._progress = load_model, processes, progress
        self.cells = chosen_cells(run, settings.cells, settings.seed)
        self.pool = pooled(run, self.cells, settings.seed)
        self.sides = (1, -1) if run.gated else (1,)
        random = np.random.default_rng((settings.seed, RIVALS))
        self.rivals = {
            layer: np.sort(random.choice(each, min(RIVALS, len(each)), replace=False))
            for layer, each in self.cells.items()
        }
        self._notes = run.path / f"{layout.PATTERNS_FIRED}_notes.json"
        self.done: list[str] = [] if force else self._read_notes()

    # What is done

    def _read_notes(self) -> list[str]:
        """The steps of an interrupted search with the same settings over the same run; none if there was no such search."""
        try:
            notes = json.loads(read_small(self._notes))
            asked, run, done = (notes[name] for name in ("asked", "run", "done"))
            same = asked == _plain(self.settings) and run == self.run.manifest["checksum"]
            return [str(step) for step in done] if same else []
        except (OSError, ValueError, LookupError, TypeError):  # there are none, or they are damaged
            return []

    def _note(self, step: str) -> None:
        self.done.append(step)
        notes = {"asked": _plain(self.settings), "run": self.run.manifest["checksum"], "done": self.done}
        with layout.writing_analyses(self.run.path):
            replace_bytes(self._notes, json.dumps(notes).encode())

    @cached_property
    def model(self) -> Model:
        return self._load()

    # The steps

    def go(self) -> None:
        run, settings = self.run, self.settings
        # what can be wrong is opened before the patterns that are there are given up
        words = Lexicon(lexicon.pieces(run.vocabulary))
        held, facts = held_out_text(
            run,
            self.model,
            self._files,
            most_tokens=settings.held_out_tokens,
            seed=settings.seed,
            lexicon=words,
        )
        text = mining_text(
            run,
            self.model,
            self._found_in,
            most_tokens=settings.tokens,
            seed=settings.seed,
            without=held if self._found_in else None,
            lexicon=words,
        )
        stored.drop(run)
        if "vectors" not in self.done:
            embedding = self.model.lm.get_input_embeddings().weight
            layout.save_array(run.path, layout.PATTERN_VECTORS, lexicon.vectors(embedding, len(run.vocabulary)))
            self._note("vectors")
        words = Lexicon.of(run)
        text, held = replace(text, lexicon=words), replace(held, lexicon=words)
        learned = None
        if settings.baselines:
            learned = Baselines(text, held, self.cells, among=self.pool, seed=settings.seed)
        self._gather(text, learned)
        needed = self._needs()
        with workers(run, self._processes) as pool:
            for layer in range(run.layers):
                if f"layer {layer}" not in self.done:
                    self._layer(pool, layer, needed.get(layer, {}))
                    self._note(f"layer {layer}")
            if settings.baselines and settings.scored:
                self._control(pool, text)
        keys = {layer: stored.read_keys(run, layer, evidence=True) for layer in range(run.layers)}
        more: dict[str, Any] = {}
        if settings.scored:
            rivals = {name: self._rivals(name, keys) for name in ("permuted", "random") if settings.baselines}
            advance = self._begin("scores on held-out text")
            keys, more = score(
                run, self.model, held, keys, learned=learned, rivals=rivals, seed=settings.seed, begin=advance
            )
            keys = fits(run, self.model, held, keys, seed=settings.seed, begin=self._begin("next tokens"))
        for layer, each in keys.items():
            stored.write_keys(run, layer, each)
        stored.save(
            run,
            {
                "asked": _plain(settings),
                "cells": settings.cells,
                "seed": settings.seed,
                "tokens": len(text),
                "found_in": ", ".join(
                    Path(str(name)).name for name in self._found_in or run.manifest["corpus"]["sources"]
                ),
                "held_out": facts,
                "ablated": settings.ablated,
                "facts": more,
            },
        )
        _remove_steps(run.path)

    def _begin(self, what: str) -> Callable[[int], Callable[[int], None]]:
        return lambda total: self._progress(what, total)

    def _gather(self, text: Text, learned: Baselines | None) -> None:
        run = self.run
        prefix = f"{layout.PATTERNS_FIRED}_learned"
        if "gathered" in self.done:
            if learned is not None:
                learned.restore(lambda name: layout.load_array(run.path, f"{prefix}_{name}"))
            return
        save_text(run, text, REAL)
        also = None if learned is None else learned.take
        gather(
            run,
            self.model,
            text,
            self.pool,
            REAL,
            sides=self.sides,
            also=also,
            seed=self.settings.seed,
            advance=self._progress("coefficients", len(text)),
        )
        for name, array in (learned.arrays() if learned is not None else {}).items():
            layout.save_array(run.path, f"{prefix}_{name}", array)
        self._note("gathered")

    def _needs(self) -> dict[int, dict[tuple[int, int], tuple[float, ...]]]:
        """By layer, and by cell and side: the fall of the coefficient without each of the last tokens."""
        if not self.settings.ablated:
            return {}
        file = self.run.path / f"{layout.PATTERNS_FIRED}_needs.json"
        if "needs" in self.done:
            known = json.loads(read_small(file))
        else:
            random = np.random.default_rng((self.settings.seed, ABLATED))
            asked = {
                layer: [_bare(cell, 1) for cell in np.sort(random.permutation(cells)[: self.settings.ablated]).tolist()]
                for layer, cells in self.cells.items()
            }
            found = needs(self.run, self.model, asked, begin=self._begin("tokens that keys need"))
            known = {
                str(layer): [[key.cell, key.side, list(each)] for key, each in zip(asked[layer], falls, strict=True)]
                for layer, falls in found.items()
            }
            with layout.writing_analyses(self.run.path):
                replace_bytes(file, json.dumps(known).encode())
            self._note("needs")
        return {
            int(layer): {(cell, side): tuple(each) for cell, side, each in entries} for layer, entries in known.items()
        }

    def _layer(self, pool: Workers, layer: int, needed: dict[tuple[int, int], tuple[float, ...]]) -> None:
        """Rules of a layer's keys and of dealt-out triggers, q-values, keys."""
        jobs = self._jobs(REAL, layer, self.cells[layer], self.pool[layer])
        dealt = self._dealt(layer, jobs)
        rivals = dealt[: len(self.rivals[layer])] if self.settings.baselines else []
        penalties = [penalty(needed.get((job.cell, job.side), ())) for job in jobs]
        advance = self._progress(f"layer {layer}", 2 * len(jobs) + len(dealt) + len(rivals))
        every = pool.search([*jobs, *dealt], [*penalties, *(() for _ in dealt)], advance)
        found, null = every[: len(jobs)], every[len(jobs) :]
        trusted = discovered(found, null, *(sum(map(self._fires, each)) for each in (jobs, dealt)))
        effort = QUICK if self.settings.cells == ALL else FULL
        orders = [
            Order(job, rules, needed.get((job.cell, job.side), ()), effort)
            for job, rules in zip(jobs, trusted, strict=True)
        ]
        # what was found in dealt-out triggers is a baseline as it is: nothing is left out
        orders += [
            Order(job, tuple((rule, 1.0) for rule in rules), (), effort)
            for job, rules in zip(rivals, null, strict=False)
        ]
        made = pool.make(orders, advance)
        stored.write_keys(self.run, layer, made[: len(jobs)])
        if self.settings.baselines:
            self._save_rivals("permuted", layer, made[len(jobs) :])

    def _dealt(self, layer: int, jobs: list[Job]) -> list[Job]:
        """The nulls of a layer: first those that are baselines, then others that fire, as many as `NULLS` together."""
        baselines = set(self.rivals[layer].tolist()) if self.settings.baselines else set()
        every = [job._replace(dealt=True) for job in jobs]
        first = [job for job in every if job.side > 0 and job.cell in baselines]
        others = [job for job in every if self._fires(job) and not (job.side > 0 and job.cell in baselines)]
        others = [others[i] for i in np.random.default_rng((self.settings.seed, layer)).permutation(len(others))]
        found = [*first, *others][: max(len(first), NULLS)]
        firing = [job for job in found if self._fires(job)]
        again = range(len(firing), NULLS if firing else 0)
        return found + [firing[i % len(firing)]._replace(seed=firing[0].seed + i // len(firing)) for i in again]

    def _fires(self, job: Job) -> bool:
        """Whether a key fires at enough positions for rules to be looked for."""
        offsets = self._offsets(job.layer, job.side)
        return bool(offsets[job.number + 1] - offsets[job.number] >= LEAST_FIRES)

    @lru_cache(maxsize=4)  # noqa: B019 - a search ends with its call
    def _offsets(self, layer: int, side: int) -> Ints:
        return np.asarray(read_pairs(self.run, REAL, layer, side).offsets)

    def _jobs(self, what: str, layer: int, cells: Ints, among: Ints, sides: tuple[int, ...] | None = None) -> list[Job]:
        places = np.searchsorted(among, cells)
        return [
            Job(what, layer, side, number, cell, False, self.settings.seed)
            for side in sides or self.sides  # the outer loop: a process has one side open
            for number, cell in zip(places.tolist(), cells.tolist(), strict=True)
        ]

    def _control(self, pool: Workers, text: Text) -> None:
        """Rules of the same keys of the model with random weights."""
        run, seed = self.run, self.settings.seed
        if "control gathered" not in self.done:
            control = load(
                self.model.source,
                dtype=str(run.manifest["config"]["dtype"]),
                device=str(self.model.device),
                revision=self.model.revision,
                trust_remote_code=self._trust_remote_code,
                control="random",
                control_seed=seed,
            )
            part, _ = text.part(CONTROL_TOKENS)
            save_text(run, part, RANDOM)
            advance = self._progress("coefficients with random weights", len(part))
            gather(run, control, part, self.rivals, RANDOM, sides=(1,), seed=seed, advance=advance)
            del control
            self._note("control gathered")
        advance = self._progress("rules with random weights", 2 * sum(map(len, self.rivals.values())))
        for layer, cells in self.rivals.items():
            if f"control {layer}" in self.done:
                advance(2 * len(cells))
                continue
            jobs = self._jobs(RANDOM, layer, cells, cells, sides=(1,))
            found = pool.search(jobs, [() for _ in jobs], advance)
            orders = [
                Order(job, tuple((rule, 1.0) for rule in rules), (), FULL)
                for job, rules in zip(jobs, found, strict=True)
            ]
            self._save_rivals("random", layer, pool.make(orders, advance))
            self._note(f"control {layer}")

    # Keys of other methods, which are kept until they are scored

    def _rival_file(self, name: str, layer: int) -> Path:
        return self.run.path / f"{layout.PATTERNS_FIRED}_{name}_{layer}.jsonl"

    def _save_rivals(self, name: str, layer: int, keys: Sequence[Key]) -> None:
        with layout.writing_analyses(self.run.path):
            lines = [msgspec.json.encode(key) for key in keys]
            replace_bytes(self._rival_file(name, layer), b"\n".join(lines))

    def _rivals(self, name: str, keys: dict[int, list[Key]]) -> dict[int, list[Key | None]]:
        """In the order of `keys`; None for a key that has none."""
        found = {}
        for layer, each in keys.items():
            lines = read_small(self._rival_file(name, layer), stored.LARGEST_FILE).splitlines()
            known = {(key.cell, key.side): key for key in (msgspec.json.decode(line, type=Key) for line in lines)}
            found[layer] = [known.get((key.cell, key.side)) for key in each]
        return found


def _bare(cell: int, side: int) -> Key:
    return Key(cell, 1 if side > 0 else -1, "none", 1.0, (), 0)


def chosen_cells(run: Run, cells: int | str, seed: int) -> dict[int, Ints]:
    """Per layer, the numbers of random cells that fire, ascending; all of them if `cells` is 'all'."""
    random, found = np.random.default_rng(seed), {}
    for layer in range(run.layers):
        alive = np.flatnonzero(run.layer(layer).units[:, 0] >= 0)
        few = alive if cells == ALL else random.choice(alive, min(int(cells), len(alive)), replace=False)
        found[layer] = np.sort(few).astype(np.int64)
    return found


def pooled(run: Run, cells: dict[int, Ints], seed: int) -> dict[int, Ints]:
    """The cells whose triggers are dealt out: those that were chosen and, if these are few, further ones of the layer."""
    random, found = np.random.default_rng((seed, POOL)), {}
    for layer, chosen in cells.items():
        others = np.setdiff1d(np.flatnonzero(run.layer(layer).units[:, 0] >= 0), chosen)
        more = random.choice(others, min(len(others), max(0, POOL - len(chosen))), replace=False)
        found[layer] = np.sort(np.concatenate([chosen, more])).astype(np.int64)
    return found


def penalty(falls: Sequence[float]) -> list[float]:
    """Per place, bits that a condition on its token costs more: if dropping the token changes little, it is no cause."""
    return [UNNEEDED_BITS if fall < UNNEEDED else 0.0 for fall in falls]


def discovered(
    found: Sequence[Sequence[Rule]], null: Sequence[Sequence[Rule]], keys: int, null_keys: int
) -> list[tuple[tuple[Rule, float], ...]]:
    """The rules of each key whose q-value is small enough, with it. `keys`: how many fire often enough to have rules."""
    bits = [rule.bits for rules in found for rule in rules]
    q = iter(q_values(bits, [rule.bits for rules in null for rule in rules], keys, null_keys))
    marked = [[(rule, next(q)) for rule in rules] for rules in found]
    return [tuple((rule, each) for rule, each in rules if each <= LARGEST_Q) for rules in marked]
