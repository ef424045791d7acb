"""Controls: which weights stay and which are lost, the same from every load, and runs that say what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import TINY, save, tiny
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.commands.make import ControlOption, default_out
from keyhole.common import files
from keyhole.errors import RunDamaged, RunError, UsageError
from keyhole.models.control import draw_seed
from keyhole.models.model import Model
from keyhole.models.rerun import model_of
from keyhole.store.control import KINDS, control_of
from keyhole.views import text as words

OPTIONS: dict[str, Any] = {"top": 4, "unit": "line", "batch_tokens": 60, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny("llama"), tmp_path_factory.mktemp("models") / "tiny")


def weights(model: Model) -> dict[str, torch.Tensor]:
    return dict(model.lm.named_parameters())


def is_embedding(model: Model, name: str) -> bool:
    modules = (model.lm.get_input_embeddings(), model.lm.get_output_embeddings())
    return any(weights(model)[name] is weight for module in modules for weight in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", sorted(TINY))
def test_a_control_of_every_family_keeps_the_embeddings_and_loses_the_rest(
    family: str, kind: str, tmp_path: Path
) -> None:
    model = tiny(family)
    source = save(model, tmp_path / "model")
    control = keyhole.load(source, device="cpu", control=kind, control_seed=3)
    trained = weights(keyhole.load(source, device="cpu"))
    assert (control.control and control.control.to_json()) == {"kind": kind, "seed": 3}
    for name, weight in weights(control).items():
        before = trained[name]
        if is_embedding(control, name) or (kind == "shuffled" and weight.dim() == 1):
            assert torch.equal(weight, before), name
        elif kind == "shuffled":
            assert not torch.equal(weight, before), name
            assert torch.equal(weight.flatten().sort().values, before.flatten().sort().values), name
        else:  # a bias of zeros is what the model class begins with, and the tiny model's biases are not zero
            assert not torch.equal(weight, before), name


def test_untied_unembeddings_stay_too(tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=False)
    control = keyhole.load(save(model, tmp_path / "model"), device="cpu", control="random")
    assert control.lm.get_output_embeddings().weight is not control.lm.get_input_embeddings().weight
    for side in ("get_input_embeddings", "get_output_embeddings"):
        assert torch.equal(getattr(control.lm, side)().weight, getattr(model.lm, side)().weight)


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_random_control_is_not_where_training_began(folder: str, seed: int) -> None:
    """A model that was initialised with the same number: its keys say nothing of the control's."""
    control = keyhole.load(folder, device="cpu", control="random", control_seed=seed)
    torch.manual_seed(seed)
    begun = dict(type(control.lm)(control.config).named_parameters())
    drawn = [name for name in weights(control) if not is_embedding(control, name) and begun[name].dim() > 1]
    assert drawn
    for name in drawn:
        cosine = torch.nn.functional.cosine_similarity(weights(control)[name].flatten(), begun[name].flatten(), dim=0)
        assert abs(cosine) < 0.2, name


def test_a_random_control_is_what_the_model_class_draws_from_the_seed(folder: str) -> None:
    control = keyhole.load(folder, device="cpu", control="random", control_seed=5)
    torch.manual_seed(draw_seed(5))
    fresh = dict(type(control.lm)(control.config).named_parameters())
    compared = [name for name in weights(control) if not is_embedding(control, name)]
    assert len(compared) > 20
    for name in compared:
        assert torch.equal(weights(control)[name], fresh[name]), name


def test_a_seed_gives_the_same_weights_and_another_others(folder: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    found = {
        (kind, seed): keyhole.load(folder, device="cpu", control=kind, control_seed=seed).fingerprint
        for kind in KINDS
        for seed in (0, 1)
    }
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's random numbers are not touched
    assert len({*found.values(), keyhole.load(folder, device="cpu").fingerprint}) == 5
    for (kind, seed), fingerprint in found.items():
        torch.manual_seed(99)
        assert keyhole.load(folder, device="cpu", control=kind, control_seed=seed).fingerprint == fingerprint


def test_matrices_of_one_size_are_shuffled_differently(folder: str) -> None:
    trained, control = keyhole.load(folder, device="cpu"), keyhole.load(folder, device="cpu", control="shuffled")
    orders = []
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        before, after = (weights(model)[name].flatten() for model in (trained, control))
        orders.append([int((before == value).nonzero()[0, 0]) for value in after])
    assert orders[0] != orders[1]


def test_bfloat16_rounds_the_same_draw(folder: str) -> None:
    exact, rounded = (keyhole.load(folder, device="cpu", control="random", dtype=d) for d in ("float32", "bfloat16"))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(weights(exact)[name].bfloat16(), weights(rounded)[name])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"control": "noise"}, "There is no control 'noise'. The controls are: random, shuffled."),
        ({"control": ["random"]}, "There is no control"),
        ({"control": "random", "control_seed": -1}, "control_seed is -1"),
        ({"control": "random", "control_seed": 1.5}, "control_seed is 1.5; it must be a whole number"),
        ({"control": "random", "control_seed": 1 << 70}, "at most"),
    ],
)
def test_a_wrong_control_is_refused(folder: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        keyhole.load(folder, **options)
    assert said in str(error.value)


def test_a_loaded_model_is_not_changed_into_its_control(folder: str, text: Path, tmp_path: Path) -> None:
    model = keyhole.load(folder, device="cpu")
    with pytest.raises(UsageError, match="Load its control by name"):
        keyhole.load(model, control="random")
    with pytest.raises(UsageError, match="Load its control by name"):
        keyhole.scan(model, [text], out=tmp_path / "run", control="random", top=4, unit="line")
    assert not (tmp_path / "run.partial").exists()


# Runs


def content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


def test_a_run_of_a_control_says_so_and_is_computed_with_the_same_weights_again(
    folder: str, text: Path, tmp_path: Path
) -> None:
    run = keyhole.scan(
        folder, [text], out=tmp_path / "run", control="shuffled", control_seed=2, hold_out=0.3, **OPTIONS
    )
    assert run.manifest["model"]["control"] == {"kind": "shuffled", "seed": 2}
    assert words.model_name(run) == "tiny with shuffled weights, seed 2"
    assert "shuffled weights, seed 2" in repr(run)
    shown = CliRunner().invoke(app, ["info", str(run.path)])
    assert "shuffled weights" in " ".join(shown.output.split())
    assert keyhole.verify(run).ok
    assert model_of(run, folder).fingerprint == run.manifest["model"]["fingerprint"]  # also if the model is named
    keyhole.analyze(run, only=["agreement"], similar=False)
    assert run.table("agreement")
    loaded = keyhole.load(folder, device="cpu", control="shuffled", control_seed=2)
    again = keyhole.scan(loaded, [text], out=tmp_path / "again", hold_out=0.3, **OPTIONS)
    np.testing.assert_array_equal(again.coefficients, run.coefficients)
    assert again.manifest["model"]["control"] == run.manifest["model"]["control"]
    with pytest.raises(RunError, match="it has the trained weights, and the run is of shuffled weights, seed 2"):
        model_of(run, keyhole.load(folder, device="cpu"))


def test_another_control_is_another_scan(folder: str, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = keyhole.scan(folder, [text], out=out, control="random", **OPTIONS)
    same = keyhole.scan(folder, [text], out=out, control="random", resume=True, **OPTIONS)
    assert same.manifest["checksum"] == first.manifest["checksum"]
    for other in ({}, {"control": "shuffled"}, {"control": "random", "control_seed": 1}):
        with pytest.raises(RunError, match="control: was {'kind': 'random', 'seed': 0}, now"):
            keyhole.scan(folder, [text], out=out, resume=True, **other, **OPTIONS)


@pytest.mark.slow(seconds=12)
def test_processes_make_the_same_control(folder: str, text: Path, tmp_path: Path) -> None:
    one = keyhole.scan(folder, [text], out=tmp_path / "one", control="random", control_seed=4, **OPTIONS)
    two = keyhole.scan(folder, [text], out=tmp_path / "two", control="random", control_seed=4, processes=2, **OPTIONS)
    assert content(one.path) == content(two.path)


def test_the_command_line_makes_and_repeats_controls(
    folder: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--top", "4", "--unit", "line", "--device", "cpu"]

    def scan(*arguments: str) -> keyhole.Run:
        done = CliRunner().invoke(app, ["scan", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return keyhole.open(done.output.split(":")[0])

    run = scan(folder, str(text), "--control", "random", "--control-seed", "6", *given)
    assert run.path == Path("runs/tiny-text-random6") == default_out(folder, [str(text)], None, "random", 6)
    again = scan("--from", str(run.path), "--out", "again")
    assert again.manifest["model"] == run.manifest["model"]
    trained = scan("--from", str(run.path), "--control", "none", "--out", "trained")
    assert control_of(trained.manifest) is None
    assert [each.value for each in ControlOption] == ["none", *KINDS]


@pytest.mark.parametrize("control", [None, "random", {"kind": "noise", "seed": 0}, {"kind": "random", "seed": True}])
def test_a_manifest_with_a_wrong_control_is_refused(control: Any, folder: str, text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(folder, [text], out=tmp_path / "run", control="random", **OPTIONS)
    file = run.path / "manifest.json"
    told = json.loads(file.read_text("utf-8"))
    told["model"]["control"] = control
    file.write_text(json.dumps(files.seal(told)), "utf-8")
    with pytest.raises(RunDamaged, match=r"model\.control"):
        keyhole.open(run.path)


@pytest.mark.slow(seconds=6)
def test_a_control_of_a_trained_model_does_not_know_english(wiki16: Path) -> None:
    """The trained model gives an English sentence a far larger probability than both controls do."""

    def loss(**options: Any) -> float:
        model = keyhole.load(wiki16, device="cpu", **options)
        ids = torch.tensor(
            model.tokenize(["The city is the capital of the country and has a population of over one million."])
        )
        with torch.inference_mode():
            return float(model.lm(input_ids=ids, labels=ids).loss)

    trained = loss()
    assert trained < 6
    for kind in KINDS:
        assert loss(control=kind) > trained + 2
