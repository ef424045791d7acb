"""Space across layers, each number against a computation from its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paper
import pytest
import torch
from families import CONTEXT, tiny

import keyhole
from keyhole.analyses import cka, heldout, mapping, space
from keyhole.analyses.measured import Measured
from keyhole.analyses.record import Measurement
from keyhole.errors import CorpusError
from keyhole.lens.head import Head
from keyhole.lens.maps import Maps
from keyhole.store import layout
from keyhole.store.values import Values

# CKA


def naive_hsic(k: np.ndarray, other: np.ndarray) -> float:
    """Mean over all ordered quadruples of different states: what the unbiased estimate is by definition."""
    n, total, count = len(k), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q])
                        count += 1
    return total / count


def states(n: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width))


def test_cka_is_the_ratio_of_unbiased_hsic() -> None:
    a, b = states(7, 3), states(7, 5, 1) + states(7, 5)
    k, other = cka.kernel(a), cka.kernel(b)
    expected = naive_hsic(k, other) / np.sqrt(naive_hsic(k, k) * naive_hsic(other, other))
    assert cka.cka(k, other).value == pytest.approx(expected)


def test_cka_does_not_change_with_rotation_scale_and_shift() -> None:
    a, b = states(30, 6), states(30, 4, 1) @ states(4, 4, 2) + states(30, 4)
    rotation = np.linalg.qr(states(6, 6, 3))[0]
    plain = cka.cka(cka.kernel(a), cka.kernel(b)).value
    assert cka.cka(cka.kernel(a @ rotation * 7 + 5), cka.kernel(b)).value == pytest.approx(plain)
    assert cka.cka(cka.kernel(a @ rotation * 7 + 5), cka.kernel(a)).value == pytest.approx(1)
    stretched = a * np.array([30, 1, 1, 1, 1, 1])  # another geometry
    assert cka.cka(cka.kernel(stretched), cka.kernel(a)).value < 0.8


def test_cka_of_unrelated_states_is_near_zero_even_for_few_in_many_dimensions() -> None:
    found = [cka.cka(cka.kernel(states(20, 200, seed)), cka.kernel(states(20, 200, seed + 50))) for seed in range(30)]
    assert abs(np.mean([each.value for each in found])) < 0.05
    a = states(20, 200)
    centred = a - a.mean(0)
    biased = centred @ centred.T
    b = states(20, 200, 50)
    other = (b - b.mean(0)) @ (b - b.mean(0)).T
    assert (biased * other).sum() / np.sqrt((biased**2).sum() * (other**2).sum()) > 0.8  # the usual estimate
    assert 0 < cka.shuffled(cka.kernel(a), cka.kernel(b)) < 0.5


@pytest.mark.parametrize("clusters", [None, np.array([0, 0, 1, 2, 2, 3, 4, 5, 5, 5, 6, 7])])
def test_the_interval_of_cka_is_the_jackknife(clusters: np.ndarray | None) -> None:
    a, b = states(12, 5), states(12, 5) + 0.5 * states(12, 5, 1)
    k, other = cka.kernel(a), cka.kernel(b)
    found = cka.cka(k, other, clusters)
    without = []
    for each in np.unique(np.arange(12) if clusters is None else clusters):
        kept = np.flatnonzero((np.arange(12) if clusters is None else clusters) != each)
        without.append(cka.cka(cka.kernel(a[kept]), cka.kernel(b[kept])).value)
    g = len(without)
    error = np.sqrt((g - 1) / g * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert found.hi is not None
    assert found.lo is not None
    assert (found.hi - found.lo) / 2 == pytest.approx(keyhole.analyses.stats.student(g - 1) * error)


# Distributions


def test_divergence_and_marginal_bias_are_torchs() -> None:
    random = torch.Generator().manual_seed(0)
    final, other = (torch.log_softmax(3 * torch.randn(12, 40, generator=random), 1) for _ in range(2))
    kl, marginal = space.compare(final, other, None)
    expected = torch.nn.functional.kl_div(other, final, log_target=True, reduction="none").sum(1)
    np.testing.assert_allclose(kl, expected.numpy(), rtol=1e-4)
    means = [each.exp().mean(0) for each in (final, other)]
    bias = torch.nn.functional.kl_div(means[1].log(), means[0].log(), log_target=True, reduction="sum")
    assert marginal.value == pytest.approx(float(bias), rel=1e-4)
    unlike, split = space.independent(final, None)
    rest = [final[torch.arange(12) != i].exp().mean(0).log() for i in range(12)]
    assert unlike == pytest.approx(
        np.mean([float((row.exp() * (row - mean)).sum()) for row, mean in zip(final, rest, strict=True)]), rel=1e-4
    )
    assert split > 0


def test_the_interval_of_the_marginal_bias_is_about_that_of_a_bootstrap() -> None:
    random = torch.Generator().manual_seed(0)
    final, other = (torch.log_softmax(torch.randn(300, 10, generator=random), 1) for _ in range(2))
    other = torch.log_softmax(other + torch.linspace(0, 1, 10), 1)
    _, found = space.compare(final, other, None)
    drawn = []
    generator = np.random.default_rng(0)
    for _ in range(400):
        rows = torch.from_numpy(generator.integers(0, 300, 300))
        p, q = final[rows].exp().mean(0), other[rows].exp().mean(0)
        drawn.append(float((p * (p / q).log()).sum()))
    assert found.lo is not None
    assert found.hi is not None
    assert found.hi - found.lo == pytest.approx(2 * 1.96 * np.std(drawn), rel=0.15)


# The table


def words(path: Path, documents: int = 30) -> Path:
    """A document per paragraph, of a few lines each."""
    random = np.random.default_rng(1)
    names = ["the", "cat", "sat", "on", "a", "mat", "of", "Paris", "dog", "ran", "to", "it", "by", "sea", "Rome", "we"]
    lines = []
    for _ in range(documents):
        lines += [" ".join(random.choice(names, random.integers(2, 8))) for _ in range(3)] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_the_table_is_what_its_columns_say(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = keyhole.scan(
        model, [words(tmp_path / "text.txt")], out=tmp_path / "run", unit="line", top=4, context=CONTEXT, hold_out=0.4
    )
    keyhole.analyze(run, model=model, only=["space"])
    head = Head(model)
    made = mapping.fit(run, head)
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    kept = mapping.unseen(run, prefixes, 16)
    ids = [each for each, keep in zip(prefixes.ids, kept, strict=True) if keep]
    seen = [paper.look(model, each) for each in ids]
    final = torch.stack([one.o[-1] for one in seen])
    spread = float((final - final.mean(0)).square().sum())
    p = torch.log_softmax(torch.stack([paper.own_logits(model, each) for each in final]), 1)
    e = paper.unembedding(model)
    table = run.table("space")
    assert [(row["layer"], row["reading"]) for row in table] == [
        (layer, name) for layer in range(3) for name in space.READINGS
    ]
    for row in table:
        assert row["n"] == len(seen)
        o = torch.stack([one.o[row["layer"]] for one in seen])
        if row["reading"] == "mapped":
            layer = row["layer"]
            null = o @ torch.from_numpy(made.shuffled.linear[layer]) + torch.from_numpy(made.shuffled.offset[layer])
            o = o @ torch.from_numpy(made.maps.linear[layer]) + torch.from_numpy(made.maps.offset[layer])
            assert row["r2_null"] == pytest.approx(1 - float((final - null).square().sum()) / spread, abs=1e-3)
        assert row["r2"] == pytest.approx(1 - float((final - o).square().sum()) / spread, abs=1e-3)
        logits = torch.stack([paper.own_logits(model, each) for each in o])
        if row["reading"] == "raw":
            logits = o @ e.T
            if cap := getattr(model.config, "final_logit_softcapping", None):
                logits = torch.tanh(logits / cap) * cap
        q = torch.log_softmax(logits, 1)
        kl = (p.exp() * (p - q)).sum(1)
        assert row["kl"] == pytest.approx(float(kl.mean()), rel=1e-3, abs=1e-4)
        p_mean, q_mean = p.exp().mean(0), q.exp().mean(0)
        assert row["marginal"] == pytest.approx(float((p_mean * (p_mean / q_mean).log()).sum()), rel=1e-3, abs=1e-4)
        assert row["cka"] == pytest.approx(
            cka.cka(cka.kernel(o.numpy()), cka.kernel(final.numpy())).value, rel=1e-3, abs=1e-4
        )
        for name in ("r2", "cka", "kl", "marginal"):
            assert row[f"{name}_lo"] - 1e-6 <= row[name] <= row[f"{name}_hi"] + 1e-6
    last = {row["reading"]: row for row in table[-3:]}
    assert last["mapped"]["r2"] == last["norm"]["r2"] == 1
    assert last["mapped"]["kl"] == last["norm"]["kl"] == pytest.approx(0, abs=1e-6)
    facts = Measured.read(run).facts["space"]
    assert facts["tested"] == len(seen)
    assert facts["states"] == sum(map(len, mapping.sample(run, 96)))
    assert facts["split"] == "unit"
    r2 = [row["r2"] for row in table if row["reading"] == "mapped"]
    assert facts["shared"] == pytest.approx(r2[1] - r2[0], abs=1e-3)
    kl = {name: [row["kl"] for row in table if row["reading"] == name] for name in space.READINGS}
    gain = [a - b for a, b in zip(kl["norm"], kl["mapped"], strict=True)]
    assert facts["hidden"] == pytest.approx(gain[0] - gain[1], rel=1e-3, abs=1e-4)
    assert facts["closed"] == pytest.approx(gain[0] / (kl["norm"][0] - kl["norm"][1]), rel=1e-2)


def test_what_is_fitted_on_is_never_tested_on(tmp_path: Path) -> None:
    model = tiny("gpt2")
    text = words(tmp_path / "text.txt")
    for options in ({"hold_out": 0.4}, {"hold_out": 0.4, "hold_out_by": "document"}, {}):
        run = keyhole.scan(
            model, [text], out=tmp_path / "run", unit="line", top=4, context=CONTEXT, force=True, **options
        )
        fitting, by = mapping.split(run)
        assert by == ("unit" if options.get("hold_out_by", None) is None and options else "document")
        assert 0.2 < fitting.mean() < 0.8
        windows = [window.tolist() for window in mapping.sample(run, 96)]
        units = [run.unit_tokens(int(unit)).tolist() for unit in np.flatnonzero(fitting)]
        assert all(window in units for window in windows)
        assert 96 <= sum(map(len, windows)) < 96 + max(map(len, windows))
        prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
        kept = mapping.unseen(run, prefixes, 16)
        assert kept.any()
        for ids, document, keep in zip(prefixes.ids, prefixes.documents, kept, strict=True):
            if keep:
                assert not any(window[: len(ids)] == ids for window in windows)
            if keep and by == "document":
                assert document not in {run.unit_source(int(unit))[0] for unit in np.flatnonzero(fitting)}


def test_the_states_are_those_of_every_token(tmp_path: Path) -> None:
    model = tiny("llama")
    windows = [np.array([5, 9, 30]), np.array([7, 8, 9, 200, 11])]
    first, last = mapping.outputs(model, windows, [0, 2], bos=True)
    expected = [paper.look(model, window[:end].tolist()) for window in windows for end in range(1, len(window) + 1)]
    torch.testing.assert_close(first, torch.stack([one.o[0] for one in expected]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, torch.stack([one.o[2] for one in expected]), rtol=1e-4, atol=1e-5)


def test_layers_are_fitted_in_groups_if_their_sums_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    run = keyhole.scan(model, [words(tmp_path / "t.txt")], out=tmp_path / "run", unit="line", top=4, context=CONTEXT)
    together = mapping.fit(run, Head(model))
    monkeypatch.setattr(mapping, "SUMS_BYTES", 1)
    apart = mapping.fit(run, Head(model))
    np.testing.assert_allclose(apart.maps.linear, together.maps.linear, atol=1e-6)
    np.testing.assert_allclose(apart.shuffled.linear, together.shuffled.linear, atol=1e-6)


# The lens


def test_values_are_read_through_the_maps_and_the_maps_are_fitted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    run = keyhole.scan(model, [words(tmp_path / "t.txt")], out=tmp_path / "run", unit="line", top=4, context=CONTEXT)
    keyhole.analyze(run, model=model, only=["rank", "composition"], lens=["mapped", "norm"])
    assert {row["lens"] for row in run.table("rank")} == {"mapped", "norm"}
    stored = Maps.read(run, mapping.settings(run))
    assert stored is not None
    said, norm = Values(run, "mapped"), Values(run, "norm")
    e, gain = paper.unembedding(model), model.final_norm.weight.detach()
    for layer in range(3):
        for cell in (0, 7):
            v = paper.value(model, layer, cell) * int(run.orientation[run.cells.place(layer, cell)])
            logits = (gain * (v @ torch.from_numpy(np.array(stored.linear[layer])))) @ e.T
            place = run.cells.place(layer, cell)
            assert said.top_tokens[place, 0] == int(logits.argmax())
            assert said.top_logits[place, 0] == pytest.approx(float(logits.max()), rel=1e-3)
    last = run.cells.span(2)
    np.testing.assert_array_equal(said.top_tokens[last], norm.top_tokens[last])
    assert (said.top_tokens[run.cells.span(0)] != norm.top_tokens[run.cells.span(0)]).any()

    monkeypatch.setattr(mapping, "fit", lambda *args: pytest.fail("the maps are stored"))
    keyhole.analyze(run, model=model, only=["rank"], lens="mapped")
    assert layout.damaged_groups(run.path) == []


def test_too_little_text_for_maps_is_said_and_the_rest_is_measured(tmp_path: Path) -> None:
    model = tiny("llama")
    text = tmp_path / "text.txt"
    text.write_text("\n".join("ab cd ef gh ij kl"[i : i + 3] for i in range(14)) + "\n", encoding="utf-8")
    run = keyhole.scan(model, [text], out=tmp_path / "run", unit="line", top=4, context=CONTEXT, hold_out=0.8)
    assert mapping.too_few(run, 16) is not None
    with pytest.raises(CorpusError, match=r"lens 'mapped' cannot be made.*at least 32 tokens.*Scan more text"):
        keyhole.analyze(run, model=model, only=["rank"], lens="mapped")
    keyhole.analyze(run, model=model, only=["space"])
    table = run.table("space")
    assert {row["reading"] for row in table} == {"raw", "norm"}
    found = Measured.read(run)
    assert found.facts["space"]["states"] == 0
    assert "too little scanned text" in found.notes["space"]
    assert {verdict.outcome for verdict in (*found.verdicts["space"], *found.verdicts["readings"])} == {"unclear"}


# Verdicts


def measurement(errors: list[float], norm: list[float], mapped: list[float]) -> Measurement:
    random = np.random.default_rng(0)
    noisy = [np.array(each)[:, None] + random.normal(0, 0.02, (len(each), 80)) for each in (errors, norm, mapped)]
    return Measurement([], space.effects(noisy[0], np.ones(80), noisy[1], noisy[2], None), None)  # type: ignore[arg-type]


FLAT, FALLING, STEEP = [0.5] * 7, [0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.0], [9.0, 8.0, 6.0, 5.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("errors", "norm", "mapped", "expected"),
    [
        (FALLING, STEEP, FALLING, ["holds", "holds", "holds"]),
        (FLAT, FLAT, FLAT, ["does not hold", "does not hold", "not applicable"]),
        (FLAT, STEEP, STEEP, ["does not hold", "does not hold", "does not hold"]),  # the map gains nothing
        (FALLING, STEEP[::-1], STEEP[::-1], ["holds", "does not hold", "not applicable"]),
    ],
)
def test_claims_can_come_out_either_way(
    errors: list[float], norm: list[float], mapped: list[float], expected: list[str]
) -> None:
    found = measurement(errors, norm, mapped)
    assert [judge(found).outcome for judge in (space.shares, space.hides, space.explains)] == expected
