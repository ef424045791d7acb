"""A model that is cut computes what it computes with the same cells masked, in every architecture, and loads with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from families import CELLS, TINY, tiny
from transformers import AutoModelForCausalLM

import keyhole
from keyhole.errors import ModelError, UsageError
from keyhole.models.families import FAMILIES
from keyhole.models.model import Model
from keyhole.models.resize import can_have_bias
from keyhole.models.save import save
from keyhole.models.taps import Taps, tapped
from keyhole.uses.pruning import calibrate, cuts, measure
from keyhole.uses.pruning.methods import METHODS
from keyhole.uses.texts import Window


def windows(count: int = 12, length: int = 20) -> list[Window]:
    random = torch.Generator().manual_seed(2)
    return [
        Window(torch.randint(3, 250, (length + number % 3,), generator=random).tolist(), number)
        for number in range(count)
    ]


def logits(lm: object) -> torch.Tensor:
    ids = torch.randint(3, 250, (2, 15), generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        found: torch.Tensor = lm(input_ids=ids).logits  # type: ignore[operator]
    return found


def zeroed(model: Model, gone: list[list[int]]) -> torch.Tensor:
    """The logits if these coefficients are 0, by hooks that know nothing of weights."""

    def without(cells: list[int]):  # type: ignore[no-untyped-def]
        def replace(x: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
            x = x.clone()
            x[..., cells] = 0
            return x

        return replace

    with tapped(model, Taps(replace={site: without(cells) for site, cells in enumerate(gone)})):
        return logits(model.lm)


@pytest.mark.parametrize("family", sorted(TINY))
def test_cut_is_masked_and_transformers_loads_it(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    assert set(TINY) == set(FAMILIES)
    before = logits(model.lm)
    plan = measure.plans(model, ["wanda", "refit"], [0.25], windows(), whole=FAMILIES[family].width is None)
    for name, each in plan.items():
        own = each.cuts[0.25]
        gone = [sorted(set(range(model.sites[layer].width)) - set(cut.stay.tolist())) for layer, cut in enumerate(own)]
        assert sum(map(len, gone)) == round(0.25 * len(model.cells))
        with cuts.masked(model, own):
            masked = logits(model.lm)
        assert torch.equal(logits(model.lm), before)  # as it was
        if name == "wanda":  # nothing is refitted, so masking is all there is
            assert torch.allclose(masked, zeroed(model, gone), atol=1e-5)
        smaller = cuts.cut(model, own)
        assert torch.allclose(logits(smaller.lm), masked, atol=1e-4, rtol=1e-4)
        saved = save(smaller, tmp_path / name, {"made": "prune", "fingerprint": model.weights_fingerprint})
        again = keyhole.load(saved.folder)
        assert again.cells.sizes == smaller.cells.sizes
        assert torch.allclose(logits(again.lm), masked, atol=1e-4, rtol=1e-4)
        if FAMILIES[family].width is not None:
            plain = AutoModelForCausalLM.from_pretrained(saved.folder)
            assert torch.allclose(logits(plain), masked, atol=1e-4, rtol=1e-4)
            assert again.cells.sizes == CELLS - round(0.25 * CELLS)
    assert torch.equal(logits(model.lm), before)


@pytest.mark.parametrize("family", sorted(TINY))
def test_layers_of_different_widths_are_kept_and_loaded(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    widths = [20, 5, 24][: model.layers]
    own = [cuts.Cut(torch.arange(width)) for width in widths]
    with cuts.masked(model, own):
        masked = logits(model.lm)
    smaller = cuts.cut(model, own)
    assert smaller.cells.sizes == widths
    saved = save(smaller, tmp_path / "m", {"made": "prune", "fingerprint": model.weights_fingerprint})
    again = keyhole.load(saved.folder)
    assert again.cells.sizes == widths
    assert torch.allclose(logits(again.lm), masked, atol=1e-4, rtol=1e-4)
    with pytest.raises(Exception, match="size"):  # never read as something that it is not
        AutoModelForCausalLM.from_pretrained(saved.folder)
    config = json.loads((saved.folder / "config.json").read_text())
    (saved.folder / "config.json").write_text(json.dumps({**config, "keyhole_widths": [20, "5", 24]}))
    # cut again to one width, it is an ordinary checkpoint again, if the architecture has a setting for it
    last = cuts.cut(again, [cuts.Cut(torch.arange(5))] * len(widths))
    same = save(last, tmp_path / "same", {"made": "prune", "fingerprint": model.weights_fingerprint})
    assert keyhole.load(same.folder).cells.sizes == 5
    if FAMILIES[family].width is not None:
        plain = AutoModelForCausalLM.from_pretrained(same.folder)
        assert torch.allclose(logits(plain), logits(last.lm), atol=1e-4, rtol=1e-4)
    with pytest.raises(keyhole.errors.ModelError, match="keyhole_widths"):
        keyhole.load(saved.folder)


def test_a_model_without_the_setting_is_refused_unless_layers_may_differ() -> None:
    model = tiny("bloom")
    from keyhole.models.resize import width_setting

    with pytest.raises(UsageError, match="--global"):
        width_setting(model.config, model.family)


def test_biases_are_made_where_the_architecture_has_a_setting() -> None:
    llama, mistral = tiny("llama"), tiny("mistral")
    assert can_have_bias(llama.sites[0], llama.config, llama.family)
    assert llama.sites[0].bias is None
    assert not can_have_bias(mistral.sites[0], mistral.config, mistral.family)
    for model, there in ((llama, True), (mistral, False)):
        own = measure.plans(model, ["flap"], [0.5], windows())["flap"].cuts[0.5]
        assert all((cut.bias is not None) is there for cut in own)


def test_refitting_keeps_the_output_of_a_layer_better_than_flap_does() -> None:
    """On the text it was fitted to, the layer's own output: what least squares promises."""
    model, text = tiny("gpt2"), windows(40)
    plan = measure.plans(model, ["refit", "flap"], [0.5], text)
    batch = model.batch([window.ids[:20] for window in text])

    def outputs(layer: int) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        watch = lambda site, y, tokens: kept.append(y.clone()) if site == layer else None  # noqa: E731
        with tapped(model, Taps(projected=watch), tuple(batch.ids.shape)):
            model.forward(batch.ids)
        return kept[0]

    first = outputs(0)  # the input of the first layer is the same whatever is cut
    error = {}
    for name, each in plan.items():
        with cuts.masked(model, each.cuts[0.5]):
            error[name] = float((outputs(0) - first).square().mean())
    assert error["refit"] < 0.8 * error["flap"]


def test_exact_copies_cost_nothing() -> None:
    """A cell that is there twice with half of its value each is the same model; taking one of the two away loses nothing."""
    model = tiny("gpt2")
    doubled = tiny("gpt2", cells=48, n_inner=48)
    state = model.lm.state_dict()
    wide = {}
    for name, weight in doubled.lm.state_dict().items():
        narrow = state[name]
        if weight.shape == narrow.shape:
            wide[name] = narrow
        elif name.endswith("c_fc.weight"):
            wide[name] = torch.cat([narrow, narrow], 1)
        elif name.endswith("c_fc.bias"):
            wide[name] = torch.cat([narrow, narrow])
        else:
            wide[name] = torch.cat([0.5 * narrow, 0.5 * narrow])
    doubled.lm.load_state_dict(wide)
    assert torch.allclose(logits(doubled.lm), logits(model.lm), atol=1e-4)
    plan = measure.plans(doubled, ["duplicates", "refit", "random"], [0.5], windows(30))
    lost = {}
    for name, each in plan.items():
        with cuts.masked(doubled, each.cuts[0.5]):
            lost[name] = float((logits(doubled.lm) - logits(model.lm)).abs().max())
    assert lost["duplicates"] < 1e-3
    assert lost["refit"] < 0.2 * lost["random"]  # its ridge gives up a little


def every_position(model: Model, window: Window) -> list[torch.Tensor]:
    """The coefficients of every layer at every position, the start token's first."""
    kept: dict[int, torch.Tensor] = {}
    model.run_every_token(model.batch([window.ids]).ids, lambda site, x: kept.update({site: x.clone()}))
    return [kept[site] for site in sorted(kept)]


def test_a_cell_that_acts_at_the_start_token_only_is_not_taken_for_dead() -> None:
    """Its key is made to fire at the first position and nowhere else."""
    model, text = tiny("gpt2", activation_function="relu"), windows(6)
    module = model.sites[0].key.module  # type: ignore[union-attr]
    before = module.weight[:, 3].clone(), module.bias[3].clone()
    inputs: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: inputs.append(given[0].reshape(-1, given[0].shape[-1])))
    for window in text:
        model.forward(model.batch([window.ids]).ids)
    hook.remove()
    first, others = inputs[0][0], torch.cat([each[1:] for each in inputs])
    along = torch.linalg.solve(torch.cov(others.T) + 1e-4 * torch.eye(len(first)), first - others.mean(0))
    try:
        module.weight[:, 3] = along
        module.bias[3] = -float((others @ along).max() + first @ along) / 2
        assert every_position(model, text[0])[0][0, 3] > 0
        assert not every_position(model, text[0])[0][1:, 3].any()
        moments = calibrate.calibrate(model, text, [0])[0]
        assert moments.sums[3] > 0
        assert moments.variance[3] > 0
    finally:
        module.weight[:, 3], module.bias[3] = before


def test_moments_are_those_of_the_text() -> None:
    model, text = tiny("llama"), windows(5)
    found = calibrate.calibrate(model, text, [1], pairs=True)[1]
    m = torch.cat([every_position(model, window)[1] for window in text]).double()
    assert found.count == len(m) == sum(len(window.ids) + 1 for window in text)  # the start token counts
    assert torch.allclose(found.sums, m.sum(0), atol=1e-3)
    assert torch.allclose(found.sizes, m.abs().sum(0), atol=1e-3)
    assert torch.allclose(found.squares, m.square().sum(0), atol=1e-3)
    assert found.largest is not None
    assert torch.allclose(found.largest, m.abs().amax(0), atol=1e-4)
    assert found.pairs is not None
    assert torch.allclose(found.second(centred=False), m.T @ m / len(m), atol=1e-3)
    assert torch.allclose(found.second(centred=True), torch.cov(m.T, correction=0), atol=1e-3)
    assert torch.allclose(found.variance, m.var(0), atol=1e-4)


def test_the_pull_is_the_fisher_information_of_the_layers_output() -> None:
    """E g gᵀ over the model's own next tokens, against the exact expectation by finite differences. Of the last layer: what it adds at
    one position changes no other, so both positions of a window count for themselves."""
    model = tiny("gpt2", layers=1, n_layer=1)
    windows_of_one = [Window([65], number) for number in range(3000)]
    found = calibrate.calibrate(model, windows_of_one, [0], pull=True)[0]
    assert found.pull is not None
    ids = model.batch([[65]]).ids

    def log_p(shift: torch.Tensor) -> torch.Tensor:
        bias = model.sites[0].bias
        assert bias is not None
        with torch.no_grad():
            bias += shift
            said = model.lm(input_ids=ids).logits[0].double().log_softmax(1)
            bias -= shift
        return said

    steps = 1e-2 * torch.eye(len(found.pull))
    gradients = torch.stack([(log_p(step) - log_p(-step)) / 2e-2 for step in steps])  # [model, positions, vocabulary]
    p = log_p(torch.zeros(len(found.pull))).exp()
    exact = torch.einsum("apv,pv,bpv->ab", gradients, p, gradients) / len(p)
    ours = found.pull.double() / found.count
    assert float((ours - exact).norm() / exact.norm()) < 0.15


def test_logits_in_blocks_give_the_same_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    from keyhole.lens.head import Head

    model = tiny("gemma2")  # its logits are capped
    whole = calibrate.calibrate(model, windows(), [1], pull=True)[1].pull
    monkeypatch.setattr(Head, "rows_at_once", 12)
    parts = calibrate.calibrate(model, windows(), [1], pull=True)[1].pull
    assert whole is not None
    assert parts is not None
    assert torch.allclose(whole, parts, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


def test_a_batch_that_does_not_fit_in_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept, sizes = tiny("gpt2"), calibrate._pulled, list[int]()

    def small(head: object, residuals: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        sizes.append(len(residuals))
        if len(residuals) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return kept(head, residuals, random)  # type: ignore[arg-type]

    most = 10_000
    expected = calibrate.calibrate(model, windows(), [0], pull=True)[0]
    monkeypatch.setattr(calibrate, "_pulled", small)
    most = 70
    found = calibrate.calibrate(model, windows(), [0], pull=True)[0]
    assert max(sizes) > most >= sizes[-1]
    assert torch.allclose(found.sums, expected.sums, rtol=1e-5)
    assert found.count == expected.count
    most = 3
    with pytest.raises(ModelError, match="do not fit in the memory of cpu.*--by flap"):
        calibrate.calibrate(model, windows(), [0], pull=True)


@pytest.mark.parametrize("family", ["mistral", "olmo2", "gemma2"])
def test_flap_has_its_bias_in_a_curve_also_where_no_checkpoint_can_hold_it(family: str) -> None:
    model = tiny(family)
    assert not cuts.can_have_biases(model)
    moments = calibrate.calibrate(model, windows(), [0, 1, 2])
    for published in (True, False):
        plan = measure.plans(model, ["flap"], [0.5], windows(), as_published=published)["flap"]
        for number, each in enumerate(plan.cuts[0.5]):
            assert (each.bias is not None) == published
            if each.bias is not None:
                gone = [cell for cell in range(CELLS) if cell not in each.stay.tolist()]
                added = moments[number].mean[gone] @ model.values(number)[gone].double()
                assert torch.allclose(each.bias.double(), added, atol=1e-5)


@pytest.mark.parametrize("family", sorted(TINY))
@pytest.mark.parametrize("method", ["flap", "refit", "wanda"])
def test_weights_that_are_left_are_counted_right(family: str, method: str) -> None:
    model = tiny(family)
    plan = measure.plans(model, [method], [0.5], windows(6))[method]
    smaller = cuts.cut(model, plan.cuts[0.5])
    assert measure.left(model, plan.cuts[0.5]) == measure.parameters(smaller)


def test_groups_of_layers_have_the_same_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    whole = measure.plans(model, ["refit"], [0.25], windows())["refit"]
    monkeypatch.setattr(calibrate, "PAIRS_BYTES", 1)
    assert list(calibrate.groups(model, True)) == [[0], [1], [2]]
    parts = measure.plans(model, ["refit"], [0.25], windows())["refit"]
    for a, b in zip(whole.cuts[0.25], parts.cuts[0.25], strict=True):
        assert a.stay.tolist() == b.stay.tolist()


def test_shares_that_leave_nothing_or_everything_are_refused() -> None:
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="share"):
            cuts.uniform([24, 24], share)
    for widths, share in (([24], 0.01), ([1, 40], 0.4), ([2, 40], 0.9)):
        with pytest.raises(UsageError, match="at least one"):
            cuts.uniform(widths, share)
    assert cuts.uniform([24, 24], 0.25) == [6, 6]


def test_global_takes_the_cheapest_of_all_layers_and_leaves_one_in_each() -> None:
    from keyhole.uses.pruning.methods import Order

    cheap = Order(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]).double())
    dear = Order(torch.arange(4), torch.tensor([10.0, 20.0, 30.0, 40.0]).double())
    assert cuts.by_cost([4, 4], [cheap, dear], 0.25, METHODS["wanda"]) == [2, 0]
    assert cuts.by_cost([4, 4], [cheap, dear], 0.5, METHODS["wanda"]) == [3, 1]
    # FLAP's scores are standardised per layer, so these two layers are alike
    assert cuts.by_cost([4, 4], [cheap, dear], 0.5, METHODS["flap"]) == [2, 2]
    # its strongest cell stays, and counts all the same: mean and deviation are those of the whole layer
    outlier = Order(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 1000.0]).double())
    even = Order(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]).double())
    # standardised: −0.502, −0.5, −0.498, 1.5 and −1.16, −0.39, 0.39, 1.16
    assert cuts.by_cost([4, 4], [outlier, even], 0.5, METHODS["flap"]) == [3, 1]
    with pytest.raises(UsageError, match="none"):
        cuts.by_cost([4, 4], [cheap, dear], 0.01, METHODS["wanda"])
