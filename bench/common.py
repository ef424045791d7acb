"""What the benchmarks share: the demo's model, a plan over its corpus, a line about the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from keyhole import demo
from keyhole.inputs import corpus
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.scanning.config import ScanConfig
from keyhole.scanning.plan import Plan, build
from keyhole.store.unfinished import PlanFiles


def machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, torch {torch.__version__}"


def demo_model() -> Model:
    demo.check_installed()
    return load(str(demo.model_file()))


def plan_for(model: Model, folder: Path, sources: list[str], tokens: int | None, config: ScanConfig) -> Plan:
    (folder / "plan").mkdir(parents=True)
    config = config.resolve(model)
    assert config.context is not None
    assert config.batch_tokens is not None
    files = PlanFiles(folder)
    summary = build(
        files,
        corpus.units(sources, config.unit),
        model.tokenize,
        vocabulary=model.encoder.get_vocab_size(with_added_tokens=True),
        context=config.context,
        starts=int(config.bos),
        batch_tokens=config.batch_tokens,
        max_tokens=tokens,
    )
    return Plan(files, summary)
