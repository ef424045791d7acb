"""One model over two corpora, against counting by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import save, tiny
from scipy.stats import t
from small import corpus
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import compare as compared
from keyhole.cli import app
from keyhole.errors import RunError, UsageError

OPTIONS: dict[str, Any] = {"unit": "line", "device": "cpu", "context": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, keyhole.Run]:
    """Two corpora that share lines; the runs keep different numbers of triggers."""
    folder = tmp_path_factory.mktemp("compare")
    model = save(tiny("gpt2", activation_function="relu"), folder / "tiny")
    one = corpus(folder / "one.txt", 40)
    lines = one.read_text("utf-8").splitlines()
    two = folder / "two.txt"
    two.write_text("\n".join([*lines[:20], "a whole other line, longer than one window", "and so on"]), "utf-8")
    return (
        keyhole.scan(model, [one], out=folder / "a", top=6, **OPTIONS),
        keyhole.scan(model, [two], out=folder / "b", top=5, **OPTIONS),
    )


def tokens_by_hand(run: keyhole.Run, place: int, what: str, top: int) -> list[Any]:
    triggers = run.triggers(*run.cells.split(place))[:top]
    if what == "triggers":
        return [tuple(each.ids) for each in triggers]
    found = [each.ids[-1] if what == "last" else each.next_id for each in triggers]
    return [token for token in found if token is not None]


def by_hand(a: list[Any], b: list[Any], what: str) -> float:
    if min(len(a), len(b)) < compared.LEAST:
        return np.nan
    if what == "triggers":
        return len(set(a) & set(b)) / min(len(a), len(b))
    p, q = Counter(a), Counter(b)
    return sum(min(p[token] / len(a), q[token] / len(b)) for token in p)


def test_every_cell_is_compared_as_by_hand(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    a, b = runs
    found = compared.compare(a, b)
    assert found.top == 5
    for what, numbers in found.cells.items():
        expected = [
            by_hand(*(tokens_by_hand(run, place, what, 5) for run in runs), what) for place in range(len(a.cells))
        ]
        np.testing.assert_allclose(numbers, expected)
        assert 0 < np.nanmean(numbers) < 1
    every = [
        {key for place in range(len(a.cells)) for key in tokens_by_hand(run, place, "triggers", 5)} for run in runs
    ]
    assert found.distinct == (len(every[0]), len(every[1]))
    assert found.common == len(every[0] & every[1]) > 0
    assert not found.same_text


def test_layers_are_means_over_cells_with_intervals(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    found = compared.compare(*runs)
    for row in found.layers:
        values = found.cells["last"][runs[0].cells.span(row.layer)]
        values = values[~np.isnan(values)]
        assert row.last.value == pytest.approx(values.mean())
        half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        assert row.last.lo == pytest.approx(max(0, values.mean() - half))
        assert row.last.hi == pytest.approx(min(1, values.mean() + half))
    assert found.total.n == sum(row.n for row in found.layers)


def test_the_null_compares_with_other_cells_of_the_layer_only() -> None:
    """Each cell has tokens of its own, each layer a token that all of its cells share: dealt out, only that one is left."""

    class Axis:
        layers = 2

        class cells:
            @staticmethod
            def span(layer: int) -> slice:
                return slice(layer * 10, layer * 10 + 10)

    class Side:
        def __init__(self) -> None:
            self.slots = {"last": np.array([[1000 + place // 10, place, place, place] for place in range(20)])}

    usable = np.ones(20, bool)
    usable[3] = False
    sides: Any = [Side(), Side()]
    dealt = compared._dealt(Axis(), sides, "last", usable, 0)  # type: ignore[arg-type]
    assert np.isnan(dealt[3])
    np.testing.assert_allclose(dealt[usable], 0.25)
    np.testing.assert_allclose(compared.overlap(sides[0].slots["last"], sides[1].slots["last"]), 1.0)


def test_the_same_text_agrees_wholly(runs: tuple[keyhole.Run, keyhole.Run], tmp_path: Path) -> None:
    a, _ = runs
    again = keyhole.scan(
        a.manifest["model"]["source"], a.manifest["corpus"]["sources"], out=tmp_path / "again", top=6, **OPTIONS
    )
    found = keyhole.compare(a.path, again)
    assert found.same_text
    for name, numbers in found.cells.items():
        assert np.nanmin(numbers) == pytest.approx(1.0), name
    assert found.different == []
    assert found.total.last.dealt is not None
    assert found.total.last.dealt < 0.9


def test_overlap_and_concentration_of_small_cases() -> None:
    a = np.array([[1, 1, 2, -1], [5, 5, 5, 5], [7, 8, 9, 9], [-1, -1, -1, -1]])
    b = np.array([[1, 2, 2, 3], [6, 6, 6, -1], [9, 9, 8, 7], [1, 1, 1, 1]])
    np.testing.assert_allclose(compared.overlap(a, b), [0.25 + 1 / 3, 0, 1, np.nan])
    share, token = compared.concentration(a)
    np.testing.assert_allclose(share, [2 / 3, 1, 0.5, 0])
    assert token.tolist() == [1, 5, 9, -1]
    keys = [np.array([[1, 2, 3, -1], [1, 2, -1, -1]]), np.array([[3, 9, -1, -1], [-1, -1, -1, -1]])]
    np.testing.assert_allclose(compared.shared(*keys), [0.5, np.nan])


def test_cells_that_look_different_come_first(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    """The list against the definition: the smaller of the largest shares, times what does not overlap."""
    a, b = runs
    found = compared.compare(a, b, cells=10_000)
    assert len(found.different) > 5
    scores = [each.score for each in found.different]
    assert scores == sorted(scores, reverse=True)
    expected = {}
    for place in range(len(a.cells)):
        for what in ("last", "next"):
            mine, theirs = (tokens_by_hand(run, place, what, 5) for run in runs)
            if min(len(mine), len(theirs)) >= compared.LEAST:
                largest = [max(Counter(each).values()) / len(each) for each in (mine, theirs)]
                score = min(largest) * (1 - by_hand(mine, theirs, what))
                expected[place] = max(score, expected.get(place, 0))
    assert scores == pytest.approx(sorted((score for score in expected.values() if score > 1e-12), reverse=True))
    first = found.different[0]
    place = a.cells.find(first.address)
    (token, count), *_ = Counter(tokens_by_hand(a, place, first.what, 5)).most_common(1)
    assert first.here.share == pytest.approx(count / len(tokens_by_hand(a, place, first.what, 5)))
    assert first.here.triggers[0][0] == a[first.address].triggers[0].prefix
    assert token is not None
    assert len(compared.compare(a, b, cells=2).different) == 2


def test_cells_that_are_read_with_opposite_signs_are_counted(
    runs: tuple[keyhole.Run, keyhole.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = runs
    turned = np.ones(len(b.cells), np.int8)
    turned[::2] = -1
    other = keyhole.open(b.path)
    monkeypatch.setitem(other.__dict__, "orientation", turned)
    found = compared.compare(a, other)
    usable = ~np.isnan(found.cells["triggers"])
    assert found.total.turned == int((usable & (turned < 0)).sum()) > 0
    assert compared.compare(a, b).total.turned == 0


def test_two_models_are_refused(runs: tuple[keyhole.Run, keyhole.Run], tmp_path: Path) -> None:
    a, _ = runs
    source, texts = a.manifest["model"]["source"], a.manifest["corpus"]["sources"]
    control = keyhole.scan(source, texts, out=tmp_path / "control", control="random", top=6, **OPTIONS)
    with pytest.raises(RunError, match="are runs of two models.*keyhole report .* --beside"):
        keyhole.compare(a, control)
    with pytest.raises(UsageError, match="is named twice"):
        keyhole.compare(a, a.path)
    with pytest.raises(UsageError, match="cells is -1"):
        keyhole.compare(a, runs[1], cells=-1)
    with pytest.raises(RunError, match="There is no run at"):
        keyhole.compare(a, tmp_path / "nowhere")


def test_the_command_prints_a_line_per_layer_and_writes_nothing(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    a, b = runs
    before = {file: file.read_bytes() for run in runs for file in run.path.rglob("*") if file.is_file()}
    done = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--cells", "2"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "tiny on one.txt" in said
    assert "distinct prefixes that are triggers in A" in said
    assert "Cells that look like one thing in A and like another in B" in said
    done = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--json"])
    found = json.loads(done.output)
    assert len(found["cells"]["last"]) == len(a.cells)
    assert len(found["layers"]) == a.layers
    assert found["total"]["last"]["value"] is not None
    assert {file: file.read_bytes() for run in runs for file in run.path.rglob("*") if file.is_file()} == before
