"""The whole way on a CUDA card, each result against the same on the CPU. float32, so that only rounding is between them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from families import save, tiny

import keyhole
from keyhole.models.intervene import Edit
from keyhole.scanning.verify import verify
from keyhole.store import layout, leaks, shading
from keyhole.uses import prompt
from keyhole.uses.ablate import ablate
from keyhole.uses.by_layer import by_layer
from keyhole.uses.nearest import nearest
from keyhole.uses.trying import try_key

CARD = os.environ.get("KEYHOLE_TEST_CARD", "cuda")  # another device only tries the tests themselves
pytestmark = pytest.mark.skipif(CARD == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device")
TEXT = "The cat sat on the mat"
PLACES = {"here": "cpu", "there": CARD}


@pytest.fixture(scope="module", params=["llama", "gpt2", "opt"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny(request.param), tmp_path_factory.mktemp("models") / request.param)


def scanned(folder: str, text: Path, out: Path, **options: object) -> keyhole.Run:
    chosen = {"device": CARD, "dtype": "float32", "top": 4, "unit": "line", "batch_tokens": 300} | options
    return keyhole.scan(folder, [text], out=out, **chosen)  # type: ignore[arg-type]


def near(one: keyhole.Run, other: keyhole.Run) -> None:
    for side in ("", "_negative"):
        mine, theirs = (getattr(run, "coefficients" + side) for run in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
        assert (getattr(one, "units" + side) == getattr(other, "units" + side)).mean() > 0.99
    np.testing.assert_array_equal(one.stats.n, other.stats.n)
    np.testing.assert_allclose(one.stats.mean, other.stats.mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(one.stats.max, other.stats.max, rtol=1e-3, atol=1e-5)


def same_bytes(one: keyhole.Run, other: keyhole.Run) -> None:
    assert one.manifest["files"] == other.manifest["files"]


def test_a_card_is_what_a_user_gets(folder: str, text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(
        folder, [text], out=tmp_path / "run", top=4, unit="line", device="auto" if CARD == "cuda" else CARD
    )
    assert run.manifest["config"]["device"] == CARD
    assert verify(run, cells=10).ok


@pytest.mark.parametrize("per", ["sentence", "prefix"])
def test_a_scan(folder: str, per: str, text: Path, tmp_path: Path) -> None:
    here = scanned(folder, text, tmp_path / "cpu", device="cpu", per=per)
    there = scanned(folder, text, tmp_path / "card", per=per)
    near(here, there)
    same_bytes(there, scanned(folder, text, tmp_path / "again", per=per))
    assert verify(there, cells=10).ok


def test_shards_of_a_scan_merge_to_its_bytes(folder: str, text: Path, tmp_path: Path) -> None:
    whole = scanned(folder, text, tmp_path / "whole")
    parts = [scanned(folder, text, tmp_path / f"part{i}", shard=f"{i}/2").path for i in (1, 2)]
    same_bytes(whole, keyhole.merge(tmp_path / "merged", parts))


def test_a_model_spread_over_the_cards_there_are(folder: str, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the split extra is not installed")
    near(scanned(folder, text, tmp_path / "one"), scanned(folder, text, tmp_path / "split", device="split"))


def test_a_compiled_scan(folder: str, text: Path, tmp_path: Path) -> None:
    near(scanned(folder, text, tmp_path / "plain"), scanned(folder, text, tmp_path / "compiled", compile=True))


def test_memory_that_runs_out_halves_the_batch(
    folder: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keyhole.load(folder, device=CARD, dtype="float32")
    run, asked = model.run, []

    def scarce(ids: torch.Tensor, sink: object) -> None:
        asked.append(ids.numel())
        if ids.numel() > 100:
            raise torch.OutOfMemoryError("none left")
        run(ids, sink)  # type: ignore[arg-type]

    whole = scanned(model, text, tmp_path / "whole")  # type: ignore[arg-type]
    monkeypatch.setattr(model, "run", scarce)
    near(whole, scanned(model, text, tmp_path / "halved"))  # type: ignore[arg-type]
    assert max(asked) > 100


def test_every_table_and_shade(folder: str, text: Path, tmp_path: Path) -> None:
    """From one run, so that both look at the same triggers."""
    found = []
    for number, device in enumerate(("cpu", CARD)):
        run = scanned(folder, text, tmp_path / str(number), device="cpu")
        options = {"valid": str(text), "samples": 20, "cells": 3, "lens": ["norm", "raw"]}
        keyhole.analyze(run, model=keyhole.load(folder, device=device, dtype="float32"), **options)  # type: ignore[arg-type]
        found.append(run)
    for name in ("activity", "agreement", "rank", "mutation", "budget", "composition", "refinement", "part", "veto"):
        rows = [run.table(name) for run in found]
        assert len(rows[0]) == len(rows[1]) > 0
        for one, other in zip(*rows, strict=True):
            for column, value in one.items():
                if isinstance(value, float) and np.isfinite(value):
                    assert other[column] == pytest.approx(value, rel=0.05, abs=0.05), (name, column)
    shades = [layout.load_array(run.path, "shading").astype(int) for run in found]
    assert abs(shades[0] - shades[1]).max() <= 1


def test_a_prompt_and_an_edit(folder: str) -> None:
    models = [keyhole.load(folder, device=device, dtype="float32") for device in ("cpu", CARD)]
    for edits in ([], [Edit(layer=1, cell=3, scale=-4.0), Edit(layer=0, cell=7, scale=0.0, positions=(2,))]):
        one, other = (prompt.read(model, TEXT, edits=edits).to_json() for model in models)
        same(one, other)


def same(one: object, other: object) -> None:
    """The same thing, numbers up to rounding."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()  # type: ignore[attr-defined]
        for key in one:
            same(one[key], other[key])  # type: ignore[index]
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):  # type: ignore[call-overload]
            same(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-2, abs=1e-4)
    else:
        assert one == other


def test_what_the_live_pages_ask(folder: str, text: Path, tmp_path: Path) -> None:
    """Try this key, the nearest cells, ablation, what every layer does, and a continuation with a cell switched off."""
    run = keyhole.analyze(
        scanned(folder, text, tmp_path / "run", device="cpu"), only=["shading", "plane", "agreement"], device="cpu"
    )
    card = keyhole.analyze(scanned(folder, text, tmp_path / "card"), only=["shading", "plane"], device=CARD)
    shares = [shading.of(each) for each in (run, card)]
    assert shares[0] is not None
    assert shares[1] is not None
    edits = [Edit(1, 5, 0.0)]
    found = []
    for device in ("cpu", CARD):
        model = keyhole.load(folder, device=device, dtype="float32")
        tried = try_key(run, model, 1, 5, TEXT)
        close = nearest(run, model, TEXT, limit=10)
        off = ablate(model, TEXT, [(0, 3), (2, 7)], edits=edits)
        layers = by_layer(model, TEXT, edits=edits)
        text_after = keyhole.generate(model, TEXT, edits=edits, length=6, temperature=0.0)
        found.append((tried, close, off, layers, text_after))
    (tried, close, off, layers, after), (tried2, close2, off2, layers2, after2) = found
    np.testing.assert_allclose(tried.coefficients, tried2.coefficients, rtol=1e-3, atol=1e-5)
    for side in ("keys", "values"):
        numbers = [[number for _, number in getattr(each, side)] for each in (close, close2)]
        np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-5)
    effects = [[(each.logit, each.log_p) for each in one.cells] for one in (off, off2)]
    np.testing.assert_allclose(*effects, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layers.effects, layers2.effects, rtol=1e-3, atol=1e-4)
    for side in ("original", "edited"):
        assert [each.token for each in getattr(after, side)] == [each.token for each in getattr(after2, side)]


def lines(folder: Path) -> Path:
    """Documents of a few lines, some of them more than once."""
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "of", "Paris", "dog", "ran", "to", "it"]
    documents = [" ".join(random.choice(words, 12)) for _ in range(60)]
    (folder / "lines.txt").write_text("\n\n".join([*documents, *documents[:5], *documents[:5]]))
    return folder / "lines.txt"


def test_pruning(folder: str, tmp_path: Path) -> None:
    """Sums of the text are the same up to rounding, so are orders of cells where costs differ, and what is lost."""
    found = {}
    for name, place in PLACES.items():
        run = scanned(folder, lines(tmp_path), tmp_path / name, device=place, unit="document")
        keyhole.prune_curve(run, by=["refit", "flap", "duplicates"], shares=[0.25, 0.5], device=place)
        keyhole.prune(run, tmp_path / f"{name}-small", keep=0.5, device=place)
        keyhole.analyze(run, only=["pruning"], device=place)
        found[name] = {(row["method"], row["share"]): row for row in run.table("pruning")}
    assert found["here"].keys() == found["there"].keys()
    for key, row in found["here"].items():
        assert found["there"][key]["basis"] == row["basis"]
        assert found["there"][key]["perplexity_before"] == pytest.approx(row["perplexity_before"], rel=1e-3)
        assert found["there"][key]["perplexity"] == pytest.approx(row["perplexity"], rel=2e-2)
    smaller = keyhole.load(tmp_path / "there-small", device="cpu")
    assert smaller.cells.sizes == tiny("llama").cells.sizes // 2


def test_leaks(folder: str, tmp_path: Path) -> None:
    options = {"prefix": 8, "least_prefix": 2, "length": 4, "localise": 1, "seed": 0}
    found = {}
    for name, place in PLACES.items():
        run = scanned(folder, lines(tmp_path), tmp_path / name, device=place, unit="document")
        known = leaks.of(keyhole.leak(run, device=place, **options))  # type: ignore[arg-type]
        assert known is not None
        found[name] = known
    assert [rate.times for rate in found["here"].rates] == [rate.times for rate in found["there"].rates]
    assert [rate.tokens for rate in found["here"].rates] == [rate.tokens for rate in found["there"].rates]
    for each in found["there"].tested:
        assert 0 <= min(each.exact) <= max(each.exact) <= 1


def test_edits_that_last(folder: str, tmp_path: Path) -> None:
    edits = [Edit(0, 3, 0.0), Edit(1, 5, 0.5, towards="P", by=1.0)]
    text = lines(tmp_path)
    made = [keyhole.edit(folder, edits, tmp_path / name, device=place, check=[text]) for name, place in PLACES.items()]
    here, there = (keyhole.load(tmp_path / name, device="cpu") for name in PLACES)
    assert torch.allclose(here.values(1), there.values(1), rtol=1e-4, atol=1e-6)
    changes = [done.check.found.after.value for done in made if done.check is not None]
    assert changes[0] == pytest.approx(changes[1], rel=1e-3)
