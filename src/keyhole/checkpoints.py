"""From a name to weights: hub ids, local folders, `.gguf` files. Pickled checkpoints are never opened."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .errors import MissingExtra, ModelError, UnsafeCheckpoint
from .store import cache_dir


def read(
    source: str,
    *,
    dtype: str | torch.dtype,
    revision: str | None,
    trust_remote_code: bool,
    known: Callable[[str], object],
    split: bool = False,
) -> tuple[Any, Any, str | None]:
    """The language model, its tokenizer and its revision. `known` refuses an architecture before its weights are read.

    With `split` its blocks are spread over the GPUs there are, which must have room for all of them.
    """
    if split and not _installed("accelerate"):
        raise MissingExtra("accelerate", "split", "Splitting a model over several GPUs")
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    where = str(from_gguf(Path(source))) if source.endswith(".gguf") else source
    if os.path.isdir(where):
        refuse_pickles(Path(where))
    elif os.path.exists(where):
        raise ModelError(f"{source} is a file. Give a hub id, a folder with config.json, or a .gguf file.")
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    spread = {"device_map": "auto"} if split else {}
    try:
        config = AutoConfig.from_pretrained(where, **options)
        if config.model_type == "gemma3":  # the text part of a multimodal checkpoint
            config = config.get_text_config()
        known(config.model_type)
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        lm, found = AutoModelForCausalLM.from_pretrained(
            where, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **spread, **options
        )
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        if "safetensors" in str(error) and ".bin" in str(error):
            raise UnsafeCheckpoint(_advice(source)) from None
        hint = "" if os.path.isdir(where) else " A hub id needs the network, or the model in the local hub cache."
        raise ModelError(f"{source} cannot be loaded: {error}{hint}") from error
    if absent := sorted(found["missing_keys"]):  # they would be filled with random numbers
        raise ModelError(
            f"{source} lacks weights: {', '.join(absent[:3])}{' …' if len(absent) > 3 else ''}. "
            "The checkpoint is incomplete, or not that of a language model."
        )
    if elsewhere := [name for name, weight in lm.named_parameters() if weight.is_meta]:
        raise ModelError(
            f"{source} does not fit on the GPUs of this machine: {len(elsewhere)} of its weights, {elsewhere[0]} first, would have "
            "to be fetched for every batch. Use a smaller --dtype, or more GPUs."
        )
    return lm, tokenizer, getattr(config, "_commit_hash", None) or revision


def refuse_pickles(folder: Path) -> None:
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} is no model folder: it has no config.json.")
    if not list(folder.glob("*.safetensors")) and (
        pickled := sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
    ):
        raise UnsafeCheckpoint(f"{_advice(str(folder))} (found {pickled[0].name})")


def _advice(source: str) -> str:
    return (
        f"{source} holds its weights as a pickle, which can run any code, so Keyhole does not open it. "
        "Convert it once, on a machine you do not mind, with transformers: "
        "AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(FOLDER), which writes safetensors"
    )


def from_gguf(path: Path) -> Path:
    """A folder of safetensors made from a .gguf file, once: the conversion is kept in the cache."""
    if not path.is_file():
        raise ModelError(f"There is no file {path}.")
    for package in ("gguf", "accelerate"):
        if not _installed(package):
            raise MissingExtra(package, "gguf", "Reading .gguf files")
    with path.open("rb") as file:
        head = file.read(1 << 20)
        if not head.startswith(b"GGUF"):
            raise ModelError(f"{path} is not a GGUF file: it starts with {head[:4]!r}.")
        digest = hashlib.file_digest(file, "sha256")
    digest.update(head)
    folder = cache_dir() / "models" / f"{path.stem}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder

    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = {"gguf_file": path.name}
    try:
        lm = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.float32, **name)
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **name)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read as a GGUF model: {error}") from error
    # what came out is plain float32: a configuration that still says "quantised" could not be saved or loaded
    config = copy.deepcopy(lm.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(lm.state_dict())
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        plain.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.is_dir():  # else another process finished the same conversion first
            raise ModelError(f"The converted model could not be written to {folder}: {error}") from error
    return folder


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
