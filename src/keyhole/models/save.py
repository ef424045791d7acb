"""A changed model as a checkpoint that any tool loads: configuration, safetensors, tokenizer, generation settings.

What is written is what the model computes now: scales that it runs with are multiplied into its values, which is exact, because
(m·s)·v = m·(s·v). An edit at chosen positions depends on the text, so weights cannot hold it, and it is refused.

The folder appears complete or not at all, and only after it was proved: it is loaded again, every weight must be the one that was
meant to be written, and its logits must be those of the live model

    difference   ‖logits of the folder − logits of the model‖ ÷ ‖logits of the model‖, on the short input of `proof`

up to the rounding of the type that the weights are saved in. By default this is the type that the checkpoint's configuration says,
whatever type the model runs in. A weight that came with numbers that this type cannot hold (a norm in float32 among bfloat16) keeps a
wider one, so weights that were not changed are saved as they were, and changed ones are rounded as theirs were. A model that was
loaded in a type too narrow for its checkpoint has lost that, and is refused (`check_saveable`).

Beside the weights is `keyhole.json`: {"keyhole": 1, "made": "edit", "source": …, "fingerprint": …, "files": […]}, with what the maker
adds. The fingerprint is that of the source's weights.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common import files
from ..common.output import plain
from ..errors import KeyholeError, ModelError, RunExists, UsageError
from ..inputs.formats import shown
from .checkpoints import CONFIG, quieten, read_json, reason
from .gguf import remove_left
from .load import DTYPES, load
from .model import Model
from .proof import ALLOWED_FLOAT32, ALLOWED_HALF, LENGTH, STRIDE
from .sites import locate
from .widths import SETTING

MADE = "keyhole.json"
"""What the folder says of how it was made."""
VERSION = 1


HALF_MODEL = 0.1
"""The largest difference of logits of a model that runs in half precision: its own rounding is in both, and differs where scales do. That
each weight is the one that was meant is checked bit for bit."""


@dataclass(frozen=True)
class Saved:
    """A folder that was written and proved."""

    folder: Path
    dtype: str
    """the type of its weights; some may have a wider one"""
    bytes: int
    """of all its files"""
    difference: float
    """of its logits from those of the live model, relative"""
    plain: bool = True
    """whether transformers alone loads it: all layers have one width"""


def save(
    model: Model,
    folder: str | os.PathLike[str],
    made: Mapping[str, Any],
    *,
    dtype: str | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
) -> Saved:
    """Write a model, with the edits it runs with, as a folder of its own. `made` goes into `keyhole.json`: at least `made`, the name of
    what made it; and `fingerprint` if weights were changed before `Model.weights_fingerprint` was first computed, because
    what is meant is that of the source's weights.

    `dtype` is that of the written weights; None: that of the checkpoint that the model came from. `force` replaces a folder that this
    function wrote, no other. The model's code, if it has code of its own, is copied; to prove the folder it is run if
    `trust_remote_code` says so.
    """
    folder = Path(folder)
    check_saveable(model, folder, dtype=dtype, force=force)
    kind = _kind(model, dtype)
    about = {"keyhole": VERSION, "source": model.source, "revision": model.revision, "dtype": kind}
    about |= {"control": model.control.title} if model.control else {}
    about |= {} if "fingerprint" in made else {"fingerprint": model.weights_fingerprint}
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}-{secrets.token_hex(2)}")
    advice = {"full": "Make room, and run the same command again.", "refused": "Choose another folder."}
    try:
        with files.disk_errors(folder, **advice):
            files.make_folder(folder.parent)
            remove_left(folder)
            with model.lock:
                weights, expected = _weights(model, DTYPES[kind], every=dtype is not None), logits(model)
                _write(model, partial, weights, kind)
            difference = _proved(model, partial, weights, expected, kind, trust_remote_code)
            written = sorted([MADE, *(path.name for path in partial.iterdir())])
            told = plain({**about, **made, "difference": difference, "files": written})
            text = json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            (partial / MADE).write_text(text, "utf-8", "backslashreplace")
            _put(partial, folder, force, model)
    except (KeyholeError, OSError):
        raise
    except Exception as error:  # safetensors has an error of its own for a full disk
        raise ModelError(f"The model could not be written to {shown(folder)}: {reason(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Saved(folder, kind, size, difference, getattr(model.config, SETTING, None) is None)


def check_saveable(
    model: Model, folder: str | os.PathLike[str], *, dtype: str | None = None, force: bool = False
) -> None:
    """Refuse what `save` would refuse: commands ask this before work that takes long."""
    check_folder(folder, model, force=force)
    kind = _kind(model, dtype)
    check_bakeable(model)
    if dtype is None and not holds_checkpoint(model):
        runs, stored = (str(each).removeprefix("torch.") for each in (model.dtype, model.widest))
        raise UsageError(
            f"{model.source} runs in {runs}, and has weights in {stored}, which are rounded already: also those that are not "
            f"changed would be. Load it in {stored}: keyhole.load({model.source!r}, dtype='{stored}'). If {kind} is meant: --dtype {kind}."
        )


def holds_checkpoint(model: Model) -> bool:
    """Whether the type that a model runs in can hold every weight of its checkpoint."""
    return model.widest is None or torch.promote_types(model.dtype, model.widest) == model.dtype


def check_folder(folder: str | os.PathLike[str], model: Model | None = None, *, force: bool = False) -> None:
    """Refuse a place where the folder cannot be written: commands ask this before their work begins."""
    folder = Path(folder)
    if not folder.name or Path(os.path.realpath(os.curdir)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(
            f"{shown(folder)} is the folder you are in, or above it. Name a folder of its own: --out FOLDER."
        )
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise RunExists(f"{shown(folder)} is a link or a file. Choose another folder: --out FOLDER.")
    if model is not None and os.path.isdir(model.source) and os.path.samefile(folder, model.source):
        raise RunExists(f"{shown(folder)} holds the model itself. Choose another folder: --out FOLDER.")
    if not any(folder.iterdir()):
        return
    if not (folder / MADE).is_file():
        raise RunExists(
            f"{shown(folder)} is there already, and Keyhole did not make it (it has no {MADE}). Choose another folder: --out FOLDER."
        )
    if not force:
        raise RunExists(
            f"There is a model at {shown(folder)} already. Choose another folder, or replace it with --force."
        )
    written = read_json(folder / MADE).get("files")
    if foreign := sorted(
        path.name for path in folder.iterdir() if not isinstance(written, list) or path.name not in written
    ):
        raise RunExists(
            f"{shown(folder)} is not only a model that Keyhole made: it has {shown(foreign[0])} too. Move that away, or choose another "
            "folder: --out FOLDER."
        )


def check_bakeable(model: Model) -> None:
    """Refuse what weights cannot hold."""
    placed = next((edit for edit in model.edits if edit.positions is not None), None)
    if placed is not None:
        raise UsageError(
            f"{placed.address} is edited at chosen positions, and weights act at all of them, so this edit cannot be saved in a model. "
            "Leave its positions out, or keep the file of edits: keyhole.load(…, edits=FILE) applies it whenever the model is loaded."
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise UsageError(
            f"The weights of {model.source} are quantised, so changed ones cannot be saved as they are. Use the unquantised model."
        )


def _kind(model: Model, dtype: str | None) -> str:
    """The name of the type that weights are saved in."""
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"The dtype '{dtype}' is not one of {', '.join(DTYPES)}.")
    if dtype is not None:
        return dtype
    names = {kind: name for name, kind in DTYPES.items()}
    return names.get(model.stored or model.dtype) or names[model.dtype]


def logits(model: Model) -> Tensor:
    """[tokens, vocabulary] the model's own logits of one short input, float32 on the CPU."""
    ids = (torch.arange(LENGTH) * STRIDE % model.lm.get_input_embeddings().weight.shape[0])[None]
    with model.lock, torch.inference_mode():
        found: Tensor = model.lm(input_ids=ids.to(model.device), use_cache=False).logits
    return found[0].float().cpu()


def _weights(model: Model, dtype: torch.dtype, *, every: bool) -> dict[str, Tensor]:
    """The weights as they are saved, on the CPU. Weights that are one (tied embeddings) stay one. If not `every` weight has to have the
    type, those that came with numbers that it cannot hold keep their own."""
    changed = _scaled(model)
    found: dict[str, Tensor] = {}
    converted: dict[int, Tensor] = {}
    for name, weight in model.lm.state_dict(keep_vars=True).items():
        if id(weight) not in converted:
            keeps = not every and name in model.wide
            new = changed.get(id(weight), weight.detach())
            converted[id(weight)] = _as_saved(name, new, weight.dtype if keeps else dtype)
        found[name] = converted[id(weight)]
    return found


def _as_saved(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    if not weight.is_floating_point():
        return weight.cpu()
    new = weight.to("cpu", dtype)
    if new.numel() and not bool(torch.isfinite(torch.stack(new.aminmax())).all()):
        kind = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"The weight {name} has numbers that {kind} cannot hold: save it in a wider type (--dtype float32), or use "
            "smaller scales and values."
        )
    return new


@torch.no_grad()
def _scaled(model: Model) -> dict[int, Tensor]:
    """Copies of the values' weights, by the `id` of the weight, with the scales of the model's edits multiplied in, in float32: they
    are rounded once, when they are saved."""
    found: dict[int, Tensor] = {}
    for edit in model.edits:
        number, cell = locate(model.sites, edit.layer, edit.cell)
        site = model.sites[number]
        weight = site.module.weight
        assert isinstance(weight, Tensor)
        if edit.scale != 1:
            changed = found.setdefault(id(weight), weight.detach().to(torch.float32, copy=True))
            (changed if site.transposed else changed.T)[cell] *= edit.scale
    return found


def _write(model: Model, folder: Path, weights: dict[str, Tensor], kind: str) -> None:
    """The files that transformers writes. What it changes of the model on the way is put back."""
    from transformers import GenerationConfig

    quieten()
    lm, config = model.lm, model.config
    before = {name: getattr(config, name, None) for name in ("dtype", "architectures")}
    settings = getattr(lm, "generation_config", None)
    try:
        if settings is not None:  # written below: transformers refuses to save settings that it has loaded
            lm.generation_config = GenerationConfig()
        # weights that only Keyhole loads have the names that they have here: transformers would write those of the original checkpoint
        lm.save_pretrained(folder, state_dict=dict(weights), save_original_format=not hasattr(config, SETTING))
    finally:
        if settings is not None:
            lm.generation_config = settings
        for name, value in before.items():
            setattr(config, name, value)
    if settings is not None:
        settings.to_json_file(folder / "generation_config.json", use_diff=True)
    model.tokenizer.save_pretrained(folder)
    _retell(folder, CONFIG, {"dtype": kind})
    _retell(folder, "tokenizer_config.json", {})


def _retell(folder: Path, name: str, more: Mapping[str, Any]) -> None:
    """Correct what a file of settings says: it may name code that was not loaded and so is not in the folder."""
    file = folder / name
    if not file.is_file():
        return
    told = {**read_json(file), **more}
    codes = told.get("auto_map")
    if isinstance(codes, dict):
        there = {key: code for key, code in codes.items() if all(_is_there(folder, each) for each in _each(code))}
        told = {key: each for key, each in told.items() if key != "auto_map"} | ({"auto_map": there} if there else {})
    file.write_text(json.dumps(told, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def _each(code: Any) -> list[str]:
    return [each for each in (code if isinstance(code, list) else [code]) if isinstance(each, str)]


def _is_there(folder: Path, code: str) -> bool:
    """Whether `module.Class` is in the folder, or in a repository that it names (`owner/name--module.Class`)."""
    return "--" in code or (folder / f"{code.split('.')[0]}.py").is_file()


def _proved(
    model: Model, folder: Path, weights: Mapping[str, Tensor], expected: Tensor, kind: str, trust: bool
) -> float:
    """The difference of the folder's logits. A folder that is not what the model is now is refused."""
    dtype = {each: name for name, each in DTYPES.items()}[model.dtype]
    device = "cpu" if model.split else str(model.device)
    try:
        again = load(folder, dtype=dtype, device=device, trust_remote_code=trust)
    except KeyholeError as error:
        if device == "cpu":
            raise ModelError(f"What was written is no model that loads, so it was removed. {error}") from error
        try:  # there may be no room for it beside the live model
            again = load(folder, dtype=dtype, device="cpu", trust_remote_code=trust)
        except KeyholeError:
            raise ModelError(f"What was written is no model that loads, so it was removed. {error}") from error
    for name, weight in again.lm.state_dict(keep_vars=True).items():
        meant = weights[name].to(weight.dtype) if name in weights else None
        if meant is None or not torch.equal(weight.detach().cpu(), meant):
            raise ModelError(
                f"The weight {name} is read back from the written model as another one, so the model was removed. "
                f"This is an error of Keyhole or of transformers for '{model.config.model_type}'; please report it."
            )
    got = logits(again)
    difference = float((got - expected).norm() / expected.norm().clamp_min(1e-30))
    exact = kind == "float32" and model.dtype == torch.float32
    allowed = ALLOWED_FLOAT32 if exact else ALLOWED_HALF if model.dtype == torch.float32 else HALF_MODEL
    if not difference <= allowed:
        narrow = "Save it in a wider type: --dtype float32." if kind != "float32" else "Load the model in float32."
        raise ModelError(
            f"The written model's logits differ from those of the live one by {difference:.2e}, relative, and at most {allowed:.0e} is "
            f"rounding; it was removed. It runs in {dtype} and was saved as {kind}. {narrow}"
        )
    return difference


def _put(partial: Path, folder: Path, force: bool, model: Model) -> None:
    mode = (partial / CONFIG).stat().st_mode
    for path in partial.rglob("*"):  # a tokenizer with several chat templates has a folder of them
        if path.is_dir():
            files.sync_folder(path)
            continue
        path.chmod(mode)  # safetensors lets only its owner read what it writes
        with path.open("r+b") as written:
            files.sync(written)
    files.sync_folder(partial)
    check_folder(folder, model, force=force)  # again, because writing took a while
    aside = folder.with_name(f"{folder.name}.partial-{os.getpid()}-{secrets.token_hex(2)}")
    try:
        files.put_in_place(partial, folder, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
