"""A model whose layers differ in width, as a folder: an ordinary checkpoint, but for `keyhole_widths` in its configuration, the
number of cells of each layer. transformers has one width for all layers and refuses such weights; here they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .families import family_of
from .resize import shrink

SETTING = "keyhole_widths"


def widths_of(config: Any, name: str) -> list[int] | None:
    """The cells of each layer, if a configuration names them."""
    found = getattr(config, SETTING, None)
    if found is None:
        return None
    if (
        not isinstance(found, list)
        or len(found) != config.num_hidden_layers
        or not all(type(width) is int and width > 0 for width in found)
    ):
        raise ModelError(
            f"{name}: {SETTING} in its config.json must be a list of {config.num_hidden_layers} whole numbers above 0, the cells of each "
            "layer. Prune the model again."
        )
    return found


def read(
    folder: Path, files: Iterable[str], config: Any, widths: list[int], dtype: Any, *, trust_remote_code: bool
) -> tuple[Any, dict[str, Any]]:
    """The language model, and which weights were missing or not used, as transformers says it."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GenerationConfig

    kind = dtype if isinstance(dtype, torch.dtype) else getattr(config, "dtype", None) or torch.float32
    lm = AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=trust_remote_code)
    shrink(lm, family_of(config.model_type), widths)
    weights: dict[str, Tensor] = {}
    for file in sorted(files):
        weights |= load_file(folder / file)
    shared = _shared(lm)
    tied = {name for name, weight in lm.state_dict(keep_vars=True).items() if id(weight) in shared}
    result = lm.load_state_dict(weights, strict=False)
    missing = [name for name in result.missing_keys if name not in tied or not _other_name(lm, name, weights)]
    lm.tie_weights()
    if (folder / "generation_config.json").is_file():
        lm.generation_config = GenerationConfig.from_pretrained(folder)
    return lm, {"missing_keys": missing, "unexpected_keys": result.unexpected_keys}


def _shared(lm: Any) -> set[int]:
    """Weights that have several names, by `id`."""
    seen: set[int] = set()
    twice: set[int] = set()
    for weight in lm.state_dict(keep_vars=True).values():
        (twice if id(weight) in seen else seen).add(id(weight))
    return twice


def _other_name(lm: Any, name: str, weights: dict[str, Tensor]) -> bool:
    """Whether a weight was read under another of its names."""
    every = lm.state_dict(keep_vars=True)
    return any(other in weights for other, weight in every.items() if weight is every[name])
