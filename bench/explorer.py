"""How fast the explorer answers: a cell's JSON from a run of 65,536 cells, and the first page.

    python bench/explorer.py                    # 16 layers × 4,096 cells, 25 triggers each
    python bench/explorer.py --requests 20000
    python bench/explorer.py --map --layers 80 --cells 163840 --top 1    # the overview's map of 13 million cells

The run is made up: arrays of the real size and shape with random numbers, so that all cells differ and caches do not help.
Other work on the machine affects the wall-clock times, not the processor times. Requests go through the whole app, guard and
gzip included, one after another, each for another cell. The first page is what a browser needs to draw the overview, asked
of a server that has just started. With --map, only what the map asks for is measured, and the run has neither values nor shades:
the first picture, a zoom to single cells, and their order, each the first time and again.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import keyhole
from keyhole.cells import Cells
from keyhole.scanning.config import ScanConfig
from keyhole.store import below, layout, planes, shading, unfinished
from keyhole.store.values import KEPT, index
from keyhole.web.contract import Explorer
from keyhole.web.routes import create

VOCABULARY, UNITS, LENGTH = 16_384, 60_000, 32


def made_up(folder: Path, layers: int, cells: int, top: int, *, bare: bool = False) -> Path:
    """A run directory of this size, its values and shades included, unless it is to be bare."""
    rng = np.random.default_rng(0)
    out = folder / "run"
    partial = unfinished.Partial(out)
    partial.begin(resume=False, force=False)
    tokenizer(VOCABULARY).save(str(partial.path / "tokenizer.json"))
    lengths = rng.integers(4, 2 * LENGTH - 4, UNITS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    partial.save("tokens", rng.integers(0, VOCABULARY, offsets[-1]).astype(np.uint16))
    partial.save("unit_offsets", offsets)
    partial.save("unit_documents", np.zeros(UNITS, np.int32))
    partial.save("unit_starts", np.zeros(UNITS, np.int64))
    partial.save("repeated_tokens", np.zeros(0, np.int64))
    partial.save("repeated_counts", np.zeros(0, np.int64))
    axis = Cells.of_widths([cells] * layers)
    shape = (len(axis), top)
    units = (UNITS * rng.random(shape) ** 3).astype(np.int32)  # some units are triggers of most cells
    positions = (rng.random(shape) * lengths[units]).astype(np.int32)
    partial.save("coefficients", -np.sort(-rng.gamma(2.0, size=shape).astype(np.float32), axis=-1))
    partial.save("units", units)
    partial.save("positions", positions)
    prefixes = int(offsets[-1])
    partial.save("active", rng.integers(1, prefixes, len(axis)))
    partial.save("sums", rng.integers(1, 1 << 30, (len(axis), 2, 2)))
    partial.save("extremes", np.tile(np.array([9, 0], np.float32), (len(axis), 1)))
    counts = {"documents": 1, "units": UNITS, "tokens": prefixes, "distinct_prefixes": prefixes, "hash": "0" * 64}
    counts |= {"split_units": 0, "empty_units": 0, "held_out_units": 0, "truncated": False}
    manifest = {
        "schema": layout.SCHEMA,
        "keyhole": keyhole.__version__,
        "model": {"source": "made-up", "revision": None, "family": "gpt2", "fingerprint": "0" * 64}
        | {"input": "causal text", "cells": axis.as_json(), "signed": False, "gated": False},
        "corpus": {"sources": ["made-up.txt"], "scanned_prefixes": prefixes, **counts},
        "config": asdict(ScanConfig(top=top, context=512, batch_tokens=2048)) | {"n_special": 1},
        "versions": {},
    }
    partial.finish(manifest, {})
    if bare:
        return out
    add_values(out, rng, len(axis))
    add_shades(out, rng, lengths[units], positions)
    return out


def tokenizer(size: int) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġ{'abcdefghijklmnop'[i % 16]}{'aeiou'[i % 5]}{i:x}" for i in range(size - len(letters))]
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*letters, *words])}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return core


def add_values(out: Path, rng: np.random.Generator, cells: int) -> None:
    shape = (cells, KEPT)
    for side, sign in (("top", 1), ("bottom", -1)):
        tokens = rng.integers(0, VOCABULARY, shape).astype(np.int32)
        logits = sign * -np.sort(-rng.random(shape).astype(np.float32), axis=-1)
        offsets, places = index(tokens, sign * logits, VOCABULARY)
        arrays = {"tokens": tokens, "logits": logits, "offsets": offsets, "places": places}
        for name, array in arrays.items():
            part = f"index_{side}_{name}" if name in ("offsets", "places") else f"{side}_{name}"
            layout.save_array(out, layout.lens_array("raw", part), array)
    for name in ("max_prob", "entropy"):
        layout.save_array(out, layout.lens_array("raw", name), rng.random(cells).astype(np.float32))
    layout.save_array(out, layout.lens_array("raw", "ranks"), rng.integers(1, VOCABULARY, cells).astype(np.int32))
    layout.save_array(out, layout.lens_array("raw", "norms"), rng.random(cells).astype(np.float32))
    layout.save_array(out, "similar_cells", rng.integers(0, cells, (cells, 10)).astype(np.int32))
    layout.save_array(out, "similar_cosines", -np.sort(-rng.random((cells, 10)).astype(np.float32), axis=-1))
    layout.save_lens(out, "raw", {})
    layout.save_similar(out)


def add_shades(out: Path, rng: np.random.Generator, lengths: Any, positions: Any) -> None:
    begin, end = shading.spans(lengths.astype(np.int64), positions.astype(np.int64), 511)
    sizes = (end - begin).sum(-1).ravel()
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    counts = rng.integers(0, 1000, (len(lengths), shading.BINS)).astype(np.uint32)
    shades = rng.integers(-127, 128, int(offsets[-1])).astype(np.int8)
    firing = rng.integers(0, 20_000, len(lengths)).astype(np.uint32)
    places = np.stack([np.arange(2_048), np.zeros(2_048)], 1).astype(np.int32)
    examples = below.choose(rng.random((len(lengths), 64)).astype(np.float32), rng)
    arrays = (shades, offsets, counts, firing, places, *examples)
    for name, array in zip((*layout.SHADING, *layout.BELOW), arrays, strict=True):
        layout.save_array(out, name, array)
    settings = {"before": shading.BEFORE, "after": shading.AFTER, "bins": shading.BINS, "examples": below.EXAMPLES}
    layout.save_shading(out, settings | {"prefixes": 20_000, "of": 1_000_000})


async def ask(app: Any, path: str) -> int:
    """One request through the app; how many bytes came back."""
    size, status = 0, 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal size, status
        size += len(message.get("body", b""))
        status = message.get("status", status)

    headers = [(b"host", b"localhost"), (b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope | {"headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send)
    assert status == 200, (path, status)
    return size


async def cells_per(run: keyhole.Run, requests: int) -> None:
    app, rng = create(run), np.random.default_rng(1)
    began = time.perf_counter()
    await ask(app, "/data/cells/0/0.json")
    print(f"first cell, indexes included  {1000 * (time.perf_counter() - began):8.1f} ms")
    took, worked, sizes = [], [], []
    for _ in range(requests):
        layer, cell = run.cells.split(int(rng.integers(len(run.cells))))
        path = f"/data/cells/{layer}/{cell}.json"
        began, busy = time.perf_counter(), time.process_time()
        sizes.append(await ask(app, path))
        took.append(1000 * (time.perf_counter() - began))
        worked.append(1000 * (time.process_time() - busy))
    for what, times in (("by the clock", took), ("of the processor", worked)):
        p50, p99, most = np.quantile(times, (0.5, 0.99, 1.0))
        print(f"a cell, {what:22}p50 {p50:.2f} ms   p99 {p99:.2f} ms   max {most:.1f} ms   ({requests:,} requests)")
    print(f"                              {np.mean(sizes):,.0f} bytes, gzip")


def first_page(path: Path) -> None:
    """Everything that the overview is drawn from, asked of a fresh server."""
    command = [sys.executable, "-m", "keyhole.cli", "serve", str(path), "--no-open", "--port", "0"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        base = server.stdout.readline().split()[1]
        started = time.perf_counter()
        asked = ("", "static/app.js", "static/style.css", "data/run.json", "data/map.json", "data/maps/1.json")
        for part in (*asked, "data/cells/0/0.json"):
            with urllib.request.urlopen(base + part) as response:
                response.read()
            print(f"  {part or 'index.html':28}{1000 * (time.perf_counter() - started):8.1f} ms after the server began")
        print(f"first page                    {1000 * (time.perf_counter() - started):8.1f} ms")
        print(f"from the command              {1000 * (time.perf_counter() - began):8.1f} ms")
    finally:
        server.terminate()
        server.wait()


async def pieces(run: keyhole.Run) -> None:
    """What the map asks for, piece by piece."""
    random = np.random.default_rng(0).normal(size=(2, len(run.cells), 2)).astype(np.float32)
    sides = {name: planes.Side(at, (0.1, 0.1), (0.1, 0.1), 1) for name, at in zip(planes.SIDES, random, strict=True)}
    planes.save(run, "pca", 0, sides)
    app = create(run)
    asked = {"list": "map", "first picture": "maps/0"}
    if Explorer(run).maps.blocks:
        asked |= {"zoom to single cells": "mapcells/0/3", "their order": "mapranks/0/3"}
        asked |= {"planes": "planes", "plane": "pointbins/0/0", "zoom to points": "pointcells/0/0/3"}
    for what, path in asked.items():
        for time_ in ("first", "again"):
            began = time.perf_counter()
            size = await ask(app, f"/data/{path}.json")
            print(f"{what:22}{time_:8}{1000 * (time.perf_counter() - began):8.1f} ms   {size:10,} bytes, gzip")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--map", action="store_true", help="only what the map of all cells asks for")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="keyhole-explorer-"))
    try:
        path = made_up(folder, options.layers, options.cells, options.top, bare=options.map)
        run = keyhole.open(path)
        print(f"{run.cells.summary}, top {run.top}, {run.size / 1e6:,.0f} MB on disk")
        if options.map:
            asyncio.run(pieces(run))
            return
        first_page(path)
        asyncio.run(cells_per(run, options.requests))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
