"""The paper's trends on a real ReLU model of sixteen layers, over the text it was trained on."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from shared import SHARED

import keyhole

pytestmark = pytest.mark.slow(seconds=10)

SENTENCES = 400


@pytest.fixture(scope="module")
def run(wiki16: Path, tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("wiki16")
    for name, lines in (("train", SENTENCES), ("valid", 150)):
        source = SHARED / "corpus" / f"enwik8-{name}.txt.xz"
        if not source.exists():
            pytest.skip("the shared corpus is not on this machine")
        with lzma.open(source, "rt", encoding="utf-8") as file:
            prose = (line for line in file if 60 < len(line) < 300 and not line.startswith("="))
            (folder / f"{name}.txt").write_text("".join(line for line, _ in zip(prose, range(lines), strict=False)))
    model = keyhole.load(str(wiki16), device="cpu")
    run = keyhole.scan(model, [folder / "train.txt"], out=folder / "run", unit="line", top=10, max_tokens=4_000)
    asked = ["mutation", "refinement", "confident", "composition", "budget"]
    return keyhole.analyze(run, only=asked, model=model, valid=folder / "valid.txt", cells=4, samples=80, similar=False)


def test_dropping_the_last_token_costs_most(run: keyhole.Run) -> None:
    rows = run.table("mutation")
    change = {
        name: np.average(
            [r["mean_change"] for r in rows if r["dropped"] == name],
            weights=[r["n"] for r in rows if r["dropped"] == name],
        )
        for name in ("first", "last", "random")
    }
    assert change["last"] < change["random"] < 0
    assert change["last"] < change["first"]


def test_the_last_layers_residuals_hold_most_predictions(run: keyhole.Run) -> None:
    match = [row["residual_match"] for row in run.table("refinement")]
    assert match[-1] > 0.5
    assert np.mean(match[-3:]) > np.mean(match[:3]) + 0.3
    probability = [row["final_prob_median"] for row in run.table("refinement")]
    assert probability[-1] > probability[0]
    for row in run.table("refinement"):
        assert row["residual"] + row["ffn"] + row["agreement"] + row["composition"] == pytest.approx(1)


def test_the_most_confident_values_sit_in_the_upper_layers(run: keyhole.Run) -> None:
    layers = [row["layer"] for row in run.table("confident")]
    assert np.mean([layer >= 8 for layer in layers]) > 0.5


def test_no_single_cell_says_what_its_layer_says(run: keyhole.Run) -> None:
    main = [row for row in run.table("composition") if (row["cells"], row["output"]) == ("active", "y")]
    assert np.mean([row["zero_agreement"] for row in main]) > 0.5
    assert all(0 < row["active_fraction"] < 0.6 for row in run.table("budget"))
