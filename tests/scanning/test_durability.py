"""Nothing is lost: shards, kills, interrupts, full disks, damaged runs, and the same bytes after all of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stopping import stop_after

import keyhole
from keyhole.errors import (
    CorpusError,
    DiskFull,
    Interrupted,
    ModelError,
    OutOfMemory,
    RunDamaged,
    RunError,
    RunExists,
    SchemaTooNew,
    ShardError,
)
from keyhole.scanning import cpu, results, shard
from keyhole.store import checkpoint, layout, unfinished

OPTIONS = {"top": 4, "unit": "line", "batch_tokens": 60}


def content(run: Path) -> dict[str, bytes]:
    """Every file of a run but the log, which says when."""
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


def checkpoint_of(out: Path) -> Path:
    """The checkpoint of an unfinished scan in one process."""
    return unfinished.Partial(out).path / "plan" / "1-of-1.checkpoint.npz"


@pytest.fixture
def whole(text: Path, tmp_path: Path) -> dict[str, bytes]:
    """What one pass gives."""
    return content(keyhole.scan(tiny("llama"), [text], out=tmp_path / "whole", **OPTIONS).path)


# Shards


@pytest.mark.slow(seconds=6)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 15),
    order=st.randoms(use_true_random=False),
    per=st.sampled_from(["sentence", "prefix"]),
    long=st.booleans(),
)
def test_any_number_of_shards_in_any_order_is_one_pass(
    count: int, order: random.Random, per: str, long: bool, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    options = {**OPTIONS, "per": per, **({"unit": "document", "context": 8} if long else {})}
    one = keyhole.scan(tiny("llama"), [text], out=folder / "one", **options)
    parts = [
        keyhole.scan(tiny("llama"), [text], out=folder / f"part{i}", shard=f"{i}/{count}", **options).path
        for i in range(1, count + 1)
    ]
    order.shuffle(parts)
    merged = keyhole.merge(folder / "merged", parts)
    assert content(merged.path) == content(one.path)


def test_missing_doubled_and_foreign_shards_are_named(text: Path, tmp_path: Path) -> None:
    model = tiny("llama")

    def part(number: int, name: str, **options: object) -> Path:
        return keyhole.scan(model, [text], out=tmp_path / name, shard=(number, 3), **{**OPTIONS, **options}).path  # type: ignore[arg-type]

    one, two, three = part(1, "a"), part(2, "b"), part(3, "c")
    with pytest.raises(ShardError, match="Missing shards: 2/3"):
        keyhole.merge(tmp_path / "m", [one, three])
    with pytest.raises(ShardError, match="1/3 is there twice: .*a and .*a2"):
        keyhole.merge(tmp_path / "m", [one, two, three, part(1, "a2")])
    with pytest.raises(ShardError, match="different scans: top is 2 in one and 4 in the other"):
        keyhole.merge(tmp_path / "m", [one, two, part(3, "c2", top=2)])
    with pytest.raises(ShardError, match="is a whole run"):
        keyhole.merge(tmp_path / "m", [keyhole.scan(model, [text], out=tmp_path / "w", **OPTIONS).path])
    with pytest.raises(ShardError, match="No shards"):
        keyhole.merge(tmp_path / "m", [])
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"Another text, the {i}th of quite another kind." for i in range(9)))
    foreign = keyhole.scan(model, [other], out=tmp_path / "f", shard="3/3", **OPTIONS).path
    with pytest.raises(ShardError, match="another corpus"):
        keyhole.merge(tmp_path / "m", [one, two, foreign])
    assert not list(tmp_path.glob("m*"))
    keyhole.merge(tmp_path / "m", [one, two, three])
    with pytest.raises(RunExists, match="--force"):
        keyhole.merge(tmp_path / "m", [one, two, three])


# Kill, resume


SCRIPT = """
import os
import sys
sys.path.insert(0, {tests!r})
import time
import torch
import keyhole
from families import tiny
from keyhole.models.model import Model
from keyhole.scanning import shard
shard.CHECKPOINT_SECONDS = 0.0
shard.CHECKPOINT_SHARE = 1e9
slow = Model.forward
def forward(self, ids):
    time.sleep(0.08)
    slow(self, ids)
Model.forward = forward
torch.set_num_threads(1)  # as the tests: the number of threads decides rounding
model = tiny("llama")
for _ in sys.stdin:  # a line asks for one more try, in a process of its own
    if not os.fork():
        print(os.getpid(), flush=True)
        keyhole.scan(model, [{text!r}], out={out!r}, resume=True, top=4, unit="line", batch_tokens=60)
        print("done", flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.mark.slow(seconds=12)
def test_kill_at_any_moment_then_resume_gives_the_same_bytes(
    text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """Every try is a process of its own, forked from one that has the model and has run nothing."""
    out = tmp_path / "killed"
    code = SCRIPT.format(tests=str(Path(__file__).parents[1] / "helpers"), text=str(text), out=str(out))
    moments = random.Random(5)
    resumed_from_checkpoint = 0
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, bufsize=1) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None

        def begin() -> int:
            parent.stdin.write("again\n")
            return int(parent.stdout.readline())

        def ended() -> list[str]:
            said = [parent.stdout.readline().strip()]
            return [*said, parent.stdout.readline().strip()] if said == ["done"] else said

        for _ in range(6):
            child = begin()
            time.sleep(moments.uniform(0, 0.8))
            with contextlib.suppress(ProcessLookupError):  # it may be done by now
                os.kill(child, signal.SIGKILL)
            assert ended() in ([f"{-signal.SIGKILL}"], ["done", "0"], ["done", f"{-signal.SIGKILL}"])
            resumed_from_checkpoint += checkpoint_of(out).exists()
        begin()
        assert ended() == ["done", "0"]
        parent.stdin.close()
    assert parent.returncode == 0
    assert resumed_from_checkpoint, "no kill came between two checkpoints: the test tests nothing"
    assert content(out) == whole
    assert not unfinished.Partial(out).path.exists()


def test_a_kill_between_the_last_two_steps(
    text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "almost"
    with monkeypatch.context() as patch:
        patch.setattr(
            unfinished.Partial,
            "put_in_place",
            lambda self: os.kill(os.getpid(), 0) or (_ for _ in ()).throw(SystemExit),
        )
        with pytest.raises(SystemExit):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    assert not out.exists()
    assert content(keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS).path) == whole


def test_ctrl_c_saves_what_is_done(
    text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Interrupted, match="Stopped after 3 of .* --resume"):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    assert signal.getsignal(signal.SIGINT) is before
    assert int(np.load(checkpoint_of(out))["done"]) == 3
    assert content(keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS).path) == whole


def test_ctrl_c_while_results_are_written_loses_nothing(
    text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = results.save_results

    def stop_and_save(*args: object) -> None:
        signal.raise_signal(signal.SIGINT)
        save(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("keyhole.scanning.scan.save_results", stop_and_save)
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)
    assert content(run.path) == whole


def test_a_scan_in_a_thread_leaves_signals_alone(text: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    thread = threading.Thread(target=lambda: keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS))
    thread.start()
    thread.join()
    assert content(tmp_path / "run") == whole


def test_an_unfinished_scan_is_never_overwritten_unasked(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    with pytest.raises(RunExists, match="unfinished scan.*--resume.*--force"):
        keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    with pytest.raises(RunError, match="top: was 4, now 9"):
        keyhole.scan(tiny("llama"), [text], out=out, resume=True, **{**OPTIONS, "top": 9})
    with pytest.raises(RunError, match="fingerprint: was"):
        keyhole.scan(tiny("mistral", hidden_act="gelu"), [text], out=out, resume=True, **OPTIONS)
    text.write_text(text.read_text() + "more\n")
    keyhole.scan(
        tiny("llama"), [text], out=out, resume=True, **OPTIONS
    )  # what was planned is still there, word for word


def test_a_corpus_that_changed_stops_a_resume(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    text.write_text(text.read_text().replace("mat", "hat"))
    with pytest.raises(RunError, match="corpus changed since the scan"):
        keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS)
    keyhole.scan(tiny("llama"), [text], out=out, force=True, **OPTIONS)


def test_a_damaged_checkpoint_says_so(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    file = checkpoint_of(out)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(RunDamaged, match="checkpoint.*--force"):
        keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS)


# Directories


def test_a_run_that_exists_is_kept_unless_forced(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    before = content(out)
    with pytest.raises(RunExists, match="There is a run at .*--force"):
        keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    assert content(keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS).path) == before
    with pytest.raises(RunError, match="finished scan of"):
        keyhole.scan(tiny("llama"), ["sotu"], out=out, resume=True, **OPTIONS)
    with pytest.raises(CorpusError):  # a forced scan that fails leaves the old run
        keyhole.scan(tiny("llama"), [tmp_path / "nothing.txt"], out=out, force=True, **OPTIONS)
    assert content(out) == before
    assert keyhole.scan(tiny("llama"), [text], out=out, force=True, **{**OPTIONS, "top": 2}).top == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunExists, match="There is something at"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "mine", **OPTIONS)


def test_two_scans_into_one_directory_are_refused(text: Path, tmp_path: Path) -> None:
    held = unfinished.Partial(tmp_path / "run")
    held.begin(resume=False, force=False)
    with pytest.raises(RunExists, match="Another process is writing"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", resume=True, **OPTIONS)
    held.close()


def test_a_failure_before_the_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(CorpusError, match="corpus is empty"):
        keyhole.scan(tiny("llama"), [empty], out=tmp_path / "run", **OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_units_without_a_token_are_counted_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    monkeypatch.setattr(type(model), "tokenize", lambda self, texts: [[] if t == "·" else [5, 6, 7] for t in texts])
    path = tmp_path / "a.txt"
    path.write_text("·\nword\n·\n")
    run = keyhole.scan(model, [path], out=tmp_path / "run", **OPTIONS)
    assert run.manifest["corpus"]["empty_units"] == 2
    assert set(run.units[run.units >= 0]) == {1}


# Disk and memory


def test_a_full_disk_keeps_what_is_done(
    text: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(shard, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(shard, "CHECKPOINT_SHARE", 1e9)
        real, calls = checkpoint.write_checkpoint, []

        def full(*args: object) -> None:
            calls.append(args)
            if len(calls) > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(*args)  # type: ignore[arg-type]

        patch.setattr(checkpoint, "write_checkpoint", full)
        with pytest.raises(DiskFull, match="disk is full.*--resume"):
            keyhole.scan(tiny("llama"), [text], out=out, **OPTIONS)
    assert content(keyhole.scan(tiny("llama"), [text], out=out, resume=True, **OPTIONS).path) == whole


def test_too_little_room_is_told_before_the_first_forward(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    monkeypatch.setattr(shard, "scan_batches", lambda *a: pytest.fail("a forward was run"))
    with pytest.raises(DiskFull, match="0 MB free and this scan writes"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)


@pytest.mark.slow(seconds=5)
def test_a_real_full_disk(text: Path, tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk where a write fails half way."""
    code = (
        f"import sys, resource, signal; sys.path.insert(0, {str(Path(__file__).parents[1] / 'helpers')!r})\n"
        "import keyhole; from families import tiny\n"
        "model = tiny('llama'); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        f"keyhole.scan(model, [{str(text)!r}], out={str(tmp_path / 'run')!r}, unit='line')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["forward", "index"])
def test_out_of_memory_halves_the_batch(
    where: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "batch_tokens": 200}
    expected = keyhole.scan(tiny("llama"), [text], out=tmp_path / "expected", **options)
    owner, name = (type(tiny("llama")), "forward") if where == "forward" else (cpu.CpuIndex, "update")
    real, sizes = getattr(owner, name), []

    def small(self: object, *args: object) -> None:
        rows = args[0] if where == "forward" else args[1]
        if rows.shape[0] > 2:  # type: ignore[union-attr]
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(rows.shape[0])  # type: ignore[union-attr]
        real(self, *args)

    monkeypatch.setattr(owner, name, small)
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **options)
    assert max(sizes) <= 2
    np.testing.assert_allclose(run.coefficients, expected.coefficients, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(run.units, expected.units)
    np.testing.assert_array_equal(run.stats.n, expected.stats.n)
    np.testing.assert_array_equal(run.stats.active, expected.stats.active)
    np.testing.assert_allclose(run.stats.mean, expected.stats.mean, rtol=1e-4, atol=1e-6)


def test_one_unit_that_does_not_fit_is_a_clear_error(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: object, ids: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(type(tiny("llama")), "forward", never)
    with pytest.raises(OutOfMemory, match=r"One window of \d+ tokens does not fit.*--context"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)


def test_a_bug_is_not_taken_for_lack_of_memory(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(2, monkeypatch, RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)


def test_coefficients_that_overflow_name_the_way_out(text: Path, tmp_path: Path) -> None:
    model = tiny("opt", ffn_dim=24, enable_bias=True)
    weight = model.blocks[2].fc1.bias
    before = weight.detach().clone()
    weight.data[3] = float("inf")
    try:
        with pytest.raises(ModelError, match="Layer 2 .* not finite in float32.*--dtype"):
            keyhole.scan(model, [text], out=tmp_path / "run", **OPTIONS)
    finally:
        weight.data.copy_(before)


# Damage


@pytest.fixture
def run(text: Path, tmp_path: Path) -> Path:
    return keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS).path


def test_a_file_cut_short_changed_or_gone(run: Path) -> None:
    file = run / "coefficients.npy"
    original = file.read_bytes()
    file.write_bytes(original[:-4])
    with pytest.raises(RunDamaged, match="coefficients.npy has .* bytes where"):
        keyhole.open(run)
    file.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(RunDamaged, match="content of coefficients.npy changed"):
        keyhole.open(run)
    file.unlink()
    with pytest.raises(RunDamaged, match="coefficients.npy is missing"):
        keyhole.open(run)
    file.write_bytes(original)
    keyhole.open(run)


def test_a_large_run_is_checked_by_verify(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHECK_ON_OPEN", 10)
    file = run / "positions.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(RunDamaged, match="content of positions.npy"):
        keyhole.verify(keyhole.open(run), model=tiny("llama"))


def test_manifests_that_are_not_ours(run: Path) -> None:
    file = run / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(SchemaTooNew, match="schema 99.*Upgrade: git pull && pip install -e"):
        keyhole.open(run)
    file.write_text(json.dumps({**manifest, "config": {**manifest["config"], "top": 1}}))
    with pytest.raises(RunDamaged, match="checksum does not match"):
        keyhole.open(run)
    file.write_text("{")
    with pytest.raises(RunDamaged, match="manifest.json is damaged"):
        keyhole.open(run)
    file.unlink()
    with pytest.raises(RunDamaged, match="no manifest.json"):
        keyhole.open(run)
    with pytest.raises(RunError, match="There is no run at"):
        keyhole.open(run / "nowhere")


# Verification


def test_verify_recomputes_from_the_text(run: Path, text: Path) -> None:
    found = keyhole.verify(keyhole.open(run), cells=30, model=tiny("llama"))
    assert found.ok
    assert found.from_text
    assert found.triggers > 100
    assert found.largest_difference < 1e-5
    text.unlink()
    assert not keyhole.verify(keyhole.open(run), cells=30, model=tiny("llama")).from_text


def test_verify_finds_a_coefficient_that_is_wrong(run: Path) -> None:
    opened = keyhole.open(run)
    opened.coefficients = np.array(opened.coefficients)
    opened.coefficients[opened.cells.place(1, 3), 0] *= 1.01
    found = keyhole.verify(opened, cells=72, model=tiny("llama"))
    assert not found.ok
    assert found.worst == "L1.3"


def test_verify_tells_how_far_it_is(run: Path, text: Path) -> None:
    steps: dict[str, list[int]] = {}

    def progress(what: str, total: int) -> Any:
        steps[what] = [total, 0]

        def advance(done: int) -> None:
            steps[what][1] += done

        return advance

    found = keyhole.verify(keyhole.open(run), cells=30, model=tiny("llama"), progress=progress)
    first = ["checking files, bytes", "loading the model"]
    assert list(steps) == [*first, "reading the corpus", "recomputing"]
    assert all(done == total > 0 for total, done in steps.values())
    text.unlink()
    steps.clear()
    again = keyhole.verify(keyhole.open(run), cells=30, model=tiny("llama"), progress=progress)
    assert list(steps) == [*first, "recomputing"]
    assert again.triggers == found.triggers


def test_verify_refuses_another_model_or_text(run: Path, text: Path) -> None:
    with pytest.raises(RunError, match="not the model that was scanned"):
        keyhole.verify(keyhole.open(run), model=tiny("mistral", hidden_act="gelu"))
    text.write_text(text.read_text().replace("cat", "cow"))
    with pytest.raises(RunError, match="corpus or the tokenizer changed"):
        keyhole.verify(keyhole.open(run), cells=72, model=tiny("llama"))
    text.write_text("The cat sat on the mat.\n")
    with pytest.raises(RunError, match="corpus changed: it ends before unit"):
        keyhole.verify(keyhole.open(run), cells=72, model=tiny("llama"))
