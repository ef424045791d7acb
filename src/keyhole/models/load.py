"""Opening a model: from a name to weights on a device, with the family's row proved on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import KeyholeError, ModelError, ProofFailed, UsageError
from ..store.control import Control
from ..store.made import of_folder as made_of
from .checkpoints import name_of, open_checkpoint
from .control import make_control
from .families import FILE, family_of
from .model import SPLIT, Model
from .proof import prove

if TYPE_CHECKING:
    from .intervene import Edit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    source: str | os.PathLike[str] | Model,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    edits: str | os.PathLike[str] | dict[str, Any] | Sequence[Edit] | None = None,
    control: str | None = None,
    control_seed: int = 0,
) -> Model:
    """Open a model: a hub id, a local folder, or a `.gguf` file.

    `dtype` "auto" is float32 on a CPU and the checkpoint's own type elsewhere. `device` "auto" is the GPU if there is one;
    "split" spreads the blocks over all GPUs.
    The family's row is proved on the loaded weights before the model is returned.
    `edits` scale its coefficients or change its values, permanently: a file that the explorer saved, its content, or a list
    (`keyhole.intervene`).
    `control` gives the model other weights, to compare with: "random" draws them again by the model's own initialisation,
    "shuffled" permutes the entries of every weight matrix; both keep the trained token embeddings and the unembedding
    (`models/control.py`). `control_seed` is the seed of that.
    """
    made = None if control is None else Control(control, control_seed)
    if isinstance(source, Model):
        if edits is not None:
            raise UsageError(
                "This model is loaded already, and others may hold it. Load it by name with edits, or edit it temporarily: "
                "with keyhole.intervene.applied(model, edits): …"
            )
        if made is not None:
            raise UsageError(
                f"This model is loaded already, and others may hold it. Load its control by name: "
                f"keyhole.load({source.source!r}, control={made.kind!r})"
            )
        return source
    source = name_of(source)
    split = device == SPLIT
    target = choose_device("auto" if split else device)
    opened = open_checkpoint(
        source,
        dtype=choose_dtype(dtype, target),
        revision=revision,
        trust_remote_code=trust_remote_code,
        known=family_of,
        split=split,
    )
    try:
        if made is not None:
            make_control(opened.lm, made)
        model = Model(
            opened.lm if split else opened.lm.to(target),
            opened.tokenizer,
            source=source,
            revision=opened.revision,
            split=split,
            control=made,
            stored=opened.stored,
            widest=None if made is not None else opened.widest,  # a control has no checkpoint to be true to
        )
        prove(model)
    except KeyholeError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{source} does not fit in the memory of {target}: {str(error).splitlines()[0]} Use a smaller --dtype, --device cpu, "
            "or --device split to spread it over several GPUs."
        ) from None
    except Exception as error:  # a wrong configuration can make the forward pass fail in any way
        raise ProofFailed(
            f"{source} was loaded, but running it fails ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            "Its configuration is not that of its weights, or the architecture is a variant without a row in FAMILIES "
            f"({FILE})."
        ) from error
    model.made = made_of(source)
    model.wide = _wide(model)
    if edits is not None:
        from . import intervene

        intervene.apply(model, intervene.read_edits(edits, model))
    return model


def _wide(model: Model) -> frozenset[str]:
    """The weights that are wider in the checkpoint than its configuration says."""
    if model.stored is None or model.widest in (None, model.stored):
        return frozenset()
    return frozenset(
        name
        for name, weight in model.lm.state_dict().items()
        if weight.is_floating_point() and not torch.equal(weight.to(model.stored).to(weight.dtype), weight)
    )


def choose_device(device: str) -> torch.device:
    """The device of that name, if it can be used here."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"The device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None
    return target


def choose_dtype(dtype: str, device: torch.device) -> str | torch.dtype:
    """The type of that name; "auto" as `load` says."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UsageError(f"The dtype '{dtype}' is not one of auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]
