"""Keyhole: look through the feed-forward memories of a transformer.

    model = keyhole.load("path-or-id")
    run   = keyhole.scan(model, ["a.txt"], out="runs/x")
    cell  = keyhole.open("runs/x")["L12.345"]

Names are imported when they are first used: `import keyhole` loads neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import intervene, prompt, shading
    from .analysis import analyze
    from .engine import scan
    from .errors import KeyholeError
    from .intervene import Edit
    from .merging import merge
    from .models import FAMILIES, Family, Model, load
    from .recheck import verify
    from .run import Cell, Run, Stats, Trigger
    from .run import Run as open

_MODULES = ("intervene", "prompt", "shading")
_WHERE = {
    "Cell": "run",
    "Edit": "intervene",
    "FAMILIES": "models",
    "Family": "models",
    "KeyholeError": "errors",
    "Model": "models",
    "Run": "run",
    "Stats": "run",
    "Trigger": "run",
    "analyze": "analysis",
    "load": "models",
    "merge": "merging",
    "scan": "engine",
    "verify": "recheck",
}

__all__ = [
    "FAMILIES",
    "Cell",
    "Edit",
    "Family",
    "KeyholeError",
    "Model",
    "Run",
    "Stats",
    "Trigger",
    "analyze",
    "intervene",
    "load",
    "merge",
    "open",
    "prompt",
    "scan",
    "shading",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "open":
        return import_module(".run", __name__).Run
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module 'keyhole' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
