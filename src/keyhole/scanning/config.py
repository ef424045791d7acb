"""The options of a scan. Imports no model library: analyses and commands read it too."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from ..common.checks import LIMITS, whole
from ..errors import UsageError
from ..inputs.corpus import UNITS
from ..inputs.sentences import check_language
from .hold_out import BY

if TYPE_CHECKING:
    from ..models.model import Model

DEFAULT_CONTEXT = 2048
"""The longest window unless `--context` asks for a longer one."""
PER = ("sentence", "prefix")


@dataclass(frozen=True)
class ScanConfig:
    """Everything that decides what a scan finds. It is written to the manifest, and a manifest is enough to repeat it."""

    top: int = 50
    per: str = "sentence"
    unit: str = "sentence"
    language: str = "en"
    """of the text, for splitting it into sentences"""
    context: int | None = None
    max_tokens: int | None = None
    batch_tokens: int | None = None
    bos: bool = True
    text_field: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    compile: bool = False
    trust_remote_code: bool = False
    hold_out: float = 0.0
    hold_out_by: str = "unit"
    """whether single units are held out, or documents with all of their units"""
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, least in (("top", 1), ("context", 2), ("max_tokens", 1), ("batch_tokens", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), least, LIMITS[name]))
        if self.per not in PER:
            raise UsageError(f"per is '{self.per}'; it must be one of {', '.join(PER)}.")
        try:
            share = float(self.hold_out)
        except (TypeError, ValueError):
            share = math.nan
        if not 0 <= share < 1:
            raise UsageError(
                f"hold_out is {self.hold_out!r:.60}; it must be a share of the units, from 0 to less than 1."
            )
        object.__setattr__(self, "hold_out", share)
        if self.hold_out_by not in BY:
            raise UsageError(f"hold_out_by is {self.hold_out_by!r:.60}; it must be one of {', '.join(BY)}.")
        check_language(self.language)
        if self.unit not in UNITS:
            raise UsageError(f"unit is '{self.unit}'; it must be one of {', '.join(UNITS)}.")
        if self.shard is not None:
            if not isinstance(self.shard, (tuple, list)) or len(self.shard) != 2:
                raise UsageError(f"shard is {self.shard!r:.60}; it must be two whole numbers, as in (1, 4).")
            number, of = (whole("A number of the shard", part, 0) for part in self.shard)
            object.__setattr__(self, "shard", (number, of))
            if not 1 <= number <= of:
                raise UsageError(
                    f"There is no shard {number}/{of}: shards are numbered 1 to n, as in --shard 1/{max(of, 1)}."
                )

    def resolve(self, model: Model) -> ScanConfig:
        """The same configuration with every default that depends on the model filled in."""
        most = model.max_context
        context = self.context or min(most or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        if most is not None and context > most:
            raise UsageError(f"--context {context} is more than the {most} tokens {model.source} was built for.")
        batch_tokens = self.batch_tokens or (2048 if model.device.type == "cpu" else 65536)
        chosen = {"context": context, "batch_tokens": batch_tokens, "bos": self.bos and model.bos_id is not None}
        kind = {"device": model.placement, "dtype": str(model.dtype).removeprefix("torch.")}
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
