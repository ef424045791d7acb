"""The scan's definition, spelled out: every unit alone, every prefix, dictionaries and sorting. Slow and plain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from keyhole.models.model import Model


@dataclass
class Prefix:
    unit: int
    position: int
    count: int
    coefficients: np.ndarray  # [layers, cells]
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
                found[key] = Prefix(unit, position, 1, values[:, place], next_id)
    return list(found.values())


def forward(model: Model, ids: list[int], bos: bool) -> np.ndarray:
    """Inputs of the down-projections, found by the module names the architectures use, not by the family table."""
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
    return np.stack([x.reshape(len(special) + len(ids), -1)[len(special) :].float().cpu().numpy() for x in kept])


def triggers(prefixes: list[Prefix], top: int, per: str, sign: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[layers, cells, top] each: coefficient descending, then unit, then position ascending; above zero only."""
    layers, cells = prefixes[0].coefficients.shape
    coefficients = np.full((layers, cells, top), np.nan, np.float32)
    units, positions = np.full((layers, cells, top), -1), np.full((layers, cells, top), -1)
    for layer in range(layers):
        for cell in range(cells):
            ranked = sorted(prefixes, key=lambda p: (-sign * p.coefficients[layer, cell], p.unit, p.position))
            seen: set[int] = set()
            slot = 0
            for prefix in ranked:
                value = prefix.coefficients[layer, cell]
                if sign * value <= 0 or slot == top:
                    break
                if per == "sentence" and prefix.unit in seen:
                    continue
                seen.add(prefix.unit)
                coefficients[layer, cell, slot] = value
                units[layer, cell, slot], positions[layer, cell, slot] = prefix.unit, prefix.position
                slot += 1
    return coefficients, units, positions
