"""A run of a model with experts, against coefficients computed by hand: a token that an expert does not get has coefficient 0."""

from __future__ import annotations

import numpy as np
import pytest
from experts import every_coefficient, with_experts

import keyhole
from keyhole.analyses import mutation
from keyhole.analyses import shading as filling
from keyhole.models.model import Model
from keyhole.store import shading


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, Model]:
    folder = tmp_path_factory.mktemp("experts")
    lines = ["the cat sat on a mat", "Paris is it", "a dog ran to the mat of it", "on a", "the dog sat in Paris"]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = with_experts()
    options = {"unit": "line", "top": 4, "batch_tokens": 40}
    return keyhole.scan(model, [folder / "text.txt"], out=folder / "run", **options), model


def of_units(run: keyhole.Run, model: Model) -> list[np.ndarray]:
    """Per unit the coefficients of its tokens, in the signs that the cells are read with."""
    units = [[int(i) for i in run.unit_tokens(unit)] for unit in range(run.manifest["corpus"]["units"])]
    return [every_coefficient(model, ids) * run.orientation for ids in units]


def test_statistics_count_every_candidate(scanned: tuple[keyhole.Run, Model]) -> None:
    run, model = scanned
    first = {}
    for unit, rows in enumerate(of_units(run, model)):
        ids = run.unit_tokens(unit).tolist()
        for place, row in enumerate(rows):
            first.setdefault(tuple(ids[: place + 1]), row)
    every = np.stack(list(first.values()))
    assert (every[:, run.cells.span(1)] == 0).any(0).all()
    stats = run.stats
    assert (stats.n == len(every)).all()
    assert run.gated
    np.testing.assert_array_equal(run.array("active"), (every * run.orientation > 0).sum(0))  # in the model's own signs
    strongest = np.abs(every).argmax(0)
    assert (np.take_along_axis(every, strongest[None], 0) >= 0).all()
    assert (run.orientation[run.cells.span(1)] < 0).any()
    np.testing.assert_array_equal(stats.dead, (every == 0).all(0))
    for got, expected in (
        (stats.mean, every.mean(0)),
        (stats.std, every.std(0)),
        (stats.max, every.max(0)),
        (stats.min, every.min(0)),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_shades_and_histograms_are_those_of_the_experts(scanned: tuple[keyhole.Run, Model]) -> None:
    run, model = scanned
    filling.fill(run, model)
    found, units, checked = shading.of(run), of_units(run, model), 0
    assert found is not None
    for layer, index in run.cells:
        sides = [run.triggers(layer, index), run.triggers(layer, index, negative=True)]
        largest = max([abs(trigger.coefficient) for side in sides for trigger in side], default=0.0)
        for negative, side in enumerate(sides):
            for slot, trigger in enumerate(side):
                begin, end = shading.shown(len(run.unit_tokens(trigger.unit)), trigger.position, run.room)
                expected = units[trigger.unit][begin:end, run.cells.place(layer, index)] / largest * 127
                np.testing.assert_allclose(found.row(layer, index, slot, bool(negative)), expected, atol=0.6)
                checked += layer == 1
        if histogram := shading.histogram(run, layer, index):
            assert histogram[1].sum() == histogram[2] == sum(map(len, units))
    assert checked > 100


def test_mutation_reads_the_expert_of_the_cell(scanned: tuple[keyhole.Run, Model]) -> None:
    run, model = scanned
    rows, _ = mutation.rows(run, model, cells=20, seed=1)
    picked = mutation.pick(run, 20, 1)
    for row in (row for row in rows if row["dropped"] == "last"):
        here = np.flatnonzero(picked.layer == row["layer"])
        changes = []
        for i in here:
            ids = [int(t) for t in run.unit_tokens(int(picked.unit[i]))][: picked.length[i] - 1]
            m = every_coefficient(model, ids)[-1, picked.place[i]] * run.orientation[picked.place[i]]
            changes.append(m / picked.coefficient[i] - 1)
        assert row["n"] == len(changes) > 0
        assert row["mean_change"] == pytest.approx(np.mean(changes), rel=1e-3, abs=1e-4)
