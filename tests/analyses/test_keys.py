"""What keys react to and how often they fire: mutation and activity, against their definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paper
import pytest
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import activity, mutation
from keyhole.analyses.stats import bootstrap_difference, bootstrap_mean
from keyhole.lens.head import Head
from keyhole.models.model import Model


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_mutation_equals_one_forward_per_trigger(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    rows, facts = mutation.rows(run, model, cells=6, seed=3)
    picked = mutation.pick(run, 6, 3)
    assert {name: facts[name] for name in ("cells", "cells_least", "triggers", "one_token")} == {
        "cells": 6,
        "cells_least": 6,
        "triggers": 4,
        "one_token": picked.skipped,
    }
    assert f"{picked.skipped} triggers of one token" in mutation.note(facts)
    assert len(rows) == (4 + 8) * model.layers
    drops = mutation.drops(picked, 3)
    found: dict[tuple[int, str, int | None], dict[int, list[float]]] = {}
    for i, layer in enumerate(picked.layer.tolist()):
        ids = [int(t) for t in run.unit_tokens(int(picked.unit[i]))][: picked.length[i]]
        middle = int(drops.at["middle"][i])
        assert (middle == -1) == (len(ids) == 2)
        assert len(ids) == 2 or 0 < middle < len(ids) - 1
        which = [0, len(ids) - 1, middle][drops.random[i]]
        places = [("first", None, 0), ("last", None, len(ids) - 1), ("middle", None, middle), ("random", None, which)]
        if picked.slot[i] < mutation.NEAREST:
            places += [("distance", d, len(ids) - d) for d in range(1, 9)]
        for name, distance, place in places:
            if place >= 0:
                m = (
                    paper.look(model, ids[:place] + ids[place + 1 :]).m[layer][picked.cell[i]]
                    * run.orientation[picked.place[i]]
                )
                change = (float(m) - picked.coefficient[i]) / picked.coefficient[i]
                cells = found.setdefault((layer, name, distance), {})
                cells.setdefault(int(picked.cell[i]), []).append(change)
    for row in rows:
        by_cell = found.get((row["layer"], row["dropped"], row["distance"]), {})
        every = [change for changes in by_cell.values() for change in changes]
        assert (row["n"], row["cells"]) == (len(every), len(by_cell))
        if every:
            near: dict[str, Any] = {"rel": 1e-2, "abs": 1e-3}
            assert row["mean_change"] == pytest.approx(np.mean(every), **near)
            medians = [np.median(changes) for changes in by_cell.values()]
            assert row["median_change"] == pytest.approx(np.median(medians), **near)
            assert (row["median_lo"] is None) == (len(medians) < 6)

    def pooled(name: str, layer: int) -> list[float]:
        return [float(np.mean(changes)) for changes in found.get((layer, name, None), {}).values()]

    paired = [
        np.mean(np.subtract(found[layer, "first", None][cell], found[layer, "last", None][cell]))
        for layer in range(model.layers)
        for cell in sorted(found[layer, "last", None])
    ]
    expected = bootstrap_mean(np.array(paired))
    assert [facts[f"over_first{end}"] for end in ("", "_lo", "_hi")] == pytest.approx(
        list(expected), rel=2e-2, abs=2e-3
    )
    rise = bootstrap_difference(np.array(pooled("last", 2)), np.array(pooled("last", 0)))
    assert facts["less_above"] == pytest.approx(rise.value, rel=2e-2, abs=2e-3)


def test_the_middle_token_is_uniform_and_so_is_the_random_one(tmp_path: Path) -> None:
    draws = np.stack([mutation.reservoir(6, np.random.default_rng(seed)) for seed in range(6000)])
    for length in range(1, 7):
        counts = np.bincount(draws[:, length - 1], minlength=length)
        assert len(counts) == length
        np.testing.assert_allclose(counts / 6000, 1 / length, atol=0.03)
    run = scanned(tiny("gpt2"), tmp_path)
    picked = mutation.pick(run, 24, 0)
    long = np.flatnonzero(picked.length == 10)
    assert len(long)
    middle, random = [], []
    for seed in range(400):
        drops = mutation.drops(picked, seed)
        middle += drops.at["middle"][long[:1]].tolist()
        random += np.choose(drops.random[long[:5]], [0, 9, drops.at["middle"][long[:5]]]).tolist()
    assert set(middle) == set(range(1, 9))
    counts = np.bincount(random, minlength=10) / len(random)
    np.testing.assert_allclose(counts, 0.1, atol=0.05)
    assert counts[0] > 0.05
    assert counts[9] > 0.05


def test_a_flipped_cell_changes_nothing(tmp_path: Path) -> None:
    """A gated cell read with the other sign: what the model gives is multiplied by the orientation, like what was stored."""
    model = tiny("llama")
    run = scanned(model, tmp_path)
    before = mutation.rows(run, model, cells=4, seed=0)
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), len(run.cells))
    original = model.run_every_token

    def flipped(ids: Any, sink: Any) -> None:
        def turned(site: int, x: Any) -> None:
            sink(site, x * x.new_tensor(signs[run.cells.sites[site]]))

        original(ids, turned)

    model.run_every_token = flipped  # type: ignore[method-assign]
    run.__dict__["orientation"] = run.orientation * signs
    try:
        assert mutation.rows(run, model, cells=4, seed=0) == before
    finally:
        del model.run_every_token


def test_cells_without_an_effect_of_depth_do_not_show_one() -> None:
    """Cells differ, their triggers hardly, and no layer differs: the layers' means drift, but the claims do not hold."""
    random, costs, rises = np.random.default_rng(2), 0, 0
    layers, cells, triggers = 12, 8, 5
    count = layers * cells * triggers
    place = np.repeat(np.arange(layers * cells), triggers)
    picked = mutation.Picked(
        layer=place // cells, cell=place % cells, place=place, slot=np.zeros(count, np.int64),
        unit=place, start=place, length=place, coefficient=np.ones(count), skipped=0,
    )  # fmt: skip
    for _ in range(200):
        changes: dict[Any, Any] = {
            name: np.repeat(random.normal(-0.3, 0.2, layers * cells), triggers) + random.normal(0, 0.02, count)
            for name in mutation.DROPPED
        }
        facts = mutation.effects(changes, picked, layers)
        costs += min(facts[f"over_{rival}_lo"] for rival in mutation.RIVALS) > 0  # even without a smallest effect
        rises += facts["less_above_lo"] > 0
    assert costs <= 0.05 * 200
    assert rises <= 0.06 * 200


# Activity


def test_activity_counts_the_corpus(tmp_path: Path) -> None:
    model = tiny("gpt2", activation_function="relu")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["activity"])
    for row in run.table("activity"):
        fractions = [run.cell(row["layer"], cell).stats.active_fraction for cell in range(run.cells.size(row["layer"]))]
        assert row["active_fraction"] == pytest.approx(np.mean(fractions))
        assert row["dead"] == sum(run.cell(row["layer"], cell).dead for cell in range(run.cells.size(row["layer"])))
        assert row["alive"] == pytest.approx(1 - row["dead"] / row["cells"])
        assert row["alive_lo"] <= row["alive"] <= row["alive_hi"]
        assert row["n"] == run.manifest["corpus"]["scanned_prefixes"]
        assert row["lo"] < row["active_fraction"] < row["hi"]


@pytest.fixture
def gated() -> Model:
    """A gated model of its own, to change."""
    tiny.cache_clear()
    yield tiny("llama")
    tiny.cache_clear()


def test_a_gated_cell_is_dead_by_what_it_writes(tmp_path: Path, gated: Model) -> None:
    gated.values(1).data[5] *= 1e-5  # writes next to nothing
    gated.blocks[2].mlp.up_proj.weight.data[7] = 0  # coefficient 0
    gated.blocks[0].mlp.up_proj.weight.data[3] *= -1  # the same model, the other way round …
    gated.values(0).data[3] *= -1
    run = scanned(gated, tmp_path)
    run.gated = True
    rows, _ = activity.rows(run, Head(gated))
    assert [row["dead"] for row in rows] == [0, 1, 1]
    assert {row["active_fraction"] for row in rows} == {None}
    for layer, row in enumerate(rows):
        stats, norms = run.layer(layer).stats, gated.values(layer).norm(dim=1).numpy()
        written = np.maximum(np.abs(stats.max), np.abs(stats.min)) * norms
        assert row["dead"] == int((written <= 0.01 * np.median(written)).sum())
