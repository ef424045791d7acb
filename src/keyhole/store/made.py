"""What a model was made from, if Keyhole made it: the file `keyhole.json` beside its weights, and what a run's manifest keeps of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "keyhole.json"
LARGEST = 64 << 20
"""Bytes of the file, at most: that of a pruned model lists the cells that stay."""
MOST, LONGEST = 4096, 200
"""Edits that a run keeps, and characters of the token of each."""
SCOPES = {"uniform": "in every layer", "global": "over all layers together"}


def of_folder(source: str) -> dict[str, Any] | None:
    """What a run keeps of the file in a model's folder; None if there is none, or it is not one of ours."""
    file = Path(source) / FILE
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            return None
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("made"), str):
        return None
    kept = {name: found[name] for name in ("made", "source", "keep", "method", "scope") if name in found}
    edits = found.get("edits")
    if isinstance(edits, list):
        kept |= {"edits": len(edits), "edited": [_kept(each) for each in edits[:MOST] if isinstance(each, dict)]}
    return kept


def _kept(edit: dict[str, Any]) -> dict[str, Any]:
    """What a run keeps of an edit: its new value is in the weights."""
    kept = {name: edit[name] for name in ("layer", "cell", "scale", "by") if type(edit.get(name)) in (int, float)}
    towards = edit.get("towards")
    kept |= {"towards": towards[:LONGEST]} if isinstance(towards, str) else {}
    return kept | ({"value": True} if edit.get("value") is not None else {})


def told(manifest: Mapping[str, Any]) -> str | None:
    """The same as a sentence, of a run's manifest; None if the model is not one that Keyhole made."""
    made = manifest["model"].get("made")
    if not isinstance(made, dict) or not isinstance(made.get("source"), str):
        return None
    name = os.path.basename(os.path.normpath(made["source"]))
    if made.get("made") == "prune" and _is_share(made.get("keep")):
        scope = SCOPES.get(str(made.get("scope")), "")
        return f"Pruned: {100 * made['keep']:g} % of the cells of {name} are left {scope}, chosen by {_short(made.get('method'))}."
    if made.get("made") == "edit":
        edits = made.get("edits")
        count = (
            f"{edits:,} edit{'' if edits == 1 else 's'} of cells"
            if type(edits) is int and edits >= 0
            else "Edits of cells"
        )
        return f"Edited: {count} {'is' if edits == 1 else 'are'} baked into the weights of {name}."
    return None


def _short(value: Any) -> str:
    return value[:40] if isinstance(value, str) else "an unknown method"


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value < 1
