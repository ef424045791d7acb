"""One shard of a scan: the batches of a plan through the model, into the index."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from .corpus import UNITS
from .errors import ModelError, OutOfMemory, UsageError
from .kernels import Index, candidates
from .models import DEFAULT_CONTEXT, Model
from .plan import Plan, PlannedBatch

PER = ("sentence", "prefix")


@dataclass(frozen=True)
class ScanConfig:
    """Everything that decides what a scan finds. It lands in the manifest, and a manifest repeats it."""

    top: int = 25
    per: str = "sentence"
    unit: str = "sentence"
    context: int | None = None
    max_tokens: int | None = None
    batch_tokens: int | None = None
    bos: bool = True
    text_field: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    hold_out: float = 0.0
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        def whole(name: str, least: int) -> None:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise UsageError(f"{name} is {value!r}; it must be a whole number of at least {least}.")

        for name, least in (("top", 1), ("context", 2), ("max_tokens", 1), ("batch_tokens", 1)):
            whole(name, least)
        if self.per not in PER:
            raise UsageError(f"per is '{self.per}'; it must be one of {', '.join(PER)}.")
        if not isinstance(self.hold_out, (int, float)) or not 0 <= self.hold_out < 1:
            raise UsageError(f"hold_out is {self.hold_out!r}; it must be a share of the units, from 0 to less than 1.")
        if self.unit not in UNITS:
            raise UsageError(f"unit is '{self.unit}'; it must be one of {', '.join(UNITS)}.")
        if self.shard is not None:
            number, of = self.shard
            if not 1 <= number <= of:
                raise UsageError(
                    f"The shard {number}/{of} cannot be: shards are numbered 1 to n, as in --shard 1/{max(of, 1)}."
                )

    def resolve(self, model: Model) -> ScanConfig:
        """The same with every default that depends on the model filled in."""
        most = model.max_context
        context = self.context or min(most or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        if most is not None and context > most:
            raise UsageError(f"--context {context} is more than the {most} tokens {model.source} was built for.")
        batch_tokens = self.batch_tokens or (2048 if model.device.type == "cpu" else 16384)
        chosen = {"context": context, "batch_tokens": batch_tokens, "bos": self.bos and model.bos_id is not None}
        kind = {"device": model.device.type, "dtype": str(model.dtype).removeprefix("torch.")}
        return ScanConfig(**{**asdict(self), **chosen, **kind})

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ScanConfig:
        known = {field.name for field in fields(ScanConfig)}
        values = {key: value for key, value in values.items() if key in known}
        if values.get("shard") is not None:
            values["shard"] = tuple(values["shard"])
        return ScanConfig(**values)


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """`2/8` → (2, 8)."""
    if text is None:
        return None
    number, slash, of = text.partition("/")
    if not (slash and number.isdigit() and of.isdigit()):
        raise UsageError(f"--shard {text} is not of the form i/n, as in --shard 1/4.")
    return int(number), int(of)


def batches_of(plan: Plan, shard: tuple[int, int] | None) -> range:
    """The batches of a shard: every n-th, so that all shards have their share of long and short windows.

    With more shards than batches some have none, and their runs are empty.
    """
    number, of = shard or (1, 1)
    return range(number - 1, len(plan), of)


def scan_batches(model: Model, plan: Plan, index: Index, config: ScanConfig, numbers: range) -> Iterator[int]:
    """Run batches through the model into the index; yields each batch's number when it is in."""
    for number in numbers:
        batch = plan[number]
        try:
            _run(model, batch, index, config, done=set())
        except FloatingPointError as error:
            raise ModelError(
                f"{error} of {model.source} gives coefficients that are not finite in {config.dtype} (batch {number}). "
                "Scan in a wider type: --dtype float32, or bfloat16 instead of float16."
            ) from None
        index.n += sum(map(len, batch.windows)) - int(batch.old.sum())
        yield number


def _run(model: Model, batch: PlannedBatch, index: Index, config: ScanConfig, done: set[int]) -> None:
    """One batch into the layers of the index that are not `done` with it; where memory runs out, its halves."""
    prepared = model.batch(batch.windows, bos=config.bos)
    lengths = np.array([len(window) for window in batch.windows])
    picked = candidates(prepared.ids.shape[1], prepared.starts, lengths, batch.old, batch.first_tokens, config.per)
    now: set[int] = set()

    def sink(layer: int, x: torch.Tensor) -> None:
        if layer not in done:
            index.update(layer, x, picked)
            now.add(layer)

    try:
        model.run(prepared.ids, sink)
        return
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    if len(batch.windows) == 1:
        raise OutOfMemory(
            f"One window of {lengths[0]} tokens does not fit in the memory of {model.device}. Use a smaller --context "
            f"(now {config.context}), a smaller --dtype (now {config.dtype}), or another --device."
        )
    half = len(batch.windows) // 2
    for part in (slice(None, half), slice(half, None)):
        smaller = PlannedBatch(batch.windows[part], batch.first_tokens[part], batch.old[part])
        _run(model, smaller, index, config, done | now)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)
