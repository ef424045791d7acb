"""`keyhole patterns` as a whole: the same bytes however often it was interrupted and in how many processes, nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call
from families import CONTEXT, save, tiny
from flipping import flipped
from planted_runs import Planted
from small import corpus

import keyhole
from keyhole.errors import KeyholeError, RunError, UsageError
from keyhole.models.model import Model
from keyhole.patterns import find, firing, keys, scoring
from keyhole.patterns.find import patterns
from keyhole.store import layout
from keyhole.store import patterns as stored
from keyhole.store.patterns import METHODS

pytestmark = pytest.mark.slow(seconds=2)

SEARCH: dict[str, Any] = {"cells": 4, "tokens": 8000, "held_out_tokens": 4000, "processes": 1}


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key fires at more positions, and fewer triggers are dealt out, so that little text is enough."""
    for module in (keys, firing):
        monkeypatch.setattr(module, "LEVELS", (0.02, 0.004, 0.001))
    monkeypatch.setattr(find, "NULLS", 40)
    monkeypatch.setattr(find, "POOL", 8)
    monkeypatch.setattr(scoring, "FEWEST_FIRING", 3)


def scanned(model: Model, folder: Path) -> keyhole.Run:
    text = corpus(folder / "text.txt", 700)
    return keyhole.scan(model, [text], out=folder / "run", unit="line", top=25, context=CONTEXT, hold_out=0.35)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """A run of a small gated model that can be loaded again. Tests use copies of it."""
    folder = tmp_path_factory.mktemp("find")
    return scanned(keyhole.load(save(tiny("llama"), folder / "model"), device="cpu"), folder)


@pytest.fixture
def copy(source: keyhole.Run, little_text: None, tmp_path: Path) -> Callable[[str], Path]:
    def made(name: str = "copy") -> Path:
        return Path(shutil.copytree(source.path, tmp_path / name))

    return made


def written(path: Path) -> dict[str, bytes]:
    """The files of the patterns."""
    found = {file.name: file.read_bytes() for file in path.glob("patterns_*")}
    assert not [name for name in found if name.startswith(layout.PATTERNS_FIRED)]
    return found


def left_over(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob(f"{layout.PATTERNS_FIRED}_*"))


class Stops:
    """A progress callback that interrupts the first step that is not in `passed`, in its middle."""

    def __init__(self, *passed: str) -> None:
        self.passed, self.seen = set(passed), []  # type: ignore[var-annotated]

    def __call__(self, what: str, total: int) -> Callable[[int], None]:
        self.seen.append(what)
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            if what not in self.passed and 2 * done >= total:
                self.passed.add(what)
                raise KeyboardInterrupt

        return advance


def test_a_search_interrupted_at_every_step_ends_with_the_same_bytes(copy: Callable[[str], Path]) -> None:
    whole, often = copy("whole"), copy("often")
    steps: list[str] = []

    def watched(what: str, total: int) -> Callable[[int], None]:
        steps.append(what)
        return lambda done: None

    patterns(whole, **SEARCH, progress=watched)
    assert len(set(steps)) >= 8, steps
    stops, interrupted = Stops(), 0
    while True:
        try:
            run = patterns(often, **SEARCH, progress=stops)
        except KeyboardInterrupt:
            interrupted += 1
            again = keyhole.open(often)
            assert stored.of(again) is None
            assert left_over(often)
            assert layout.is_ours(often)
        else:
            break
    assert stops.passed == set(steps)
    assert interrupted == len(set(steps))
    # what was done is not done again: every step is begun once more, after its own interruption
    assert all(stops.seen.count(step) <= 2 for step in steps if step.startswith(("layer", "coefficients", "tokens")))
    assert written(whole) == written(often)
    assert any(key.patterns for _, key in stored.of(run) or ())
    assert stored.of(run).settings == stored.of(keyhole.open(whole)).settings  # type: ignore[union-attr]


def test_two_processes_write_the_same_bytes(planted: Planted, tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        path = Path(shutil.copytree(planted.run.path, tmp_path / str(processes)))
        run = patterns(
            path,
            cells=8,
            tokens=30_000,
            held_out=planted.held,
            baselines=False,
            score=False,
            processes=processes,
            model=planted.model,
        )
        assert any(key.patterns for _, key in stored.of(run) or ())
        found.append(written(path))
    assert found[0] == found[1]


def test_patterns_are_found_again_only_if_that_is_asked_for(copy: Callable[[str], Path]) -> None:
    path, said = copy("copy"), []

    def progress(what: str, total: int) -> Callable[[int], None]:
        said.append(what)
        return lambda done: None

    less = {**SEARCH, "ablate": 0, "baselines": False, "score": False}
    patterns(path, **less, progress=progress)
    first, before = written(path), list(said)
    assert before
    patterns(path, **less, progress=progress)
    assert said == before
    patterns(keyhole.open(path), **less, progress=progress)
    assert said == before
    patterns(path, **less, force=True, progress=progress)
    assert said == before * 2
    assert written(path) == first
    patterns(path, **{**less, "seed": 1}, progress=progress)
    assert said == before * 3
    assert written(path) != first
    assert stored.of(keyhole.open(path)).settings["seed"] == 1  # type: ignore[union-attr]


def test_a_search_with_other_settings_takes_nothing_over(copy: Callable[[str], Path]) -> None:
    less = {**SEARCH, "ablate": 0, "baselines": False, "score": False}
    direct, changed = copy("direct"), copy("changed")
    patterns(direct, **{**less, "seed": 1})
    with pytest.raises(KeyboardInterrupt):
        patterns(changed, **less, progress=Stops("coefficients"))
    patterns(changed, **{**less, "seed": 1})
    assert written(direct) == written(changed)


@pytest.mark.parametrize("option", ["held_out", "text"])
def test_other_text_of_the_same_name_is_other_text(copy: Callable[[str], Path], tmp_path: Path, option: str) -> None:
    """What was scored on a file is not taken for the file's scores once it has changed; nor what was found in it."""
    path, held, said = copy("copy"), tmp_path / "held.txt", []
    less = {**SEARCH, "cells": 1, "ablate": 0, "baselines": False, "score": False, option: held}
    for text, searched in (
        ("one text of some words\n", True),
        ("one text of some words\n", False),
        ("another\n", True),
    ):
        held.write_text(text)
        said.clear()
        patterns(path, **less, progress=lambda what, total: said.append(what) or (lambda done: None))  # type: ignore[func-returns-value]
        assert bool(said) == searched


@pytest.mark.usefixtures("little_text")
def test_flipping_signs_changes_no_byte(tmp_path: Path) -> None:
    """(up, v) → (−up, −v) is the same model: the sides are told by orientation."""
    model = tiny("llama")
    other, signs = flipped(model)
    found = []
    for name, each in (("one", model), ("two", other)):
        (tmp_path / name).mkdir()
        run = scanned(each, tmp_path / name)
        found.append(written(patterns(run, **{**SEARCH, "baselines": False}, model=each).path))
    assert (signs < 0).any()
    assert any(b'"patterns":[{' in lines for lines in found[0].values())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cells": "abc"}, "'abc'"),
        ({"cells": "0"}, "at least 1, or 'all', not '0'"),
        ({"cells": -3}, "not -3"),
        ({"cells": 2.5}, "2.5"),
        ({"cells": None}, "None"),
        ({"tokens": 10}, "tokens is 10"),
        ({"tokens": 0}, "tokens is 0"),
        ({"held_out_tokens": 10}, "held_out_tokens is 10"),
        ({"seed": -1}, "seed is -1"),
        ({"processes": -2}, "processes is -2"),
        ({"processes": 0}, "processes is 0"),
        ({"device": "split"}, "split"),
    ],
)
def test_impossible_options_are_named(copy: Callable[[str], Path], options: dict[str, Any], said: str) -> None:
    path = copy("copy")
    with pytest.raises(UsageError) as error:
        patterns(path, **options)
    assert said in str(error.value)
    assert not list(path.glob("patterns_*"))


def test_a_shard_is_refused(tmp_path: Path) -> None:
    text = corpus(tmp_path / "text.txt")
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "part", unit="line", context=CONTEXT, shard="1/2")
    with pytest.raises(RunError, match=r"one shard of a scan.*keyhole merge"):
        patterns(run.path)


def test_an_error_before_the_search_loses_nothing(copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy("copy")
    less = {**SEARCH, "ablate": 0, "baselines": False, "score": False}
    patterns(path, **less)
    before = written(path)
    missing, empty = tmp_path / "missing.txt", tmp_path / "empty.txt"
    empty.write_text("")
    for wrong in (
        {"held_out": missing},
        {"held_out": [empty]},
        {"text": missing},
        {"text": [empty]},
        {"model": tmp_path / "no-model"},
        {"model": tiny("opt")},
    ):
        with pytest.raises(KeyholeError) as error:
            patterns(path, **{**less, "seed": 5, **wrong})
        named = next(iter(wrong.values()))
        assert Path(str(named[0] if isinstance(named, list) else getattr(named, "source", named))).name in str(
            error.value
        )
        assert written(path) == before
        found = stored.of(keyhole.open(path))
        assert found is not None
        assert found.settings["seed"] == 0


@pytest.mark.parametrize("notes", [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"asked": 3}', "no list", "unknown"])
def test_a_damaged_note_means_that_the_search_begins_anew(copy: Callable[[str], Path], notes: bytes | str) -> None:
    path = copy("copy")
    less = {**SEARCH, "cells": 1, "tokens": 1000, "ablate": 0, "baselines": False, "score": False}
    with pytest.raises(KeyboardInterrupt):
        patterns(path, **less, progress=Stops("coefficients"))
    file = path / f"{layout.PATTERNS_FIRED}_notes.json"
    if isinstance(notes, str):
        told = json.loads(file.read_bytes())
        notes = json.dumps({**told, "done": None if notes == "no list" else ["what", 3]}).encode()
    file.write_bytes(notes)
    patterns(path, **less)
    assert not left_over(path)
    assert stored.of(keyhole.open(path)) is not None


def test_files_that_a_finished_search_left_are_removed(copy: Callable[[str], Path]) -> None:
    """If it was killed after the patterns were listed and before it removed them."""
    path = copy("copy")
    less = {**SEARCH, "cells": 1, "tokens": 1000, "ablate": 0, "baselines": False, "score": False}
    patterns(path, **less)
    np.save(path / f"{layout.PATTERNS_FIRED}_real_0_key_offsets.npy", np.arange(3))
    patterns(path, **less)
    assert not left_over(path)


def test_commands_work_with_patterns_and_after_an_interrupted_search(copy: Callable[[str], Path]) -> None:
    path = copy("copy")
    less = {**SEARCH, "ablate": 0, "baselines": False, "score": False}
    cell = "L1.3"
    with pytest.raises(KeyboardInterrupt):
        patterns(path, **less, progress=Stops("coefficients", "layer 0"))
    for command in (("info", path), ("show", path, cell), ("verify", path)):
        done = call(*command)
        assert done.code == 0, done
    told = call("show", path, cell).out
    run = patterns(path, **less)
    for command in (("info", path), ("show", path, cell), ("verify", path)):
        done = call(*command)
        assert done.code == 0, done
    place, key = next((place, key) for place, key in stored.of(run) or () if key.label)
    shown = call("show", path, run.cells.address(place)).out
    assert key.label is not None
    assert key.label[:20] in shown
    assert key.label[:20] not in told


def test_a_scan_may_replace_a_run_with_an_unfinished_search(source: keyhole.Run, copy: Callable[[str], Path]) -> None:
    path = copy("copy")
    with pytest.raises(KeyboardInterrupt):
        patterns(path, **SEARCH, progress=Stops("coefficients", "tokens that keys need", "layer 0"))
    assert left_over(path)
    model = keyhole.load(source.path.parent / "model", device="cpu")
    text = source.path.parent / "text.txt"
    run = keyhole.scan(model, [text], out=path, unit="line", top=25, context=CONTEXT, hold_out=0.35, force=True)
    assert not list(run.path.glob("patterns_*"))


def test_patterns_can_be_found_in_text_that_was_not_scanned(copy: Callable[[str], Path], tmp_path: Path) -> None:
    more = corpus(tmp_path / "more.txt", 900)
    less = {**SEARCH, "ablate": 0, "baselines": False}
    said = {}
    for text, name in ((None, "text.txt"), (more, "more.txt")):
        path = copy(f"run of {name}")
        found = stored.of(patterns(path, **less, text=text))
        assert found is not None
        assert found.settings["found_in"] == name
        said[name] = [(place, key.threshold) for place, key in found]
    assert said["text.txt"] != said["more.txt"]


@pytest.mark.parametrize("cells", [3, "all"])
def test_every_method_is_scored(copy: Callable[[str], Path], cells: int | str) -> None:
    run = patterns(copy("copy"), **{**SEARCH, "cells": cells, "ablate": 0, "baselines": True, "score": True})
    scored = [key for _, key in stored.of(run) or () if key.scores and key.scores["rules"].auprc is not None]
    assert scored
    dear = {"permuted", "random"}
    for key in scored:
        assert set(key.scores) - dear == set(METHODS) - dear
        assert not dear & set(key.scores) or dear <= set(key.scores)
    for layer in range(run.layers):
        here = [key for place, key in stored.of(run) or () if run.cells.split(place)[0] == layer]
        assert sum("random" in key.scores for key in here) == min(find.RIVALS, sum(key.side == 1 for key in here))


def test_baselines_without_a_pattern_are_near_the_base_rate(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules of dealt-out triggers and of random weights say nothing of where a key fires: 1 in 1000 positions."""
    some = sorted({key.cell for key in planted.keys[::4]})
    chosen = {layer: np.array(some if layer == planted.keys[0].layer else [0, 1]) for layer in range(2)}
    monkeypatch.setattr(find, "chosen_cells", lambda run, cells, seed: chosen)
    monkeypatch.setattr(find, "NULLS", 40)
    path = Path(shutil.copytree(planted.run.path, tmp_path / "run"))
    run = patterns(path, tokens=40_000, held_out=planted.held, ablate=0, processes=1, model=planted.model)
    truth = {(key.layer, key.cell, key.side) for key in planted.keys}
    found = [
        key
        for place, key in stored.of(run) or ()
        if (*run.cells.split(place), key.side) in truth and key.scores["rules"].auprc is not None
    ]
    assert len(found) >= 5
    scored = {method: [key.scores[method].auprc or 0.0 for key in found if method in key.scores] for method in METHODS}
    assert min(map(len, scored.values())) >= 3
    means = {method: float(np.mean(each)) for method, each in scored.items()}
    assert means["rules"] > 0.2, means
    for method in ("permuted", "random", "other"):
        assert means[method] < 0.02, means


def test_the_control_is_loaded_as_the_model_was(
    copy: Callable[[str], Path], source: keyhole.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a model's own code may run holds for the control too: otherwise the search ends there, after hours."""
    asked: list[dict[str, Any]] = []

    def loaded(name: str, **options: Any) -> Model:
        asked.append({"source": name, **options})
        return keyhole.load(name, **{**options, "trust_remote_code": False})

    monkeypatch.setattr(find, "load", loaded)
    model = source.path.parent / "model"
    patterns(copy("copy"), **{**SEARCH, "cells": 1, "ablate": 0}, model=model, device="cpu", trust_remote_code=True)
    assert [(each["source"], each["control"], each["trust_remote_code"]) for each in asked] == [
        (str(model), "random", True)
    ]
