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
    from .analyses.analyze import analyze
    from .analyses.columns import columns
    from .analyses.compare import compare
    from .errors import KeyholeError
    from .models import intervene
    from .models.families import FAMILIES, Family
    from .models.intervene import Edit
    from .models.load import load
    from .models.model import Model
    from .scanning.merge import merge
    from .scanning.scan import scan
    from .scanning.verify import verify
    from .store import shading
    from .store.run import Cell, Run, Stats, Trigger
    from .store.run import Run as open
    from .uses import prompt
    from .uses.edit import edit
    from .uses.generate import generate
    from .uses.leaks.leak import leak
    from .uses.pruning.prune import prune, prune_curve
    from .views.report import write as report

_MODULES = {
    "intervene": "models.intervene",
    "prompt": "uses.prompt",
    "report": "views.report.write",
    "shading": "store.shading",
}
_WHERE = {
    "Cell": "store.run",
    "Edit": "models.intervene",
    "FAMILIES": "models.families",
    "Family": "models.families",
    "KeyholeError": "errors",
    "Model": "models.model",
    "Run": "store.run",
    "Stats": "store.run",
    "Trigger": "store.run",
    "analyze": "analyses.analyze",
    "columns": "analyses.columns",
    "compare": "analyses.compare",
    "edit": "uses.edit",
    "generate": "uses.generate",
    "leak": "uses.leaks.leak",
    "load": "models.load",
    "merge": "scanning.merge",
    "prune": "uses.pruning.prune",
    "prune_curve": "uses.pruning.prune",
    "scan": "scanning.scan",
    "verify": "scanning.verify",
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
    "columns",
    "compare",
    "edit",
    "generate",
    "intervene",
    "leak",
    "load",
    "merge",
    "open",
    "prompt",
    "prune",
    "prune_curve",
    "report",
    "scan",
    "shading",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "open":
        return import_module(".store.run", __name__).Run
    if name in _MODULES:
        return import_module(f".{_MODULES[name]}", __name__)
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module 'keyhole' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
