"""Every table against the paper's definitions, on a random model of every family."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import paper
import pytest
import torch
from families import TINY, tiny
from small import scanned

import keyhole
from keyhole.analyses import heldout, mutation, registry, targets
from keyhole.analyses.measured import note
from keyhole.analyses.stats import clustered_mean, student, wilson
from keyhole.errors import CorpusError, RunError, UsageError
from keyhole.store import tables
from keyhole.store.values import Values, similar


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(TINY))
def test_every_table_equals_the_papers_definition(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, lens=["raw", "norm"], cells=5)
    everywhere = range(model.layers)
    e = paper.unembedding(model)
    values = [[paper.value(model, layer, cell) for cell in range(model.cells.size(layer))] for layer in everywhere]

    # agreement, rank
    for row in run.table("agreement"):
        n, hits, _ = paper.agreement(run, model, row["layer"], row["target"], row["lens"])
        assert (row["n"], round(row["rate"] * row["n"])) == (n, hits)
        assert row["lo"] <= row["rate"] <= row["hi"]
    for row in run.table("rank"):
        n, _, ranks = paper.agreement(run, model, row["layer"], "next", row["lens"])
        assert row["n"] == n
        got = [row[name] for name in ("p5", "p25", "median", "p75", "p95")]
        np.testing.assert_allclose(got, np.percentile(ranks, [5, 25, 50, 75, 95]))

    # what values say
    said = Values(run, "raw")
    for layer in everywhere:
        for cell in range(0, model.cells.size(layer), 5):
            logits = values[layer][cell] @ e.T
            order = torch.argsort(logits, descending=True)
            assert said.top_tokens[model.cells.place(layer, cell)].tolist() == order[:30].tolist()
            assert said.bottom_tokens[model.cells.place(layer, cell)].tolist() == order.flip(0)[:30].tolist()
            assert said.norms[model.cells.place(layer, cell)] == pytest.approx(
                float(values[layer][cell].norm()), rel=1e-4
            )
            assert said.max_prob[model.cells.place(layer, cell)] == pytest.approx(
                float(torch.softmax(logits, 0).max()), rel=1e-4
            )
            flat = torch.stack([v for one in values for v in one])
            cosines = torch.cosine_similarity(values[layer][cell][None], flat, dim=1)
            cosines[model.cells.place(layer, cell)] = -2
            near = similar(run, layer, cell)
            assert [other.cosine for other in near] == pytest.approx(cosines.topk(5).values.tolist(), abs=1e-4)

    # section 5
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    seen = [paper.look(model, ids) for ids in prefixes.ids]
    final = [int(paper.own_logits(model, one.o[-1]).argmax()) for one in seen]
    short: list[bool] = []
    for row in run.table("composition"):
        if (row["cells"], row["output"]) != ("active", "y"):
            continue
        layer = row["layer"]
        top, bottom = ([int((sign * v @ e.T).argmax()) for v in values[layer]] for sign in (1, -1))
        zero = [paper.zero_agreement(model, layer, one, top, bottom) for one in seen]
        assert row["n"] == len(seen)
        assert row["zero_agreement"] == pytest.approx(np.mean(zero))
        assert row["lo"] <= row["zero_agreement"] <= row["hi"]
        short += [len(ids) < 5 for ids, z in zip(prefixes.ids, zero, strict=True) if not z]
    facts = tables.read_facts(run.path, registry.get("composition").schema)
    assert facts["agreeing"] == len(short)
    assert facts["short_share"] == (pytest.approx(np.mean(short)) if short else None)
    assert facts["short_base"] == pytest.approx(np.mean([len(ids) < 5 for ids in prefixes.ids]))
    for row in run.table("budget"):
        above = np.mean([one.m[row["layer"]] > 0 for one in seen])
        assert row["active_fraction"] == (None if run.gated else pytest.approx(above))
    for row in run.table("refinement"):
        layer = row["layer"]
        r, y, o = ([int(paper.own_logits(model, getattr(one, name)[layer]).argmax()) for one in seen] for name in "ryo")
        kinds = Counter(
            "agreement" if c == a == b else "residual" if c == a else "ffn" if c == b else "composition"
            for a, b, c in zip(r, y, o, strict=True)
        )
        for kind in ("residual", "ffn", "agreement", "composition"):
            assert row[kind] == pytest.approx(kinds[kind] / len(seen)), kind
        assert row["residual_match"] == pytest.approx(np.mean([a == b for a, b in zip(r, final, strict=True)]))
        p = [
            float(torch.softmax(paper.own_logits(model, one.r[layer]), 0)[t])
            for one, t in zip(seen, final, strict=True)
        ]
        quartiles = [row[f"final_prob_{name}"] for name in ("p25", "median", "p75")]
        np.testing.assert_allclose(quartiles, np.percentile(p, [25, 50, 75]), rtol=1e-3, atol=1e-7)
    assert len(run.table("cases")) == round(run.table("refinement")[-1]["composition"] * len(seen))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_mutation_equals_one_forward_per_trigger(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    rows, facts = mutation.rows(run, model, cells=6, seed=3)
    picked = mutation.pick(run, 6, 3)
    assert facts == {"cells": 6, "cells_least": 6, "triggers": 4, "one_token": picked.skipped}
    assert f"{picked.skipped} triggers of one token" in mutation.note(facts)
    assert len(rows) == 3 * model.layers
    for layer in range(model.layers):
        changes: dict[str, list[float]] = {name: [] for name in mutation.DROPPED}
        for i in np.flatnonzero(picked.layer == layer):
            ids = [int(t) for t in run.unit_tokens(int(picked.unit[i]))][: picked.length[i]]
            longest = max(picked.length[picked.unit == picked.unit[i]])
            place = mutation.reservoir(longest, np.random.default_rng((3, int(picked.unit[i]), 0)))[len(ids) - 1]
            for name, mutated in (
                ("first", ids[1:]),
                ("last", ids[:-1]),
                ("random", ids[:place] + ids[place + 1 :]),
            ):
                m = paper.look(model, mutated).m[layer][picked.cell[i]]
                changes[name].append((m - picked.coefficient[i]) / picked.coefficient[i])
        for row in (row for row in rows if row["layer"] == layer):
            assert row["n"] == len(changes[row["dropped"]])
            assert row["mean_change"] == pytest.approx(np.mean(changes[row["dropped"]]), rel=1e-2, abs=1e-3)


def test_the_random_place_is_uniform_over_each_prefix() -> None:
    draws = np.stack([mutation.reservoir(6, np.random.default_rng(seed)) for seed in range(6000)])
    for length in range(1, 7):
        counts = np.bincount(draws[:, length - 1], minlength=length)
        assert len(counts) == length
        np.testing.assert_allclose(counts / 6000, 1 / length, atol=0.03)


def test_baselines_are_what_they_say(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["agreement"])
    top = Values(run, "raw").top_tokens[:, 0]
    held = set(targets.held_out_units(run).tolist())
    text = [
        int(t) for unit in range(run.manifest["corpus"]["units"]) if unit not in held for t in run.unit_tokens(unit)
    ]
    frequency = Counter(text)
    for row in run.table("agreement"):
        if row["target"] != "next":
            continue
        pairs = [
            (int(top[run.cells.place(row["layer"], cell)]), triggers[0].next_id)
            for cell in range(run.cells.size(row["layer"]))
            if (triggers := run.triggers(row["layer"], cell)) and triggers[0].next_id is not None
        ]
        chance = np.mean([a == b for a, _ in pairs for _, b in pairs])
        assert row["permuted"] == pytest.approx(chance)
        assert row["unigram"] == pytest.approx(np.mean([frequency[b] / len(text) for _, b in pairs]))


def test_confidence_bins_hold_all_cells_and_confident_the_surest(tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["confidence", "confident", "agreement"])
    bins, rows = run.table("confidence"), run.table("agreement")
    known = [row for row in rows if row["target"] == "next"]
    assert sum(row["n"] for row in bins) == sum(row["n"] for row in known)
    hits = sum(row["rate"] * row["n"] for row in known)
    assert sum(row["rate"] * row["n"] for row in bins) == pytest.approx(hits)
    assert all(a["max_prob_hi"] <= b["max_prob_lo"] for a, b in itertools.pairwise(bins))
    surest = run.table("confident")
    said = Values(run, "raw")
    assert [row["max_prob"] for row in surest] == sorted(said.max_prob.ravel().tolist(), reverse=True)[:100]
    for row in surest[:10]:
        known_next = [t.next_token for t in run.triggers(row["layer"], row["cell"]) if t.next_token is not None]
        assert row["share"] == (pytest.approx(known_next.count(row["token"]) / len(known_next)) if known_next else None)


def test_activity_counts_the_corpus(tmp_path: Path) -> None:
    model = tiny("gpt2", activation_function="relu")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["activity"])
    for row in run.table("activity"):
        fractions = [run.cell(row["layer"], cell).stats.active_fraction for cell in range(run.cells.size(row["layer"]))]
        assert row["active_fraction"] == pytest.approx(np.mean(fractions))
        assert row["dead"] == sum(run.cell(row["layer"], cell).dead for cell in range(run.cells.size(row["layer"])))
        assert row["n"] == run.manifest["corpus"]["scanned_prefixes"]
        assert row["lo"] < row["active_fraction"] < row["hi"]


def test_wilson_and_clustered_intervals() -> None:
    lo, hi = wilson(5, 50)  # the textbook's
    assert (lo, hi) == (pytest.approx(0.04348, abs=1e-4), pytest.approx(0.21360, abs=1e-4))
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (None, None)
    values = np.repeat([0.0, 1.0, 2.0], 100)
    mean, lo, hi = clustered_mean(values, np.repeat([0, 1, 2], 100))
    assert mean == 1.0
    assert hi is not None
    assert hi - mean > 1  # three clusters, not three hundred values
    assert [student(n) for n in (1, 4, 9, 99)] == [pytest.approx(t, abs=5e-4) for t in (12.706, 2.776, 2.262, 1.984)]
    assert clustered_mean(np.empty(0), np.empty(0)) == (None, None, None)


# Where section 5's text comes from


def test_prefixes_are_seeded_random_and_have_a_next_token(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    held = targets.held_out_units(run)
    units = {tuple(int(t) for t in run.unit_tokens(int(unit))) for unit in held}
    found = heldout.prefixes(run, model, None, samples=4000, seed=0)
    assert (found.facts["source"], found.facts["prefixes"]) == ("held out", len(found.ids))
    assert "held out" in heldout.note(found.facts)
    for ids, following in zip(found.ids, found.following, strict=True):
        assert any(unit[: len(ids) + 1] == (*ids, following) for unit in units)
    assert len(found.ids) == sum(len(run.unit_tokens(int(unit))) > 1 for unit in held)
    assert found == heldout.prefixes(run, model, None, samples=4000, seed=0)
    assert found.ids != heldout.prefixes(run, model, None, samples=4000, seed=1).ids
    assert len(heldout.prefixes(run, model, None, samples=10, seed=0).ids) <= 10


def test_valid_text_comes_first_and_the_corpus_last(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path, hold_out=0.0)
    tables_ = ["composition", "refinement", "cases"]
    keyhole.analyze(run, model=model, only=tables_)
    for name in tables_:
        assert "scanned corpus itself: no held-out text" in note(run, name)
    valid = tmp_path / "valid.txt"
    valid.write_text("\n".join(f"line number {i} of another text" for i in range(30)))
    keyhole.analyze(run, model=model, only=tables_, valid=valid)
    for name in tables_:
        assert "valid.txt" in note(run, name)
    assert run.table("composition")[0]["n"] == 30


# What cannot be


def test_too_little_held_out_text_says_so(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    valid = tmp_path / "valid.txt"
    valid.write_text("one line\nand another\n")
    with pytest.raises(CorpusError, match=r"at least 10 lines.*has 2"):
        keyhole.analyze(run, model=model, valid=valid, only=["refinement"])
    valid.write_text("")
    with pytest.raises(CorpusError, match="has 0"):
        keyhole.analyze(run, model=model, valid=valid)
    with pytest.raises(RunError, match="no tables yet"):  # told before any work
        run.table("activity")


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    run = scanned(tiny("llama"), tmp_path)
    with pytest.raises(RunError, match="not the model that was scanned"):
        keyhole.analyze(run, model=tiny("llama", rms_norm_eps=1e-3, tie_word_embeddings=True))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"only": ["agreements"]}, "no table 'agreements'.*activity, mutation"),
        ({"only": []}, "names no table"),
        ({"lens": "tuned"}, "no lens 'tuned'"),
        ({"lens": []}, "No lens"),
        ({"samples": 0}, "samples is 0"),
        ({"cells": 0}, "cells is 0"),
    ],
)
def test_impossible_options_say_so(options: dict[str, object], says: str, tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    with pytest.raises(UsageError, match=says):
        keyhole.analyze(run, model=model, **options)  # type: ignore[arg-type]


def test_a_run_without_what_is_asked_for_says_how_to_make_it(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    with pytest.raises(RunError, match=r"no tables yet.*keyhole analyze"):
        run.table("agreement")
    with pytest.raises(RunError, match=r"lens 'norm' yet.*--lens norm"):
        Values(run, "norm")
    keyhole.analyze(run, model=model, only=["activity"])
    with pytest.raises(RunError, match="'rank' is not filled yet"):
        run.table("rank")
    (tmp_path / "parts").mkdir()
    part = scanned(model, tmp_path / "parts", shard="1/2", batch_tokens=64)
    with pytest.raises(RunError, match="one shard of a scan"):
        keyhole.analyze(part, model=model)


def test_the_scans_files_stay_sealed(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    before = (run.path / "manifest.json").read_bytes()
    keyhole.analyze(run, model=model, cells=3)
    assert (run.path / "manifest.json").read_bytes() == before
    keyhole.open(run.path)  # checks every sealed file
    assert not list(run.path.glob("*.new"))
    assert keyhole.verify(keyhole.open(run.path), model=model).ok


def test_values_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["rank"])
    stamp = (run.path / "values_raw_top_tokens.npy").stat().st_mtime_ns
    keyhole.analyze(run, model=model, only=["agreement"])
    assert (run.path / "values_raw_top_tokens.npy").stat().st_mtime_ns == stamp
    keyhole.analyze(run, model=model, only=["agreement"], mask_untrained=True)
    assert (run.path / "values_raw_top_tokens.npy").stat().st_mtime_ns != stamp
    assert Values(run, "raw").top_tokens.max() < 300
