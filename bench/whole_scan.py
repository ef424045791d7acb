"""A whole scan, from text files to a finished run: seconds by stage.

    python bench/whole_scan.py MODEL_FOLDER TEXT... [--top 50] [--unit line] [--device cuda] [--runs 2]

If MODEL_FOLDER holds a configuration and a tokenizer but no weights, a model of that configuration with random weights is
written to a temporary folder first: the same shape, so the same work. The first run also compiles the kernels.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch


def with_weights(folder: Path, where: Path, dtype: str) -> Path:
    """The folder itself, or a copy with random weights."""
    if list(folder.glob("*.safetensors")):
        return folder
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    target = where / folder.name
    lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=getattr(torch, dtype))
    lm.save_pretrained(target)
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, target / file.name)
    size = sum(parameter.numel() for parameter in lm.parameters())
    print(f"random weights: {size / 1e6:.1f}M parameters, {dtype}", flush=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--top", type=int, default=50)
    parser.add_argument("--unit", default="line")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--runs", type=int, default=2)
    args = parser.parse_args()

    import keyhole

    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(temporary)
        model = with_weights(args.model, where, args.dtype)
        for number in range(args.runs):
            began = time.perf_counter()
            run = keyhole.scan(
                str(model),
                args.texts,
                out=where / f"run{number}",
                top=args.top,
                unit=args.unit,
                device=args.device,
                dtype=args.dtype,
                max_tokens=args.max_tokens,
                batch_tokens=args.batch_tokens,
            )
            total = time.perf_counter() - began
            seconds = json.loads((run.path / "log.json").read_text())["seconds"]
            corpus = run.manifest["corpus"]
            lines.append(
                f"run {number}: {total:6.1f} s, {total - seconds['load']:6.1f} without loading the model; "
                + ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items())
                + f"; {corpus['tokens']:,} tokens, {corpus['units']:,} units, {corpus['scanned_prefixes']:,} prefixes, "
                f"{corpus['tokens'] / seconds['scan'] / 1e6:.2f}M tokens/s in the loop"
            )
            print(lines[-1], flush=True)
        if args.runs > 1:
            files = [json.loads((where / f"run{n}" / "manifest.json").read_text())["files"] for n in range(args.runs)]
            print("every run the same bytes:", all(each == files[0] for each in files))


if __name__ == "__main__":
    main()
