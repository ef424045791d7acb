"""Kinds of cells: each number against its definition, planted cells, and what must not change anything."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from scipy.stats import binom
from small import scanned

import keyhole
from keyhole.analyses import heldout, kind_numbers, targets
from keyhole.analyses.kind_numbers import Positions, Reading, Tails, most_common, nearest_twin, tails
from keyhole.errors import UsageError
from keyhole.lens.head import Head
from keyhole.models.model import Model
from keyhole.models.states import states
from keyhole.store import kinds
from keyhole.store.values import Values


def fresh(model: Model) -> Model:
    """A copy whose weights may be changed."""
    return Model(copy.deepcopy(model.lm), model.tokenizer, source="changed")


# What the triggers end in


@pytest.mark.parametrize("per", ["sentence", "prefix"])
def test_ends_of_triggers_equal_a_loop(per: str, tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path, top=8, per=per, context=9)
    held = set(targets.held_out_units(run).tolist())
    before: dict[int, Counter[int]] = {}
    for unit in range(run.manifest["corpus"]["units"]):
        ids = [int(t) for t in run.unit_tokens(unit)]
        for place, token in enumerate(ids if unit not in held else []):
            start = place // run.room * run.room
            before.setdefault(token, Counter())[ids[place - 1] if place > start else -1] += 1
    ends = Tails(run, seed=0)
    checked = 0
    for layer in range(run.layers):
        single, together, threshold, chance = ends.of_layer(layer)
        for cell in range(run.cells.size(layer)):
            own = [(t.ids[-2] if len(t.ids) > 1 else -1, t.ids[-1]) for t in run.triggers(layer, cell)]
            if len(own) < kind_numbers.LEAST:
                assert np.isnan([single.own[cell], together[cell], threshold[cell]]).all()
                continue
            most = max(Counter(last for _, last in own).values())
            assert single.own[cell] == pytest.approx(most / len(own))
            pairs = Counter(own)
            assert together[cell] == pytest.approx(max(pairs.values()) / len(own))
            # ties: the pair with the smallest code counts
            (first, last) = min((p for p in pairs if pairs[p] == max(pairs.values())), key=lambda p: ((p[0] + 1), p[1]))
            n, p = sum(t == last for _, t in own), before[last][first] / before[last].total()
            needed = max(binom.ppf(0.99, n, p) + 1, -(-len(own) // 2))
            assert threshold[cell] == pytest.approx(needed / len(own))
            assert chance[cell] == pytest.approx(binom.sf(needed - 1, n, p))
            assert chance[cell] <= 0.01
            checked += 1
    assert checked > 20


def test_the_most_common_of_a_row() -> None:
    random = np.random.default_rng(0)
    codes, filled = random.integers(0, 4, (200, 9)), random.random((200, 9)) < 0.8
    code, count = most_common(codes, filled)
    for row in range(200):
        counts = Counter(codes[row][filled[row]].tolist())
        assert count[row] == max(counts.values(), default=0)
        assert not counts or counts[int(code[row])] == count[row]


def test_tails_stop_at_the_window(tmp_path: Path) -> None:
    run = scanned(tiny("llama"), tmp_path, context=6)
    ids = run.unit_tokens(0).tolist()
    room = run.room
    assert len(ids) > room + 1
    units, positions = np.array([0, 0, -1]), np.array([room, room + 1, -1])
    assert tails(run, units, positions, 2).tolist() == [[ids[room], -1], [ids[room + 1], ids[room]], [-2, -2]]


def planted(tmp_path: Path) -> tuple[keyhole.Run, Model]:
    """A run, and the model of it, with cells that are of a kind by construction."""
    model = fresh(tiny("gpt2", layers=3, cells=96, n_inner=96))
    mlp = model.blocks[1].mlp
    mlp.c_fc.weight.data[:, 5] = mlp.c_fc.weight.data[:, 40]  # a twin
    mlp.c_fc.bias.data[5] = mlp.c_fc.bias.data[40]
    mlp.c_proj.weight.data[5] = mlp.c_proj.weight.data[40]
    mlp.c_fc.bias.data[7], mlp.c_fc.weight.data[:, 7] = -50.0, 0.0  # never fires
    run = scanned(model, tmp_path, top=8)
    return run, model


def test_planted_cells_are_found(tmp_path: Path) -> None:
    run, model = planted(tmp_path)
    keyhole.analyze(run, model=model, only=["kinds"])
    found = kinds.of(run)
    assert found is not None
    duplicate, dead = (np.flatnonzero(found.has(name)).tolist() for name in ("duplicate", "dead"))
    inside = run.cells.span(1)
    assert [place for place in duplicate if inside.start <= place < inside.stop] == [101, 136]
    assert [run.cells.address(place) for place in (101, 136)] == ["L1.5", "L1.40"]
    assert run.cells.place(1, 7) in dead
    by_name = {shown.kind.name: shown for shown in found.of(run.cells.place(1, 5))}
    assert by_name["duplicate"].has
    assert by_name["duplicate"].number == pytest.approx(1, abs=1e-5)
    assert by_name["duplicate"].threshold >= 0.5
    assert found.levels()[run.cells.place(1, 7)] == 1 + kinds.bit("dead")
    with pytest.raises(UsageError, match="no kind 'odd'.*positional"):
        found.has("odd")
    rows = run.table("kinds")
    assert len(rows) == run.layers * (len(kinds.KINDS) + 1)
    for row in rows:
        span = run.cells.span(row["layer"])
        if row["kind"] == kinds.NONE:
            assert row["count"] == np.count_nonzero(found.labels[span] == 0)
            continue
        at = kinds.bit(row["kind"])
        assert row["count"] == found.has(row["kind"])[span].sum()
        assert row["n"] == np.isfinite(found.numbers[span, at]).sum()
        assert row["expected"] is None or row["expected"] <= max(0.01, 1 / row["n"]) + 0.002
        kind = kinds.KINDS[at]
        numbers, limits = found.numbers[span, at], found.thresholds[span, at]
        if not kind.below and row["kind"] != "last_token":
            assert found.has(row["kind"])[span].tolist() == [
                bool(n >= t if row["kind"] == "ngram" else n > t) for n, t in zip(numbers, limits, strict=True)
            ]


# Positions


def test_the_share_that_position_explains(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    watching = Positions(run, Head(model), prefixes)
    every = []
    for row, ids in enumerate(prefixes.ids):
        batch = model.batch([ids])
        seen = states(model, batch.ids, torch.tensor([len(ids)]))
        watching.take([row], seen)
        every.append(torch.cat([m[0] for m in seen.coefficients]).double().numpy())
    m = np.stack(every)
    bins = np.searchsorted(kind_numbers.EDGES, [len(ids) - 1 for ids in prefixes.ids], "right")
    within = sum(((m[bins == b] - m[bins == b].mean(0)) ** 2).sum(0) for b in np.unique(bins))
    expected = 1 - within / ((m - m.mean(0)) ** 2).sum(0)
    found = watching.found()
    np.testing.assert_allclose(found.own, expected, atol=1e-6)
    assert ((found.null >= -1e-9) & (found.null <= 1)).all()
    assert np.median(found.null) != pytest.approx(np.median(found.own))


def test_a_cell_that_fires_at_one_position_is_positional() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 300)
    prefixes: Any = SimpleNamespace(ids=[[0] * int(n) for n in lengths])
    device = SimpleNamespace(model=SimpleNamespace(device=torch.device("cpu")))
    watching = Positions(SimpleNamespace(cells=range(2)), device, prefixes)  # type: ignore[arg-type]
    noise = torch.randn(300, generator=torch.Generator().manual_seed(0))
    m = torch.stack([torch.from_numpy((lengths == 1).astype(np.float32)), noise], 1)
    for part in (range(100), range(100, 300)):
        watching.take(list(part), SimpleNamespace(coefficients=[m[list(part), :1], m[list(part), 1:]]))  # type: ignore[arg-type]
    found = watching.found()
    assert found.own[0] == pytest.approx(1)
    assert max(found.own[1], *found.null) < 0.2


# Values


def read(tmp_path: Path, model: Model, lens: str) -> tuple[keyhole.Run, Reading]:
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["agreement"], lens=lens)
    return run, Reading(run, Head(model), Values(run, lens), 0)


@pytest.mark.parametrize("lens", ["raw", "norm"])
def test_numbers_of_values_equal_their_logits(lens: str, tmp_path: Path) -> None:
    model = fresh(tiny("gpt2"))
    with torch.no_grad():
        model.final_norm.weight.copy_(torch.linspace(0.5, 2, 16))
    run, reading = read(tmp_path, model, lens)
    found, weight = reading.of_layer(1), model.lm.get_output_embeddings().weight.double()
    shares = targets.unigram(run, len(weight))
    occurring = np.flatnonzero(shares)
    centred = weight - weight.mean(0)
    _, _, right = torch.linalg.svd(centred, full_matrices=False)
    for cell in range(24):
        v = model.values(1)[cell].double()
        folded = (v - v.mean()) * model.final_norm.weight.double()
        logits = (weight @ (v if lens == "raw" else folded)).numpy()
        order = np.sort(logits)
        spread = logits.std()
        assert found["promoting"][cell] == pytest.approx((order[-10:].mean() - logits.mean()) / spread, rel=1e-4)
        assert found["suppressing"][cell] == pytest.approx((logits.mean() - order[:10].mean()) / spread, rel=1e-4)
        own = (weight @ folded).numpy()[occurring]
        cosine = np.corrcoef(own, np.log(shares[occurring]))[0, 1]
        assert found["frequency"][cell] == pytest.approx(abs(cosine), rel=1e-4)
        unread = float((right[-1] @ folded) ** 2 / (folded @ folded))  # 2 % of 16 directions is one
        assert found["entropy"][cell] == pytest.approx(unread, rel=1e-3, abs=1e-6)
    null = reading.null()
    assert all(len(numbers) == kind_numbers.DIRECTIONS and np.isfinite(numbers).all() for numbers in null.values())


def test_planted_values_are_found(tmp_path: Path) -> None:
    """A value along the unigram direction, one that the unembedding does not read, one that demotes ten tokens."""
    model = fresh(tiny("llama", tie_word_embeddings=False))
    weight = model.lm.get_output_embeddings().weight
    with torch.no_grad():
        model.final_norm.weight.fill_(1)
        shared = torch.nn.functional.normalize(torch.ones(16), dim=0)
        weight[40:50] = 6 * shared  # ten tokens that one direction speaks of
        weight[:, 3] *= 1e-3  # hardly read
    run = scanned(model, tmp_path)
    shares = targets.unigram(run, len(weight))
    occurring = np.flatnonzero(shares)
    logs = torch.from_numpy(np.log(shares[occurring])).float()
    rows = weight[torch.from_numpy(occurring)]
    along = torch.linalg.lstsq(rows - rows.mean(0), (logs - logs.mean())[:, None]).solution[:, 0]
    with torch.no_grad():
        down = model.blocks[2].mlp.down_proj.weight
        down[:, 0] = along
        down[:, 1] = torch.nn.functional.one_hot(torch.tensor(3), 16).float()
        down[:, 2] = -shared
    run.manifest["model"]["fingerprint"] = model.fingerprint
    keyhole.analyze(run, model=model, only=["agreement"])
    found = Reading(run, Head(model), Values(run, "norm"), 0).of_layer(2)
    assert found["frequency"][0] == found["frequency"].max()
    assert found["entropy"][1] == pytest.approx(1, abs=1e-5)
    assert found["entropy"][3:].max() < 0.9
    assert found["suppressing"][2] == found["suppressing"].max()


def test_twins_equal_a_loop(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    vars(run)["orientation"] = np.where(np.random.default_rng(1).random(len(run.cells)) < 0.5, -1, 1).astype(np.int8)
    mlp, o = model.blocks[1].mlp, run.orientation[run.cells.span(1)]
    gate, up, value = (x.numpy() for x in (mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight.T))
    up, value = up * o[:, None], value * o[:, None]

    def cosine(x: np.ndarray, i: int, j: int) -> float:
        return float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]))

    expected = [
        max(min(cosine(x, i, j) for x in (gate, up, value)) for j in range(len(gate)) if j != i)
        for i in range(len(gate))
    ]
    for block in (kind_numbers.BLOCK, 100):  # whole, and in several blocks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind_numbers, "BLOCK", block)
            found = nearest_twin(run, Head(model), 1, np.random.default_rng(0))
        np.testing.assert_allclose(found.own, expected, atol=1e-5)


# What must not change anything


def test_order_of_cells_and_signs_of_gated_cells_do_not_matter(tmp_path: Path) -> None:
    """Numbers that come from weights: permuting a layer's cells permutes them, negating up and value changes nothing."""
    model = tiny("llama")
    run = scanned(model, tmp_path)
    o = np.where(np.random.default_rng(1).random(len(run.cells)) < 0.5, -1, 1)
    vars(run)["orientation"] = o.astype(np.int8)
    before = nearest_twin(run, Head(model), 1, np.random.default_rng(0)).own
    other, order = fresh(model), np.random.default_rng(2).permutation(24)
    flips = np.where(np.random.default_rng(3).random(24) < 0.5, -1, 1)
    mlp = other.blocks[1].mlp
    with torch.no_grad():
        sign, which = torch.from_numpy(flips).float(), torch.from_numpy(order)
        mlp.gate_proj.weight.copy_(mlp.gate_proj.weight[which])
        mlp.up_proj.weight.copy_((mlp.up_proj.weight * sign[:, None])[which])
        mlp.down_proj.weight.copy_((mlp.down_proj.weight * sign)[:, which])
    span = run.cells.span(1)
    turned = o.copy()
    turned[span] = (o[span] * flips)[order]
    vars(run)["orientation"] = turned.astype(np.int8)
    after = nearest_twin(run, Head(other), 1, np.random.default_rng(0)).own
    np.testing.assert_allclose(after, before[order], atol=1e-6)
