"""A `.gguf` file as a folder of safetensors: converted once, kept in the cache.

transformers sees the file alone in a folder, so it reads no other file. A conversion is written under a temporary name,
flushed and renamed, so an interrupted one is never taken for a complete one.
"""

from __future__ import annotations

import copy
import glob
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ..common.files import sync, sync_folder
from ..errors import KeyholeError, MissingExtra, ModelError
from ..inputs.formats import shown
from ..store.layout import cache_dir
from .checkpoints import check_loaded, is_installed, quieten, reason

ALONE = "model.gguf"
"""The name of the file in its folder."""
LEFT = re.compile(r"\.partial-\d+(-[0-9a-f]{4})?")
"""What a folder that is being written has after its name."""
LEFT_SECONDS = 24 * 3600
"""Age from which an unfinished conversion counts as abandoned."""


def convert(path: Path) -> Path:
    """The folder a .gguf file is converted to, made if it is not there yet."""
    name = shown(path)
    if not path.is_file():
        raise ModelError(f"There is no file {name}.")
    for package in ("gguf", "accelerate"):
        if not is_installed(package):
            raise MissingExtra(package, "gguf", "Reading .gguf files")
    folder = cache_dir() / "models" / f"{path.stem}-{_digest(path)[:16]}"
    if folder.is_dir():
        return folder
    quieten()
    try:
        lm, tokenizer = _read(path, name)
    except KeyholeError:
        raise
    except Exception as error:  # the reader checks no number in the file, so it can fail anywhere
        raise ModelError(
            f"{name} cannot be read as a GGUF model: {reason(error)} It is damaged, cut short, or of a kind that transformers "
            "does not convert: fetch it again, or use the model's safetensors."
        ) from error
    _save(lm, tokenizer, folder)
    return folder


def _digest(path: Path) -> str:
    """The hash of a file, which must begin as a GGUF file does."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 20)
            if not head.startswith(b"GGUF"):
                raise ModelError(f"{shown(path)} is not a GGUF file: it starts with {head[:4]!r}.")
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read: {error.strerror or error}") from None
    digest.update(head)
    return digest.hexdigest()


def _read(path: Path, name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .families import family_of

    with tempfile.TemporaryDirectory(prefix="keyhole-") as alone:
        (Path(alone) / ALONE).symlink_to(path.resolve())
        options = {"gguf_file": ALONE, "trust_remote_code": False}
        lm, found = AutoModelForCausalLM.from_pretrained(
            alone, dtype=torch.float32, ignore_mismatched_sizes=False, output_loading_info=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(alone, **options)
    check_loaded(lm, found, family_of(lm.config.model_type), name)
    # the result is plain float32: with a configuration that still says "quantised" it could not be saved or loaded
    config = copy.deepcopy(lm.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(lm.state_dict())
    return plain, tokenizer


def _save(lm: Any, tokenizer: Any, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        try:
            remove_left(folder)
            lm.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            for file in partial.iterdir():
                with file.open("r+b") as written:
                    sync(written)
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except Exception as error:  # safetensors has an error of its own for a full disk
        if not folder.is_dir():  # otherwise another process finished the same conversion first
            raise ModelError(
                f"The converted model could not be written to {shown(folder)}: {reason(error)} Make room there, or set "
                "KEYHOLE_CACHE to a folder that can be written."
            ) from error


def remove_left(folder: Path) -> None:
    """Remove what killed processes that wrote this folder left behind, if it is older than `LEFT_SECONDS`. Only names that this
    project gives count: others are somebody's own."""
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.partial-*"):
        ours = LEFT.fullmatch(left.name.removeprefix(folder.name))
        if ours and left.is_dir() and time.time() - left.stat().st_mtime > LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
