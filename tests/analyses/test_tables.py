"""Every table against the paper's definitions, on a random model of every family."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import paper
import pytest
import torch
from families import TINY, tiny
from small import scanned

import keyhole
from keyhole.analyses import heldout, registry, targets
from keyhole.analyses.measured import note
from keyhole.analyses.stats import clustered_mean, student, wilson
from keyhole.analyses.strength import at_triggers
from keyhole.errors import CorpusError, RunError, UsageError
from keyhole.lens.head import Head
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
    oriented = [[v * run.cell(layer, cell).orientation for cell, v in enumerate(values[layer])] for layer in everywhere]

    # agreement, rank
    for row in (row for row in run.table("agreement") if row["target"] in ("next", "last")):
        n, hits, _ = paper.agreement(run, model, row["layer"], row["target"], row["lens"])
        assert (row["n"], round(row["rate"] * row["n"])) == (n, hits)
        assert row["lo"] <= row["rate"] <= row["hi"]
    for row in run.table("rank"):
        n, _, ranks = paper.agreement(run, model, row["layer"], "next", row["lens"])
        assert row["n"] == n
        got = [row[name] for name in ("p5", "p25", "median", "p75", "p95")]
        np.testing.assert_allclose(got, np.percentile(ranks, [5, 25, 50, 75, 95]))

    # what values say
    said, strong = Values(run, "raw"), at_triggers(run, Head(model))[0]
    for layer in everywhere:
        for cell in range(0, model.cells.size(layer), 5):
            logits = oriented[layer][cell] @ e.T
            order = torch.argsort(logits, descending=True)
            assert said.top_tokens[model.cells.place(layer, cell)].tolist() == order[:30].tolist()
            assert said.bottom_tokens[model.cells.place(layer, cell)].tolist() == order.flip(0)[:30].tolist()
            assert said.norms[model.cells.place(layer, cell)] == pytest.approx(
                float(values[layer][cell].norm()), rel=1e-4
            )
            p = torch.softmax(logits * float(strong[model.cells.place(layer, cell)]), 0)
            expected = pytest.approx([float(p.max()), float(-(p * p.log()).sum())], rel=1e-3, nan_ok=True)
            assert [getattr(said, name)[model.cells.place(layer, cell)] for name in ("max_prob", "entropy")] == expected
            flat = torch.stack([v for one in oriented for v in one])
            cosines = torch.cosine_similarity(oriented[layer][cell][None], flat, dim=1)
            cosines[model.cells.place(layer, cell)] = -2
            near = similar(run, layer, cell)
            assert [other.cosine for other in near] == pytest.approx(cosines.topk(5).values.tolist(), abs=1e-4)

    # section 5
    keyhole.analyze(run, model=model, only=["composition", "refinement", "cases"], lens="raw")
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
    with pytest.raises(RunError, match=r"lens 'raw' yet.*--lens raw"):
        Values(run, "raw")
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
    stamp = (run.path / "values_norm_top_tokens.npy").stat().st_mtime_ns
    keyhole.analyze(run, model=model, only=["agreement"])
    assert (run.path / "values_norm_top_tokens.npy").stat().st_mtime_ns == stamp
    keyhole.analyze(run, model=model, only=["agreement"], mask_untrained=True)
    assert (run.path / "values_norm_top_tokens.npy").stat().st_mtime_ns != stamp
    assert Values(run, "norm").top_tokens.max() < 300
