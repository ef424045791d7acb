"""The scan's definition, spelled out: every unit alone, every prefix, dictionaries and sorting. Slow and plain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import keyhole
from keyhole.models.model import Model


@dataclass
class Prefix:
    unit: int
    position: int
    count: int
    coefficients: np.ndarray  # [cells], layer after layer
    next_id: int | None


def every_prefix(model: Model, texts: list[str], *, bos: bool = True, room: int | None = None) -> list[Prefix]:
    """The distinct prefixes of units, each at its first occurrence, with the coefficients a bare forward gives."""
    found: dict[tuple[int, ...], Prefix] = {}
    for unit, text in enumerate(texts):
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        step = room or len(ids) or 1
        for start in range(0, len(ids), step):
            window = ids[start : start + step]
            values = forward(model, window, bos)
            for place in range(len(window)):
                key = tuple(window[: place + 1])
                if key in found:
                    found[key].count += 1
                    continue
                position = start + place
                next_id = ids[position + 1] if position + 1 < len(ids) else None
                found[key] = Prefix(unit, position, 1, values[place], next_id)
    return list(found.values())


def forward(model: Model, ids: list[int], bos: bool) -> np.ndarray:
    """[tokens, cells] inputs of the down-projections, layer after layer, found by the module names the architectures use, not by the family table."""
    special = [model.tokenizer.bos_token_id] if bos and model.tokenizer.bos_token_id is not None else []
    pattern = re.compile(r"\.(mlp\.(c_proj|down_proj|dense_4h_to_h|fc_out|fc2)|layers\.\d+\.fc2)$")
    modules = [module for name, module in model.lm.named_modules() if pattern.search(name)]
    assert len(modules) == model.layers
    kept: list[Any] = []
    handles = [m.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach().clone())) for m in modules]
    with torch.no_grad():
        model.lm(input_ids=torch.tensor([special + ids], device=model.device), use_cache=False)
    for handle in handles:
        handle.remove()
    parts = [x.reshape(len(special) + len(ids), -1)[len(special) :].float().cpu().numpy() for x in kept]
    return np.concatenate(parts, axis=1)


def triggers(prefixes: list[Prefix], top: int, per: str, sign: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[cells, top] each: coefficient descending, then unit, then position ascending; above zero only."""
    cells = len(prefixes[0].coefficients)
    coefficients = np.full((cells, top), np.nan, np.float32)
    units, positions = np.full((cells, top), -1), np.full((cells, top), -1)
    for cell in range(cells):
        ranked = sorted(prefixes, key=lambda p: (-sign * p.coefficients[cell], p.unit, p.position))
        seen: set[int] = set()
        slot = 0
        for prefix in ranked:
            value = prefix.coefficients[cell]
            if sign * value <= 0 or slot == top:
                break
            if per == "sentence" and prefix.unit in seen:
                continue
            seen.add(prefix.unit)
            coefficients[cell, slot] = value
            units[cell, slot], positions[cell, slot] = prefix.unit, prefix.position
            slot += 1
    return coefficients, units, positions


def orientation(prefixes: list[Prefix]) -> np.ndarray:
    """[cells] the sign of each cell's strongest coefficient; of equally strong ones, the first in the corpus decides."""
    found = np.ones(len(prefixes[0].coefficients), np.int8)
    for cell in range(len(found)):
        strongest = min(prefixes, key=lambda p: (-abs(p.coefficients[cell]), p.unit, p.position))
        found[cell] = -1 if strongest.coefficients[cell] < 0 else 1
    return found


def assert_equals_reference(run: keyhole.Run, model: Model, texts: list[str], **options: object) -> None:
    """Units were scanned one by one (batch_tokens=1), as the reference runs them: every bit must agree."""
    prefixes = every_prefix(model, texts, **options)  # type: ignore[arg-type]
    top, per = run.top, run.manifest["config"]["per"]
    assert run.gated == model.gated
    if run.gated:
        signs = orientation(prefixes)
        np.testing.assert_array_equal(run.orientation, signs)
        for prefix in prefixes:
            prefix.coefficients = prefix.coefficients * signs
    else:
        assert (run.orientation == 1).all()
    for sign, side in ((1, ""), (-1, "_negative")):
        coefficients, units, positions = triggers(prefixes, top, per, sign)
        if sign < 0 and not model.signed:
            assert np.isnan(coefficients).all()
        np.testing.assert_array_equal(getattr(run, "units" + side), units)
        np.testing.assert_array_equal(getattr(run, "positions" + side), positions)
        np.testing.assert_array_equal(getattr(run, "coefficients" + side), coefficients)
    every = np.stack([prefix.coefficients for prefix in prefixes]).astype(np.float64)
    assert (run.stats.n == len(prefixes)).all()
    if run.gated:
        assert np.isnan(run.stats.active).all()
        np.testing.assert_array_equal(run.stats.dead, (every == 0).all(0))
    else:
        np.testing.assert_array_equal(run.stats.active, (every > 0).sum(0))
        np.testing.assert_array_equal(run.stats.dead, ~(every > 0).any(0))
    np.testing.assert_array_equal(run.stats.max, every.max(0).astype(np.float32))
    np.testing.assert_array_equal(run.stats.min, every.min(0).astype(np.float32))
    scale = np.maximum(np.abs(every).max(0), 1e-9)
    np.testing.assert_allclose(run.stats.mean / scale, every.mean(0) / scale, atol=1e-6)
    np.testing.assert_allclose(run.stats.std / scale, every.std(0) / scale, atol=1e-4)
    np.testing.assert_allclose(run.stats.rms / scale, np.sqrt((every**2).mean(0)) / scale, atol=1e-4)
    counts = {(prefix.unit, prefix.position): prefix.count for prefix in prefixes}
    follows = {(prefix.unit, prefix.position): prefix.next_id for prefix in prefixes}
    for cell in range(0, run.cells.size(1), 5):
        for trigger in run.triggers(1, cell):
            assert trigger.count == counts[trigger.unit, trigger.position]
            assert trigger.next_id == follows[trigger.unit, trigger.position]
