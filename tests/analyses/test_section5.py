"""What is measured on held-out prefixes, against the definitions spelled out one prefix at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paper
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import heldout, registry, training
from keyhole.analyses.refinement import without
from keyhole.models.model import Model
from keyhole.store import tables

NAMES = ["composition", "refinement", "part", "veto", "training"]
FAMILIES = {
    "relu": ("gpt2", {"activation_function": "relu"}),
    "gelu": ("gpt2", {}),
    "llama": ("llama", {}),
    "gemma2": ("gemma2", {}),
}


@dataclass
class Made:
    run: keyhole.Run
    model: Model
    prefixes: heldout.Prefixes
    seen: list[paper.Seen]

    def facts(self, name: str) -> dict[str, Any]:
        return tables.read_facts(self.run.path, registry.get(name).schema)

    def top(self, name: str, layer: int) -> list[int]:
        """The top token of r, y or o at every prefix, as the model reads it."""
        return [int(paper.own_logits(self.model, getattr(one, name)[layer]).argmax()) for one in self.seen]


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    family, changes = FAMILIES[request.param]
    model = tiny(family, **changes)
    run = scanned(model, tmp_path_factory.mktemp(request.param))
    keyhole.analyze(run, model=model, only=NAMES, lens="norm", similar=False)
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    return Made(run, model, prefixes, [paper.look(model, ids) for ids in prefixes.ids])


def spoken(made: Made, layer: int, which: str) -> list[set[int]]:
    """The tokens that the cells of a set say at every prefix, through the lens `norm`."""
    model, e = made.model, paper.unembedding(made.model)
    values = [paper.value(model, layer, cell) for cell in range(made.run.cells.size(layer))]
    top, bottom = ([int((sign * paper.folded(model, v) @ e.T).argmax()) for v in values] for sign in (1, -1))
    norms = np.array([float(v.norm()) for v in values])
    found = []
    for one in made.seen:
        m = one.m[layer]
        a = np.abs(m) * norms
        order = np.argsort(-a, kind="stable")
        n90 = next(k for k in range(1, len(a) + 1) if a[order[:k]].sum() >= 0.9 * a.sum())
        cells = {"all": range(len(m)), "active": np.flatnonzero(m), "n90": order[:n90]}[which]
        found.append({bottom[i] if m[i] < 0 else top[i] for i in cells})
    return found


def test_every_reading_of_figure_8_and_its_null(made: Made) -> None:
    model, e = made.model, paper.unembedding(made.model)
    n = len(made.seen)
    rows = {(row["layer"], row["cells"], row["output"]): row for row in made.run.table("composition")}
    assert len(rows) == 6 * made.run.layers
    for layer in range(made.run.layers):
        outputs = {
            name: [int((paper.folded(model, getattr(one, name)[layer]) @ e.T).argmax()) for one in made.seen]
            for name in ("y", "o")
        }
        for which in ("active", "all", "n90"):
            said = spoken(made, layer, which)
            for output, tokens in outputs.items():
                row = rows[layer, which, output]
                zero = [token not in there for token, there in zip(tokens, said, strict=True)]
                assert row["zero_agreement"] == pytest.approx(np.mean(zero))
                dealt = [tokens[q] not in said[p] for p in range(n) for q in range(n) if p != q]
                assert row["dealt"] == pytest.approx(np.mean(dealt))
                assert row["lo"] <= row["zero_agreement"] <= row["hi"]
    zero = [rows[layer, "active", "y"]["zero_agreement"] for layer in range(made.run.layers)]
    facts = made.facts("composition")
    assert facts["zero_pooled"] == pytest.approx(np.mean(zero))
    assert facts["zero_least"] == pytest.approx(min(zero))


def test_refinement(made: Made) -> None:
    final, n = made.top("o", -1), len(made.seen)
    rows = made.run.table("refinement")
    matches = []
    for row in rows:
        layer = row["layer"]
        r = made.top("r", layer)
        match = np.array(r) == np.array(final)
        assert row["residual_match"] == pytest.approx(match.mean())
        assert row["match_dealt"] == pytest.approx(
            np.mean([r[p] == final[q] for p in range(n) for q in range(n) if p != q])
        )
        assert row["current"] == pytest.approx(
            np.mean([a == ids[-1] for a, ids in zip(r, made.prefixes.ids, strict=True)])
        )
        p = [
            float(torch.softmax(paper.own_logits(made.model, one.r[layer]), 0)[t])
            for one, t in zip(made.seen, final, strict=True)
        ]
        assert row["final_prob"] == pytest.approx(np.mean(p), rel=1e-3, abs=1e-7)
        matches.append(match)
    kept = [row["layer"] for row in rows if row["current"] <= 0.5]
    facts = made.facts("refinement")
    assert facts["left_out"] == ", ".join(str(row["layer"]) for row in rows if row["current"] > 0.5)
    assert facts["match_rise"] == pytest.approx(np.mean(matches[kept[-1]]) - np.mean(matches[kept[0]]))
    assert facts["match_early"] == pytest.approx(np.mean(matches[kept[0]]))
    assert facts["stands"] == pytest.approx(np.mean([rows[k]["residual"] + rows[k]["agreement"] for k in kept]))
    changes = sum(rows[k]["ffn"] + rows[k]["composition"] for k in kept)
    assert facts["compromise"] == (
        pytest.approx(sum(rows[k]["composition"] for k in kept) / changes) if changes else None
    )


def test_part(made: Made) -> None:
    model = made.model
    before = [torch.zeros(0)] * len(made.seen)
    sizes, by_ff, by_attention = [], [], []
    for row in made.run.table("part"):
        layer = row["layer"]
        if layer == 0:
            ids = [[model.tokenizer.bos_token_id, *ids] for ids in made.prefixes.ids]
            before = [first_input(model, each) for each in ids]
        else:
            before = [one.o[layer - 1] for one in made.seen]
        size = [
            float(one.y[layer].norm() / (one.y[layer].norm() + (one.r[layer] - came).norm()))
            for one, came in zip(made.seen, before, strict=True)
        ]
        top = [int(paper.own_logits(model, came).argmax()) for came in before]
        r, o = np.array(made.top("r", layer)), np.array(made.top("o", layer))
        assert row["size"] == pytest.approx(np.mean(size), rel=1e-4)
        assert row["ff_changes"] == pytest.approx((o != r).mean())
        assert row["attention_changes"] == pytest.approx((r != np.array(top)).mean())
        both = (o != r).sum() + (r != np.array(top)).sum()
        assert row["decisions"] == (pytest.approx((o != r).sum() / both) if both else None)
        sizes.append(np.mean(size))
        by_ff.append((o != r).sum())
        by_attention.append((r != np.array(top)).sum())
    facts = made.facts("part")
    assert facts["size_rise"] == pytest.approx(sizes[-1] - sizes[0], abs=1e-5)


def first_input(model: Model, ids: list[int]) -> torch.Tensor:
    """What the first block is given for the last token."""
    kept: list[torch.Tensor] = []
    block = paper.named(model, paper.BLOCK)[0]
    take = lambda _, args, kwargs: kept.append((args[0] if args else kwargs["hidden_states"]).detach()[0, -1].clone())  # noqa: E731
    handle = block.register_forward_pre_hook(take, with_kwargs=True)
    with torch.no_grad():
        model.lm(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    return kept[0]


def test_veto(made: Made) -> None:
    model, e = made.model, paper.unembedding(made.model).double()
    (norm,) = paper.named(model, paper.FINAL_NORM)
    layer_norm = isinstance(norm, torch.nn.LayerNorm)
    epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon

    def logits(y: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        """ℓ_y of every token, as the definition has it."""
        gain = 1 + norm.weight.double() if model.config.model_type == "gemma2" else norm.weight.double()
        y, o = y.double(), o.double()
        if layer_norm:
            return (gain * (y - y.mean()) / (o.var(correction=0) + epsilon).sqrt()) @ e.T
        return (gain * y / (o.square().mean() + epsilon).sqrt()) @ e.T

    for row in made.run.table("veto"):
        layer = row["layer"]
        r, o = made.top("r", layer), made.top("o", layer)
        added = [logits(one.y[layer], one.o[layer]) for one in made.seen]
        changed = [i for i in range(len(r)) if r[i] != o[i]]
        assert row["changed"] == len(changed)
        if not changed:
            assert row["share"] is None
            continue
        veto = np.array([float(added[i].mean() - added[i][r[i]]) for i in changed])
        promotion = np.array([float(added[i][o[i]] - added[i].mean()) for i in changed])
        assert row["veto"] == pytest.approx(veto.mean(), rel=1e-3, abs=1e-4)
        assert row["promotion"] == pytest.approx(promotion.mean(), rel=1e-3, abs=1e-4)
        down, up = np.maximum(veto, 0).sum(), np.maximum(promotion, 0).sum()
        assert row["share"] == pytest.approx(down / (down + up), rel=1e-3)
        ranks = [
            1
            + int(
                (
                    paper.own_logits(model, made.seen[i].r[layer])
                    > paper.own_logits(model, made.seen[i].r[layer])[o[i]]
                ).sum()
            )
            for i in changed
        ]
        assert row["rank_median"] == pytest.approx(np.median(ranks))
        assert row["near"] == pytest.approx(np.mean([rank <= 10 for rank in ranks]))
        pairs = [[j for j in range(len(r)) if j != i and r[j] == r[i]] for i in changed]
        assert row["paired"] == sum(map(bool, pairs))
        vetoes, promotions = (
            [
                np.mean([sign * float(added[j][of[i]] - added[j].mean()) for j in js])
                for i, js in zip(changed, pairs, strict=True)
                if js
            ]
            for of, sign in ((r, -1), (o, 1))
        )
        if vetoes:
            assert row["veto_other"] == pytest.approx(np.mean(vetoes), rel=1e-3, abs=1e-4)
            assert row["promotion_other"] == pytest.approx(np.mean(promotions), rel=1e-3, abs=1e-4)
        else:
            assert row["veto_other"] is None


def test_training_counts_cells_by_the_text_of_their_largest_coefficient(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[heldout.Prefixes] = []
    from keyhole.analyses import passing

    real = passing.observe
    monkeypatch.setattr(
        passing, "observe", lambda head, prefixes, *a, **k: (given.append(prefixes), real(head, prefixes, *a, **k))
    )
    for gated in (False, True):
        given.clear()
        run = keyhole.Run(made.run.path)
        run.gated = gated
        keyhole.analyze(run, model=made.model, only=["training"], lens="norm", similar=False)
        held, scanned_text = given
        assert len(scanned_text.ids) == made.facts("training")["compared"] <= len(held.ids)
        units = {
            tuple(run.unit_tokens(int(unit)))[: len(ids)]
            for unit in training.scanned_units(run)
            for ids in scanned_text.ids
        }
        assert all(tuple(ids) in units for ids in scanned_text.ids)
        n = len(held.ids)
        chosen = np.sort(np.random.default_rng(0).permutation(n)[: len(scanned_text.ids)])
        texts = [
            [paper.look(made.model, ids).m for ids in each]
            for each in (scanned_text.ids, [held.ids[i] for i in chosen])
        ]
        for row in run.table("training"):
            size = np.abs if gated else np.asarray
            a, b = (np.max([size(m[row["layer"]]) for m in text], 0) for text in texts)
            near = np.isclose(a, b, rtol=1e-5, atol=1e-7)  # the same prefix in another batch differs in the last bits
            wins = np.where(near, 0.5, a > b).mean()
            assert row["share"] == pytest.approx(wins, abs=0.5 * near.mean() + 1e-9)
            assert row["lo"] <= row["share"] <= row["hi"]


# Layer 0 of tied embeddings


def test_a_residual_that_says_the_current_token_is_named_and_left_out(tmp_path: Path) -> None:
    tiny.cache_clear()
    model = tiny("gpt2", activation_function="relu")
    e = model.lm.transformer.wte.weight
    with torch.no_grad():
        e.copy_(torch.nn.functional.normalize(e, dim=1) * 10)  # tied: the embedding of a token says the token
        model.lm.transformer.wpe.weight.mul_(1e-3)
        model.blocks[0].attn.c_proj.weight.mul_(1e-3)
        model.blocks[0].attn.c_proj.bias.mul_(1e-3)
        model.lm.transformer.ln_f.weight.fill_(1)
        model.lm.transformer.ln_f.bias.fill_(0)
        for part in (model.blocks[0].mlp.c_proj.weight, model.blocks[0].mlp.c_proj.bias):
            part.mul_(30)
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["refinement", "part", "veto"], lens="norm", similar=False)
    tiny.cache_clear()
    first, *others = run.table("refinement")
    assert first["current"] > 0.95
    assert all(row["current"] < 0.5 for row in others)
    for name in ("refinement", "part", "veto"):
        facts = tables.read_facts(run.path, registry.get(name).schema)
        assert facts["left_out"] == "0"
        assert "without layer 0, whose residual mostly says the current token" in without(facts)
    facts = tables.read_facts(run.path, registry.get("refinement").schema)
    assert facts["match_early"] == pytest.approx(others[0]["residual_match"])
