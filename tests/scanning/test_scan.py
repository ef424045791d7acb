"""The scan against its definition, on a random model of every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import CONTEXT, TINY, tiny
from reference import assert_equals_reference, every_prefix

import keyhole
from keyhole.errors import UsageError


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("family", sorted(TINY))
def test_every_family_equals_the_brute_force_reference(family: str, per: str, text: Path, tmp_path: Path) -> None:
    model = tiny(family)
    run = keyhole.scan(
        model,
        [text],
        out=tmp_path / "run",
        top=4,
        unit="line",
        per=per,
        batch_tokens=1,
        context=CONTEXT * 2 if family == "bloom" else CONTEXT,
    )
    texts = lines(text)
    assert_equals_reference(run, model, texts, room=run.context - 1)
    batched = keyhole.scan(
        model, [text], out=tmp_path / "batched", top=4, unit="line", per=per, batch_tokens=700, context=run.context
    )
    np.testing.assert_allclose(batched.coefficients, run.coefficients, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(batched.coefficients_negative, run.coefficients_negative, rtol=1e-3, atol=1e-5)
    assert (batched.units == run.units).mean() > 0.99
    np.testing.assert_allclose(batched.stats.mean, run.stats.mean, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("per", ["sentence", "prefix"])
def test_units_longer_than_the_context_are_split_and_counted(per: str, text: Path, tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = keyhole.scan(model, [text], out=tmp_path / "run", top=30, unit="document", per=per, batch_tokens=1, context=8)
    documents = [block.strip("\n") for block in text.read_text("utf-8").split("\n\n")]
    assert run.manifest["corpus"]["split_units"] == 2
    assert_equals_reference(run, model, documents, room=7)
    trigger = next(t for t in run["L1.0"].triggers if t.position > 7)
    assert len(trigger.tokens) == trigger.position % 7 + 1  # what the model saw starts at its window


@pytest.mark.parametrize("bos", [True, False])
def test_the_start_token_stands_before_every_unit_unless_told(bos: bool, text: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    run = keyhole.scan(model, [text], out=tmp_path / "run", top=3, unit="line", bos=bos, batch_tokens=1)
    assert_equals_reference(run, model, lines(text), bos=bos, room=run.context - bos)


def test_no_start_token_where_the_tokenizer_has_none(text: Path, tmp_path: Path) -> None:
    model = tiny("qwen2", bos=None)
    run = keyhole.scan(model, [text], out=tmp_path / "run", top=3, unit="line", batch_tokens=1)
    assert run.manifest["config"]["n_special"] == 0
    assert_equals_reference(run, model, lines(text), room=run.context)


def test_a_relu_model_keeps_one_side_and_lists_its_dead(text: Path, tmp_path: Path) -> None:
    model = tiny("gpt2", activation_function="relu")

    block = model.blocks[1].mlp.c_fc
    before = block.bias.detach().clone()
    block.bias.data[5] = -1e6
    try:
        run = keyhole.scan(model, [text], out=tmp_path / "run", top=3, unit="line", batch_tokens=1)
        assert_equals_reference(run, model, lines(text), room=run.context - 1)
    finally:
        block.bias.data.copy_(before)
    assert not run.signed
    assert not (run.path / "coefficients_negative.npy").exists()
    assert "L1.5" in run.dead
    assert run["L1.5"].dead
    assert run["L1.5"].triggers == []
    assert run["L0.0"].triggers_negative == []


def test_repeated_text_adds_no_candidate_and_no_forward(text: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    once = keyhole.scan(model, [text], out=tmp_path / "once", top=5, unit="line", batch_tokens=1)
    twice = keyhole.scan(model, [text, text], out=tmp_path / "twice", top=5, unit="line", batch_tokens=1)
    np.testing.assert_array_equal(once.coefficients, twice.coefficients)
    np.testing.assert_array_equal(once.units, twice.units)
    assert twice.manifest["corpus"]["units"] == 2 * once.manifest["corpus"]["units"]
    assert (twice.stats.n == once.stats.n).all()
    for a, b in zip(once["L2.3"].triggers, twice["L2.3"].triggers, strict=True):
        assert b.count == 2 * a.count


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    model = tiny("llama")
    path = tmp_path / "hostile.txt"
    path.write_text("a <s> b\n</s>\n")
    run = keyhole.scan(model, [path], out=tmp_path / "run", unit="line")
    assert run.manifest["corpus"]["tokens"] == len("a <s> b") + len("</s>")
    assert not set(model.tokenizer.all_special_ids) & {int(i) for i in run.unit_tokens(0)}


def test_coefficients_of_a_text() -> None:
    model = tiny("gpt_neo")
    got = model.coefficients("The cat sat")
    assert got.shape == (len("The cat sat"), len(model.cells))
    (prefix,) = [p for p in every_prefix(model, ["The cat sat"]) if p.position == 6]
    np.testing.assert_array_equal(got[6].numpy(), prefix.coefficients)
    with pytest.raises(UsageError, match="no tokens"):
        model.coefficients("")


def test_max_tokens_ends_at_a_unit(text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", unit="line", max_tokens=100)
    sizes = np.cumsum([len(line.encode()) for line in lines(text)])
    assert run.manifest["corpus"]["tokens"] == max(sizes[sizes <= 100])
    assert run.manifest["corpus"]["truncated"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"top": 0}, "top is 0"),
        ({"per": "word"}, "per is 'word'"),
        ({"unit": "page"}, "unit is 'page'"),
        ({"context": 1}, "context is 1"),
        ({"context": 65}, "more than the 64 tokens"),
        ({"shard": "3/2"}, "shard 3/2"),
        ({"shard": "0/2"}, "shard 0/2"),
        ({"shard": "one"}, "not of the form i/n"),
        ({"max_tokens": 3}, "less than the first unit"),
    ],
)
def test_impossible_options_say_so(options: dict[str, object], says: str, text: Path, tmp_path: Path) -> None:
    with pytest.raises(keyhole.KeyholeError, match=says):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **{"unit": "line", **options})  # type: ignore[arg-type]
