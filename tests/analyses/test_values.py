"""What values say about their keys: agreement, rank, confidence and the surest values, each against its definition."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import paper
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import agreement, confidence, confident, rank, registry, targets
from keyhole.analyses.record import Facts
from keyhole.analyses.strength import SAMPLED, _draw, at_triggers
from keyhole.lens.head import Head
from keyhole.models.model import Model
from keyhole.store import tables
from keyhole.store.values import Values, available

KINDS = [("gpt2", {"activation_function": "relu"}), ("gpt2", {}), ("llama", {})]
ASKED = ["agreement", "rank", "confidence", "confident"]


@pytest.fixture(scope="module", params=KINDS, ids=["relu", "gelu", "swiglu"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, Model]:
    family, options = request.param
    model = tiny(family, **options)
    run = scanned(model, tmp_path_factory.mktemp("values"))
    return keyhole.analyze(run, model=model, only=ASKED, lens=["raw", "norm"]), model


def facts_of(run: keyhole.Run, name: str) -> Facts:
    return tables.read_facts(run.path, registry.get(name).schema)


def looked_up(run: keyhole.Run, layer: int) -> list[tuple[int, int, int]]:
    """(cell, next token, last token) of the top-1 triggers of a layer that are followed by something."""
    return [
        (cell, first.next_id, first.ids[-1])
        for cell in range(run.cells.size(layer))
        for first in run.triggers(layer, cell)[:1]
        if first.next_id is not None
    ]


# Agreement


def test_the_nulls_are_what_they_say(measured: tuple[keyhole.Run, Model]) -> None:
    run, _ = measured
    held = set(targets.held_out_units(run).tolist())
    text = [t for unit in range(run.manifest["corpus"]["units"]) if unit not in held for t in run.unit_tokens(unit)]
    frequency = Counter(int(token) for token in text)
    for row in (row for row in run.table("agreement") if row["target"] == "next"):
        top = Values(run, row["lens"]).top_tokens[run.cells.span(row["layer"]), 0]
        found = looked_up(run, row["layer"])
        says = [int(top[cell]) for cell, _, _ in found]
        assert row["n"] == len(found)
        assert row["permuted"] == pytest.approx(np.mean([a == b for a in says for _, b, _ in found]))
        under = []
        for _, wanted, last in found:
            group = [a for a, (_, _, other) in zip(says, found, strict=True) if other == last]
            under.append(np.mean([a == wanted for a in group]))
        assert row["same_last"] == pytest.approx(np.mean(under))
        assert row["unigram"] == pytest.approx(np.mean([frequency[b] / len(text) for _, b, _ in found]))


def test_the_effects_pool_cells_and_not_layers(measured: tuple[keyhole.Run, Model]) -> None:
    run, _ = measured
    rows = [row for row in run.table("agreement") if (row["target"], row["lens"]) == ("next", "norm")]
    facts = facts_of(run, "agreement")
    assert facts["lens"] == "norm"

    def pooled(null: str, layers: range) -> float:
        some = [row for row in rows if row["layer"] in layers]
        return float(np.average([row["rate"] - row[null] for row in some], weights=[row["n"] for row in some]))

    assert run.layers == 3
    assert facts["above_chance"] == pytest.approx(pooled("permuted", range(2, 3)))
    assert facts["beyond_bigram"] == pytest.approx(pooled("same_last", range(2, 3)))
    assert facts["lower_part"] == pytest.approx(pooled("permuted", range(1)))
    assert facts["rise"] == pytest.approx(pooled("permuted", range(1, 3)) - pooled("permuted", range(1)))
    for name in ("above_chance", "beyond_bigram", "lower_part", "rise"):
        assert facts[f"{name}_lo"] <= facts[name] <= facts[f"{name}_hi"]
    lasts = Counter(last for _, _, last in looked_up(run, 2))
    assert facts["alone"] == pytest.approx(sum(count == 1 for count in lasts.values()) / lasts.total())


def test_next_tokens_are_split_by_whether_they_start_a_word(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["agreement"])
    rows = {(row["target"], row["layer"]): row for row in run.table("agreement")}
    for layer in range(run.layers):
        counts: Counter[str] = Counter()
        for _, following, last in looked_up(run, layer):
            before, after = run.vocabulary.piece(last), run.vocabulary.piece(following)
            if not after.strip()[:1].isalnum():
                counts["neither"] += 1
            elif after[:1] == " " or not before[-1:].isalnum():
                counts["word start"] += 1
            else:
                counts["inside a word"] += 1
        assert {name: rows[name, layer]["n"] for name in agreement.PARTS} == {
            name: counts[name] for name in agreement.PARTS
        }
        assert rows["next", layer]["n"] == sum(counts.values())


@pytest.mark.parametrize(
    ("last", "following", "expected"),
    [
        (b"the", b" cat", targets.WORD_START),
        (b" un", b"happy", targets.INSIDE_WORD),
        (b"(", b"The", targets.WORD_START),
        (b"\n", b"The", targets.WORD_START),
        (b"the", b",", targets.NEITHER),
        (b"the", b" (", targets.NEITHER),
        (b"caf", b"\xc3\xa9", targets.INSIDE_WORD),
        (b"caf", b"\xc3", targets.INSIDE_WORD),  # half of a letter
        (b"caf", "—".encode(), targets.NEITHER),
        (b"19", b"84", targets.INSIDE_WORD),
    ],
)
def test_word_parts(last: bytes, following: bytes, expected: int) -> None:
    class Two:
        def raw(self, token: int) -> bytes:
            return (last, following)[token]

    assert targets.word_parts(Two(), np.array([0]), np.array([1])).tolist() == [expected]  # type: ignore[arg-type]


# Rank


def test_auc_is_that_of_the_definition(measured: tuple[keyhole.Run, Model]) -> None:
    run, model = measured
    e = paper.unembedding(model)
    every: dict[str, list[np.ndarray]] = {}
    for row in run.table("rank"):
        found = looked_up(run, row["layer"])
        own = []
        for cell, wanted, _ in found:
            v = paper.value(model, row["layer"], cell) * run.cell(row["layer"], cell).orientation
            z = ((paper.folded(model, v) if row["lens"] == "norm" else v) @ e.T).numpy()
            others = [token for other, token, _ in found if other != cell]
            own.append(np.mean([1.0 if z[wanted] > z[t] else 0.5 if wanted == t else 0.0 for t in others]))
        assert row["auc"] == pytest.approx(np.mean(own), abs=1e-3)  # near-ties may fall either way
        assert row["lo"] <= row["auc"] <= row["hi"]
        every.setdefault(row["lens"], []).append(np.array(own))
    facts = facts_of(run, "rank")
    assert facts["auc_upper"] == pytest.approx(every["norm"][2].mean() - 0.5, abs=1e-3)
    assert facts["auc_rise"] == pytest.approx(every["norm"][2].mean() - every["norm"][0].mean(), abs=2e-3)


def test_dealt_out_tokens_have_an_auc_of_one_half() -> None:
    """Exactly, over all deals: whatever the values like, and however often a token occurs."""
    random = np.random.default_rng(1)
    vectors, weight = torch.tensor(random.normal(size=(5, 6))), torch.tensor(random.normal(size=(4, 6)))
    vectors[:, 0] += 5  # they all like the same tokens
    tokens = torch.tensor([0, 0, 1, 2, 3])
    found = [
        rank.beaten(vectors.float(), weight.float(), tokens[list(order)]).mean()
        for order in itertools.permutations(range(5))
    ]
    assert float(torch.stack(found).mean()) == pytest.approx(0.5)
    assert float(torch.stack(found).std()) > 0.01


def test_tokens_at_random_do_not_beat_each_other() -> None:
    holds = rises = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        weight = torch.tensor(random.normal(size=(30, 8)), dtype=torch.float32)
        by_layer = []
        for _ in range(6):
            vectors = torch.tensor(random.normal(size=(40, 8)) + random.normal(size=8), dtype=torch.float32)
            by_layer.append(rank.beaten(vectors, weight, torch.tensor(random.integers(0, 30, 40))).numpy())
        facts = rank.effects(by_layer)
        holds += facts["auc_upper_lo"] > 0  # even without a smallest effect
        rises += facts["auc_rise_lo"] > 0
    assert holds <= 0.05 * 200
    assert rises <= 0.05 * 200


def test_a_planted_token_beats_all_others() -> None:
    weight = torch.eye(12)
    tokens = torch.arange(12)
    assert rank.beaten(weight, weight, tokens).tolist() == [1.0] * 12
    assert rank.beaten(-weight, weight, tokens).tolist() == [0.0] * 12
    assert rank.beaten(weight, weight, torch.zeros(12, dtype=torch.int64)).tolist() == [0.5] * 12


# How sure a value is


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2"])
def test_the_strength_is_that_of_the_model_itself(family: str, tmp_path: Path) -> None:
    """A cell's part of the logits: what the last norm's input loses without m·v, everything else as it is."""
    model = tiny(family)
    run = scanned(model, tmp_path)
    strong, final = at_triggers(run, Head(model))
    chosen = _draw(run)
    assert len(chosen) == min(SAMPLED, int((run.units[:, 0] >= 0).sum()))
    (norm,) = paper.named(model, paper.FINAL_NORM)
    eps = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
    sizes, between = [], [[] for _ in range(run.layers)]
    for place in chosen.tolist():
        layer, cell = run.cells.split(place)
        seen = paper.look(model, run.triggers(layer, cell)[0].ids)
        last = seen.o[-1] - seen.o[-1].mean() if isinstance(norm, torch.nn.LayerNorm) else seen.o[-1]
        sizes.append(float((last.square().mean() + eps).sqrt()))
        for each, down in enumerate(paper.named(model, paper.DOWN)):
            with torch.no_grad():
                u = down(torch.from_numpy(seen.m[each])[None])[0]
            between[each].append(float(u.square().mean().sqrt()))
    assert final == pytest.approx(sorted(sizes)[(len(sizes) - 1) // 2], rel=1e-3)
    for place in range(0, len(run.cells), 7):
        layer, cell = run.cells.split(place)
        triggers = run.triggers(layer, cell)
        expected = triggers[0].coefficient / final if triggers else np.nan
        if family in ("gemma2", "olmo2"):
            expected /= sorted(between[layer])[(len(chosen) - 1) // 2]
        assert strong[place] == pytest.approx(expected, rel=2e-3, nan_ok=True)


def test_a_value_at_its_strength_is_a_part_of_the_models_own_logits(tmp_path: Path) -> None:
    """Where σ is that of the prefix, strength · norm lens is what the cell adds to the logits."""
    model = tiny("llama")
    run = scanned(model, tmp_path)
    head = Head(model)
    trigger = next(t for t in run.triggers(1, 3))
    seen = paper.look(model, trigger.ids)
    with torch.no_grad():
        sigma = float(seen.o[-1].norm() / (head.exact_norm(seen.o[-1]) / head.norm.gain).norm())
        whole = paper.own_logits(model, seen.o[-1])
        part = trigger.coefficient / sigma * (head.see("norm", head.values(1)[3]) @ head.weight.T)
        rest = head.see("norm", seen.o[-1] - trigger.coefficient * head.values(1)[3]) @ head.weight.T / sigma
    torch.testing.assert_close(part + rest, whole, rtol=1e-3, atol=1e-4)


def test_confidence_compares_halves_of_each_layer(measured: tuple[keyhole.Run, Model]) -> None:
    run, _ = measured
    said, rows = Values(run, "norm"), run.table("confidence")
    bins = [row for row in rows if row["part"] == "bin"]
    known = [row for row in run.table("agreement") if (row["target"], row["lens"]) == ("next", "norm")]
    assert sum(row["n"] for row in bins) == sum(row["n"] for row in known)
    assert sum(row["rate"] * row["n"] for row in bins) == pytest.approx(sum(row["rate"] * row["n"] for row in known))
    assert max(row["n"] for row in bins) - min(row["n"] for row in bins) <= 1
    assert all(a["max_prob_hi"] <= b["max_prob_lo"] for a, b in itertools.pairwise(bins))
    pooled = {}
    for half in (confidence.SURER, confidence.LESS_SURE):
        hits, chance, total = 0.0, 0.0, 0
        for layer in range(run.layers):
            found = sorted((float(said.max_prob[run.cells.place(layer, c)]), c, t) for c, t, _ in looked_up(run, layer))
            middle = (len(found) + 1) // 2
            mine = found[middle:] if half == confidence.SURER else found[:middle]
            says = [int(said.top_tokens[run.cells.place(layer, c), 0]) for _, c, _ in mine]
            right = [a == t for a, (_, _, t) in zip(says, mine, strict=True)]
            permuted = np.mean([a == t for a in says for _, _, t in mine])
            (row,) = [row for row in rows if (row["part"], row["layer"]) == (half, layer)]
            assert (row["n"], row["rate"], row["permuted"]) == (
                len(mine),
                pytest.approx(np.mean(right)),
                pytest.approx(permuted),
            )
            hits, chance, total = hits + sum(right), chance + permuted * len(mine), total + len(mine)
        pooled[half] = (hits - chance) / total
    facts = facts_of(run, "confidence")
    expected = pooled[confidence.SURER] - pooled[confidence.LESS_SURE]
    assert facts["surer_minus_less"] == pytest.approx(expected, abs=1e-9)
    assert facts["surer_minus_less_lo"] <= facts["surer_minus_less"] <= facts["surer_minus_less_hi"]


def test_surer_upper_layers_are_not_credited() -> None:
    """Surer layers agree more, but within a layer sureness says nothing: the halves do not differ."""
    random = np.random.default_rng(9)
    layer = np.repeat(np.arange(12), 500)
    sure = layer + random.random(len(layer))
    hit = random.random(len(layer)) < layer / 40
    upper = confidence.surer_half(layer, sure)
    assert [int(upper[layer == each].sum()) for each in range(12)] == [250] * 12
    assert abs(hit[upper].mean() - hit[~upper].mean()) < 0.02
    assert hit[sure > 6].mean() - hit[sure < 6].mean() > 0.1


def test_confident_lists_the_surest_and_deals_them_out(measured: tuple[keyhole.Run, Model]) -> None:
    run, _ = measured
    said, surest = Values(run, "norm"), run.table("confident")
    every = np.sort(said.max_prob[~np.isnan(said.max_prob)])[::-1]
    np.testing.assert_allclose([row["max_prob"] for row in surest], every[: confident.COUNT])
    follow = []
    for row in surest:
        following = [t.next_token for t in run.triggers(row["layer"], row["cell"]) if t.next_token is not None]
        follow.append(set(following))
        share = following.count(row["token"]) / len(following) if following else None
        assert row["share"] == (None if share is None else pytest.approx(share))
        assert (row["lo"] is None) == (share is None)
    tokens = [row["token"] for row in surest]
    agree = np.array([[token in tokens_after for token in tokens] for tokens_after in follow])
    assert [row["permuted"] for row in surest] == pytest.approx(agree.mean(1).tolist())
    facts = facts_of(run, "confident")
    assert facts["agree"] == pytest.approx(np.diagonal(agree).mean())
    assert facts["agree_excess"] == pytest.approx(np.diagonal(agree).mean() - agree.mean())
    assert facts["agree_excess_lo"] <= facts["agree_excess"] <= facts["agree_excess_hi"]


def test_norm_is_the_main_lens_whatever_the_order(measured: tuple[keyhole.Run, Model]) -> None:
    run, _ = measured
    assert available(run) == ["norm", "raw"]
    assert {facts_of(run, name)["lens"] for name in ASKED} == {"norm"}
