"""A control: a model whose feed-forward memories hold nothing that was learned, scanned like any other.

What a run says of its model means little until the same is measured on a control. A run's manifest says which one it is; the
weights are made by `models/control.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..common.checks import whole
from ..errors import UsageError

KINDS = {
    "random": "random weights",
    "shuffled": "shuffled weights",
}
"""The kinds of control, and what a run of each is called."""
LARGEST_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Control:
    kind: str
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise UsageError(f"There is no control {self.kind!r:.60}. The controls are: {', '.join(KINDS)}.")
        object.__setattr__(self, "seed", whole("control_seed", self.seed, 0, LARGEST_SEED))

    @property
    def title(self) -> str:
        """What it is, for reading."""
        return f"{KINDS[self.kind]}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_control(value: Any) -> bool:
    """Whether a value of a manifest is a control."""
    return (
        isinstance(value, dict)
        and set(value) == {"kind", "seed"}
        and isinstance(value["kind"], str)
        and value["kind"] in KINDS
        and type(value["seed"]) is int
        and 0 <= value["seed"] <= LARGEST_SEED
    )


def control_of(manifest: dict[str, Any]) -> Control | None:
    """The control that was scanned; None if it was the model itself."""
    told = manifest["model"].get("control")
    return None if told is None else Control(**told)
