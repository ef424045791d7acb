"""Train a small real model in minutes, for measurements that random weights cannot answer.

    python bench/train.py paper TOKENIZER OUT TEXT... [--tokens 80000000] [--valid FILE]

TOKENIZER is a folder with a fast tokenizer; TEXT is what Keyhole reads as a corpus. Documents follow each other with the start
token before each, and are cut into rows of `CONTEXT` tokens, which are read once, in random order. OUT becomes a checkpoint that
transformers loads, in float16, with `training.json` beside the weights.

    paper   the paper's shape: 16 layers, d = 1024, d_m = 4096, ReLU. 16,384 tokens of vocabulary make it 218M weights
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from keyhole.inputs import corpus

CONTEXT = 512
ROWS = 128
"""Rows of a step."""
RATE, WARMUP, LEAST = 6e-4, 150, 0.1
"""The learning rate, the steps until it is reached, and its last value as a share of it."""
CHUNK = 4096
"""Documents that are tokenised together."""

SHAPES: dict[str, dict[str, Any]] = {"paper": {"n_layer": 16, "n_embd": 1024, "n_inner": 4096, "n_head": 8}}


def tokens_of(tokenizer: Tokenizer, names: list[str], start: int, most: int) -> np.ndarray:
    """The text as one array, the start token before each document."""
    parts: list[np.ndarray] = []
    left = most
    for texts in _chunks(unit.text for unit in corpus.units(names, "document")):
        flat = [
            token for each in tokenizer.encode_batch(texts, add_special_tokens=False) for token in (start, *each.ids)
        ]
        parts.append(np.array(flat[:left], np.uint16))
        left -= len(parts[-1])
        if left <= 0:
            break
    return np.concatenate(parts)


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def rows_of(tokens: np.ndarray) -> np.ndarray:
    """[rows, CONTEXT]; what is left at the end is dropped."""
    return tokens[: len(tokens) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)


def make(shape: str, vocabulary: int, start: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            **SHAPES[shape],
            vocab_size=vocabulary,
            n_positions=CONTEXT,
            activation_function="relu",
            bos_token_id=start,
            eos_token_id=start,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )


def optimiser(lm: torch.nn.Module, device: torch.device) -> torch.optim.AdamW:
    """Weight decay for matrices alone."""
    matrices = [weight for weight in lm.parameters() if weight.dim() >= 2]
    rest = [weight for weight in lm.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=device.type == "cuda")


def rate(step: int, steps: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * done))


def train(lm: GPT2LMHeadModel, rows: np.ndarray, device: torch.device) -> list[tuple[int, float]]:
    """One pass over the rows."""
    order = np.random.default_rng(0).permutation(len(rows))
    steps = len(rows) // ROWS
    run: Any = torch.compile(lm) if device.type == "cuda" else lm
    adam = optimiser(lm, device)
    losses, began = [], time.perf_counter()
    for step in range(steps):
        for group in adam.param_groups:
            group["lr"] = RATE * rate(step, steps)
        ids = torch.from_numpy(rows[order[step * ROWS : (step + 1) * ROWS]].astype(np.int64)).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = run(input_ids=ids, use_cache=False).logits
            loss = cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % 50 == 49 or step == steps - 1:
            losses.append((step + 1, loss.item()))
            done = (step + 1) * ROWS * CONTEXT
            print(
                f"step {step + 1} of {steps}: {losses[-1][1]:.3f}, {done / (time.perf_counter() - began):,.0f} tokens/s",
                flush=True,
            )
    return losses


@torch.inference_mode()
def perplexity(lm: GPT2LMHeadModel, rows: np.ndarray, device: torch.device) -> float:
    total, count = 0.0, 0
    for at in range(0, len(rows), 16):
        ids = torch.from_numpy(rows[at : at + 16].astype(np.int64)).to(device)
        logits = lm(input_ids=ids, use_cache=False).logits.float()
        total += float(
            cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="sum")
        )
        count += ids[:, 1:].numel()
    return math.exp(total / count)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("shape", choices=SHAPES)
    asked.add_argument("tokenizer", type=Path)
    asked.add_argument("out", type=Path)
    asked.add_argument("texts", nargs="+")
    asked.add_argument("--tokens", type=int, default=80_000_000)
    asked.add_argument("--valid")
    options = asked.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    start = tokenizer.token_to_id(json.loads((options.tokenizer / "tokenizer_config.json").read_text())["bos_token"])
    began = time.perf_counter()
    rows = rows_of(tokens_of(tokenizer, options.texts, start, options.tokens))
    print(f"{rows.size:,} tokens in {time.perf_counter() - began:.0f} s", flush=True)
    lm = make(options.shape, tokenizer.get_vocab_size(), start).to(device)
    print(f"{machine()}: {sum(each.numel() for each in lm.parameters()) / 1e6:.1f}M weights", flush=True)
    began = time.perf_counter()
    losses = train(lm, rows, device)
    about: dict[str, Any] = {"tokens": rows.size, "seconds": time.perf_counter() - began, "loss": losses}
    if options.valid:
        held = rows_of(tokens_of(tokenizer, [options.valid], start, 1 << 20))
        about |= {"valid": Path(options.valid).name, "perplexity": perplexity(lm.eval(), held, device)}
        print(f"perplexity on {about['valid']}: {about['perplexity']:.2f}", flush=True)
    lm.half().save_pretrained(options.out)
    for file in options.tokenizer.glob("tokenizer*"):
        shutil.copyfile(file, options.out / file.name)
    (options.out / "training.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
