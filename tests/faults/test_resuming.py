"""Resuming and merging: the same scan or a clear refusal, and nothing lost at any last step. What a scan is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from families import save, tiny

import keyhole
from keyhole.errors import Interrupted, RunError, RunExists, UsageError
from keyhole.store import layout, unfinished

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}


def content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


def scan(text: Path, out: Path, **options: Any) -> keyhole.Run:
    return keyhole.scan(tiny("llama"), [text], out=out, **{**OPTIONS, **options})


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Resuming what is finished


@pytest.mark.slow(seconds=2)
def test_resuming_a_finished_run_compares_the_whole_scan(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = scan(text, out)
    whole = content(out)
    for changed, said in (
        ({"top": 9}, "top: was 3, now 9"),
        ({"per": "prefix"}, "per: was 'sentence', now 'prefix'"),
        ({"context": 32}, "context: was 64, now 32"),
        ({"shard": "1/2"}, "shard: was None"),
        ({"hold_out": 0.5}, "hold_out: was 0.0, now 0.5"),
    ):
        with pytest.raises(RunError, match=f"finished scan of another kind .*{said}"):
            scan(text, out, resume=True, **changed)
    with pytest.raises(RunError, match="fingerprint: was"):
        keyhole.scan(tiny("llama", hidden_act="gelu"), [text], out=out, resume=True, **OPTIONS)
    assert content(scan(text, out, resume=True).path) == whole
    os.utime(text)  # another time, the same text
    assert scan(text, out, resume=True).manifest == run.manifest
    original = text.read_text("utf-8")
    for other in (original.replace("mat", "hat"), original + "One more line.\n", original[:80]):
        text.write_text(other, encoding="utf-8")
        with pytest.raises(RunError, match="whose text changed since"):
            scan(text, out, resume=True)
    assert content(out) == whole


def test_resuming_what_was_sealed_compares_it_too(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Partial, "put_in_place", lambda self: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            scan(text, out)
    partial = unfinished.Partial(out).path
    with pytest.raises(RunError, match="top: was 3, now 9"):
        scan(text, out, resume=True, top=9)
    whole = (partial / "tokens.npy").read_bytes()
    (partial / "tokens.npy").write_bytes(whole[:-2] + b"\0\7")
    with pytest.raises(RunError, match="content of tokens.npy changed"):
        scan(text, out, resume=True)
    (partial / "tokens.npy").write_bytes(whole)
    scan(text, out, resume=True)


def test_a_kill_right_after_two_runs_changed_places(text: Path, tmp_path: Path) -> None:
    """Where names can be swapped, the old run is called NAME.partial for a moment."""
    new = content(scan(text, tmp_path / "run", top=2).path)
    scan(text, tmp_path / "old", top=3).path.rename(tmp_path / "run.partial")
    assert content(scan(text, tmp_path / "run", resume=True, top=2).path) == new
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run"]


@pytest.mark.slow
def test_an_interrupted_merge_says_what_to_do(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [scan(text, tmp_path / f"part{i}", shard=f"{i}/2").path for i in (1, 2)]
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'helpers')!r})\n"
        "import os, keyhole; from keyhole.scanning import merge\n"
        "merge.save_results = lambda *a: os._exit(9)\n"
        f"keyhole.merge({str(tmp_path / 'all')!r}, {[str(part) for part in parts]!r})"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    with pytest.raises(RunExists, match="unfinished merge is at .*Merge again with --force"):
        keyhole.merge(tmp_path / "all", parts)
    with pytest.raises(RunError, match="no run at .*unfinished merge"):
        keyhole.open(tmp_path / "all")
    merged = keyhole.merge(tmp_path / "all", parts, force=True)
    assert content(merged.path) == content(scan(text, tmp_path / "one").path)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["rename", "rmtree"])
def test_a_merge_that_is_killed_at_its_last_steps_is_still_a_merge(text: Path, tmp_path: Path, step: str) -> None:
    parts = [scan(text, tmp_path / f"part{i}", shard=f"{i}/2").path for i in (1, 2)]
    owner = "pathlib.Path" if step == "rename" else "shutil"
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'helpers')!r})\n"
        "import os, pathlib, shutil, keyhole; from keyhole.store import unfinished\n"
        "real = unfinished.Partial.put_in_place\n"
        "def last(self):\n"
        f"    {owner}.{step} = lambda *a, **o: os._exit(9)\n"
        "    real(self)\n"
        "unfinished.Partial.put_in_place = last\n"
        f"keyhole.merge({str(tmp_path / 'all')!r}, {[str(part) for part in parts]!r})"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    one = content(scan(text, tmp_path / "one").path)
    if step == "rename":
        with pytest.raises(RunExists, match="unfinished merge is at .*Merge again with --force"):
            keyhole.merge(tmp_path / "all", parts)
    merged = keyhole.merge(tmp_path / "all", parts, force=True)
    assert content(merged.path) == one
    assert sorted(path.name for path in tmp_path.glob("all*")) == ["all"]


def test_many_shards_are_merged_with_few_open_files(text: Path, tmp_path: Path) -> None:
    import resource

    parts = [scan(text, tmp_path / f"part{i}", shard=(i, 12)).path for i in range(1, 13)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, before[1]))
    try:
        merged = keyhole.merge(tmp_path / "all", parts)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert content(merged.path) == content(scan(text, tmp_path / "one").path)


def test_a_scan_that_waits_for_an_analysis_is_kept(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    scan(text, out)
    with layout.locked(out), pytest.raises(RunExists, match="new run is finished, and kept in .*run.partial.*--resume"):
        scan(text, out, force=True, top=2)
    assert keyhole.open(out).top == 3
    assert scan(text, out, resume=True, top=2).top == 2


def test_resuming_in_processes_what_one_process_began_deletes_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stopping import stop_after

    folder = save(tiny("llama"), tmp_path / "model")
    options = {**OPTIONS, "device": "cpu"}
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(folder, [text], out=tmp_path / "run", **options)
    kept = tree(tmp_path / "run.partial")
    with pytest.raises(RunError, match="begun with one process"):
        keyhole.scan(folder, [text], out=tmp_path / "run", processes=2, resume=True, **options)
    assert tree(tmp_path / "run.partial") == kept


def test_a_merge_checks_the_content_of_large_shards(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [scan(text, tmp_path / f"part{i}", shard=f"{i}/2").path for i in (1, 2)]
    monkeypatch.setattr(layout, "CHECK_ON_OPEN", 10)
    file = parts[1] / "sums.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    with pytest.raises(RunError, match="content of sums.npy changed"):
        keyhole.merge(tmp_path / "all", parts)
    assert not list(tmp_path.glob("all*"))


# Edits and revision


def test_a_manifest_repeats_edits_and_revision(text: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from keyhole.cli import app

    folder = save(tiny("llama"), tmp_path / "model")
    edits = tmp_path / "edits.json"
    edits.write_text(json.dumps(keyhole.intervene.dump([keyhole.Edit(1, 3, -2.0)], keyhole.load(folder))))
    options = ["--top", "3", "--unit", "line", "--batch-tokens", "60"]
    asked = ["scan", folder, str(text), "--out", str(tmp_path / "a"), "--edits", str(edits), "--revision", "abc"]
    done = CliRunner().invoke(app, [*asked, *options])
    assert done.exit_code == 0, done.output
    first = keyhole.open(tmp_path / "a")
    assert first.manifest["model"]["edits"] == [{"layer": 1, "cell": 3, "scale": -2.0, "positions": None}]
    assert first.manifest["model"]["revision"] == "abc"
    again = ["scan", "--from", str(tmp_path / "a" / "manifest.json"), "--out", str(tmp_path / "b")]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output
    assert content(tmp_path / "b") == content(tmp_path / "a")


@pytest.mark.slow(seconds=10)
def test_a_scan_in_processes_passes_edits_and_revision_on(text: Path, tmp_path: Path) -> None:
    folder = save(tiny("llama"), tmp_path / "model")
    edits = tmp_path / "edits.json"
    edits.write_text(json.dumps(keyhole.intervene.dump([keyhole.Edit(1, 3, -2.0)], keyhole.load(folder))))
    options = {**OPTIONS, "device": "cpu", "revision": "abc", "edits": edits}
    one = keyhole.scan(folder, [text], out=tmp_path / "one", **options)
    two = keyhole.scan(folder, [text], out=tmp_path / "two", processes=2, **options)
    assert content(two.path) == content(one.path)
    assert two.manifest["model"]["edits"][0]["scale"] == -2.0


def test_a_scan_of_a_model_that_is_edited_for_a_while_says_so(text: Path, tmp_path: Path) -> None:
    """A ReLU cell that is scaled by −1 has negative coefficients only, and its triggers are on the negative side."""
    model = tiny("gpt2", activation_function="relu")
    plain = keyhole.scan(model, [text], out=tmp_path / "plain", **OPTIONS)
    with keyhole.intervene.applied(model, [keyhole.Edit(1, 3, -1.0)]):
        edited = keyhole.scan(model, [text], out=tmp_path / "edited", **OPTIONS)
    assert model.edits == ()
    assert edited.manifest["model"]["fingerprint"] != plain.manifest["model"]["fingerprint"]
    assert edited.manifest["model"]["edits"] == [{"layer": 1, "cell": 3, "scale": -1.0, "positions": None}]
    assert edited.signed
    assert not plain.signed
    assert not edited["L1.3"].triggers
    before, after = plain["L1.3"].triggers, edited["L1.3"].triggers_negative
    assert before
    assert [(t.unit, t.position, -t.coefficient) for t in after] == [
        (t.unit, t.position, t.coefficient) for t in before
    ]


def test_numbers_of_numpy_and_numbers_that_cannot_be(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    run = scan(text, tmp_path / "run", top=np.int64(3), context=np.int32(64), hold_out=np.float32(0))
    assert run.top == 3
    for name, value in (("top", 0), ("top", 1.5), ("top", True), ("top", "3"), ("context", 1), ("top", 10**30)):
        with pytest.raises(UsageError, match=f"{name} is .*whole number"):
            scan(text, tmp_path / "bad", **{name: value})
    with monkeypatch.context() as patch:
        patch.setattr(os, "sysconf", lambda name: 10_000)  # 10,000 pages of 10,000 bytes
        with pytest.raises(UsageError, match="--top 100,000 needs 0.2 GB for 72 cells, and this machine has 0.1 GB"):
            scan(text, tmp_path / "bad", top=100_000)
    for shard in ((1,), (1, 2, 3), ("a", 2), (1.5, 2), 7, (3, 2)):
        with pytest.raises(UsageError, match=r"[Ss]hard"):
            scan(text, tmp_path / "bad", shard=shard)
    for name, value in (("sources", 5), ("sources", [5]), ("model", 5), ("processes", "2"), ("processes", 0)):
        options = {"model": tiny("llama"), "sources": [text], name: value}
        with pytest.raises(UsageError):
            keyhole.scan(options.pop("model"), options.pop("sources"), tmp_path / "bad", **options)
    for share in ("much", float("nan"), None, 1):
        with pytest.raises(UsageError, match="hold_out is"):
            scan(text, tmp_path / "bad", hold_out=share)
    assert not list(tmp_path.glob("bad*"))
