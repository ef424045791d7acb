"""What the paper's public code gets wrong, or leaves unclear: a test for each, by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paper
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import heldout
from keyhole.models.model import Model
from keyhole.store.values import Values


def lines(path: Path, *text: str) -> Path:
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def main_reading(run: keyhole.Run) -> list[dict[str, Any]]:
    """The rows of Figure 8 that are the paper's text: active cells against y."""
    return [row for row in run.table("composition") if (row["cells"], row["output"]) == ("active", "y")]


def point_at(model: Model, layer: int, cell: int, token: int) -> None:
    """Make a cell's value say a token, loudly."""
    model.values(layer).data[cell] = 50 * paper.unembedding(model)[token]


@pytest.fixture
def relu() -> Model:
    """A ReLU model of its own, to change."""
    tiny.cache_clear()
    model = tiny("gpt2", activation_function="relu")
    yield model
    tiny.cache_clear()


def test_trap_1_agreement_takes_the_next_token_and_names_the_last(tmp_path: Path, relu: Model) -> None:
    text = lines(tmp_path / "text.txt", "abcdefg", "hijklmn", "opqrstu")
    scout = keyhole.scan(relu, [text], out=tmp_path / "scout", unit="line", top=1)
    fires = [cell for cell in range(relu.cells.size(0)) if (t := scout.triggers(2, cell)) and t[0].next_id is not None]
    for says_next in fires[:3]:
        point_at(relu, 2, says_next, scout.triggers(2, says_next)[0].next_id)
    says_last = fires[3]
    point_at(relu, 2, says_last, scout.triggers(2, says_last)[0].ids[-1])
    run = keyhole.scan(
        relu, [text], out=tmp_path / "run", unit="line", top=1
    )  # layer 2 is the last: its keys see no change
    keyhole.analyze(run, model=relu, only=["agreement"], lens="raw")
    rows = {(row["layer"], row["target"]): row for row in run.table("agreement")}
    top = Values(run, "raw").top_tokens[run.cells.span(2), 0]
    assert rows[2, "next"]["rate"] > rows[2, "last"]["rate"] > 0
    for target in ("next", "last"):
        hits = 0
        for cell in range(run.cells.size(1)):
            for trigger in run.triggers(2, cell):
                wanted = trigger.next_id if target == "next" else trigger.ids[-1]
                hits += wanted is not None and int(top[cell]) == wanted
        assert hits >= (3 if target == "next" else 1)
        assert round(rows[2, target]["rate"] * rows[2, target]["n"]) == hits


def test_trap_2_a_key_that_never_fires_has_no_triggers_and_is_not_counted(tmp_path: Path, relu: Model) -> None:
    relu.blocks[1].mlp.c_fc.bias.data[5] = -1e6
    run = keyhole.scan(relu, [lines(tmp_path / "text.txt", "abc", "def")], out=tmp_path / "run", unit="line", top=9)
    assert run["L1.5"].triggers == []
    fewer = [len(run.triggers(1, cell)) for cell in range(run.cells.size(1))]
    assert max(fewer) <= 2  # two sentences, hence at most two triggers of nine
    keyhole.analyze(run, model=relu, only=["agreement", "rank"])
    known = [t for cell in range(run.cells.size(1)) for t in run.triggers(1, cell)[:1] if t.next_id is not None]
    (row,) = [row for row in run.table("agreement") if (row["layer"], row["target"]) == (1, "next")]
    assert row["n"] == len(known) < run.cells.size(1)
    assert run.table("rank")[1]["n"] == len(known)


def test_trap_3_composition_reads_y_alone_and_active_cells_only(tmp_path: Path, relu: Model) -> None:
    relu.blocks[2].mlp.c_fc.bias.data[5] = -1e6  # a key that never fires …
    scout = scanned(relu, tmp_path)
    prefixes = heldout.prefixes(scout, relu, None, samples=4000, seed=0)
    seen = [paper.look(relu, ids) for ids in prefixes.ids]
    e = paper.unembedding(relu)
    active = [{int((v @ e.T).argmax()) for v in _written(relu, 2, one)} for one in seen]
    said = [int((one.y[2] @ e.T).argmax()) for one in seen]
    alone = next(token for token, others in zip(said, active, strict=True) if token not in others)
    point_at(relu, 2, 5, alone)  # … and whose value says what its layer says
    run = scanned(relu, tmp_path, force=True)
    assert heldout.prefixes(run, relu, None, samples=4000, seed=0) == prefixes
    keyhole.analyze(run, model=relu, only=["composition"], lens="raw")
    differs_from_o, differs_with_inactive = False, False
    for layer, row in enumerate(main_reading(run)):
        top = [int((paper.value(relu, layer, cell) @ e.T).argmax()) for cell in range(relu.cells.size(0))]
        active = [{t for t, m in zip(top, one.m[layer], strict=True) if m > 0} for one in seen]
        of_y = [int((one.y[layer] @ e.T).argmax()) for one in seen]
        of_o = [int((one.o[layer] @ e.T).argmax()) for one in seen]
        right = np.mean([y not in said for y, said in zip(of_y, active, strict=True)])
        assert row["zero_agreement"] == pytest.approx(right)
        with_o = np.mean([o not in said for o, said in zip(of_o, active, strict=True)])
        every = [np.mean([token not in set(top) for token in of]) for of in (of_y, of_o)]
        named = {
            (each["cells"], each["output"]): each["zero_agreement"]
            for each in run.table("composition")
            if each["layer"] == layer
        }
        assert named["active", "o"] == pytest.approx(with_o)
        assert [named["all", output] for output in ("y", "o")] == pytest.approx(every)
        differs_from_o |= right != with_o
        differs_with_inactive |= right != every[0]
    assert differs_from_o
    assert differs_with_inactive


def _written(model: Model, layer: int, seen: paper.Seen) -> list[torch.Tensor]:
    return [paper.value(model, layer, cell) for cell, m in enumerate(seen.m[layer]) if m > 0]


def test_trap_4_every_layer_has_its_statistics(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, cells=3)
    for name in ("activity", "mutation", "agreement", "rank", "composition", "refinement"):
        assert {row["layer"] for row in run.table(name)} == set(range(model.layers)), name
    assert Values(run, "norm").max_prob.shape == (len(model.cells),)


def test_trap_5_special_tokens_are_no_candidates_and_the_whole_sentence_is(tmp_path: Path) -> None:
    model = tiny("llama")
    run = keyhole.scan(
        model, [lines(tmp_path / "text.txt", "abc", "de")], out=tmp_path / "run", unit="line", top=9, per="prefix"
    )
    assert run.stats.n[0] == 5  # a, ab, abc, d, de: nothing before the first token
    prefixes = {t.prefix for cell in range(run.cells.size(1)) for t in run.triggers(0, cell)}
    assert prefixes == {"a", "ab", "abc", "d", "de"}
    whole = [t for cell in range(run.cells.size(1)) for t in run.triggers(0, cell) if t.prefix in ("abc", "de")]
    assert whole
    assert all(t.next_id is None for t in whole)


def test_trap_6_one_prefix_a_sentence_or_every_prefix(tmp_path: Path) -> None:
    model = tiny("llama")
    text = lines(tmp_path / "text.txt", "abcdefgh", "ijklmnop")
    best = keyhole.scan(model, [text], out=tmp_path / "best", unit="line", top=9)
    every = keyhole.scan(model, [text], out=tmp_path / "every", unit="line", top=9, per="prefix")
    assert best.manifest["config"]["per"] == "sentence"  # the default
    for cell in range(best.cells.size(0)):
        units = [t.unit for t in best.triggers(1, cell)]
        assert len(units) == len(set(units)) <= 2
    assert any(len(every.triggers(1, cell)) > 2 for cell in range(every.cells.size(0)))


def test_trap_7_a_shared_beginning_is_one_candidate(tmp_path: Path) -> None:
    model = tiny("llama")
    text = lines(tmp_path / "text.txt", *(f"The behavior{i}" for i in range(9)))
    run = keyhole.scan(model, [text], out=tmp_path / "run", unit="line", top=9, per="prefix")
    for cell in range(run.cells.size(1)):
        prefixes = [t.prefix for t in run.triggers(1, cell)]
        assert len(prefixes) == len(set(prefixes))
    shared = [t for cell in range(run.cells.size(1)) for t in run.triggers(1, cell) if t.prefix == "The"]
    assert all((t.unit, t.count) == (0, 9) for t in shared)
    assert shared


def test_trap_8_a_negative_coefficient_reads_the_value_with_a_minus(tmp_path: Path) -> None:
    model = tiny("gpt_neo")
    run = scanned(model, tmp_path)
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    seen = [paper.look(model, ids) for ids in prefixes.ids]
    e = paper.unembedding(model)
    keyhole.analyze(run, model=model, only=["composition"], lens="raw")
    unsigned_differs = False
    for layer, row in enumerate(main_reading(run)):
        values = torch.stack([paper.value(model, layer, cell) for cell in range(model.cells.size(0))])
        zero, unsigned = [], []
        for one in seen:
            said = int((one.y[layer] @ e.T).argmax())
            written = [
                int((float(np.sign(m)) * v @ e.T).argmax()) for m, v in zip(one.m[layer], values, strict=True) if m
            ]
            zero.append(said not in written)
            unsigned.append(said not in [int((v @ e.T).argmax()) for v in values])
        assert row["zero_agreement"] == pytest.approx(np.mean(zero))
        unsigned_differs |= np.mean(zero) != np.mean(unsigned)
    assert unsigned_differs
    assert any(run.triggers(1, cell, negative=True) for cell in range(run.cells.size(1)))
