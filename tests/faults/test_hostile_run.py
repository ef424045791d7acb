"""A run that someone hands you: it names no model that is loaded unasked, runs no code, reads no file, and a value in it
that is not what it should be is refused with one plain line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import save, tiny
from hostile import reseal
from stopping import stop_after
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.common import files
from keyhole.errors import Interrupted, KeyholeError, ModelError, RunDamaged, ShardError, UntrustedSource
from keyhole.store import checkpoint, manifest, trust, unfinished

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}
CODE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import LlamaConfig as Config, LlamaForCausalLM as LM
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "code-was-run"


@pytest.fixture
def model(tmp_path: Path, marker: Path) -> str:
    """A model whose folder brings code along, to be run by anyone who trusts it."""
    folder = Path(save(tiny("llama"), tmp_path / "model"))
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.LM"}
    config["model_type"] = "evil"
    (folder / "evil-config.json").write_text(json.dumps(config))
    return str(folder)


def arm(model: str) -> None:
    """From here on the model's own configuration asks for its code."""
    shutil.copy(Path(model) / "evil-config.json", Path(model) / "config.json")


def trusting(about: dict[str, Any]) -> None:
    about["config"]["trust_remote_code"] = True


@pytest.fixture
def run(text: Path, model: str, tmp_path: Path) -> Path:
    return keyhole.scan(model, [text], out=tmp_path / "run", device="cpu", **OPTIONS).path


def invoke(*args: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "keyhole.cli", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow(seconds=2)
def test_a_run_from_elsewhere_names_its_model_and_nothing_is_loaded(run: Path, model: str, marker: Path) -> None:
    reseal(run, trusting)
    arm(model)
    opened = keyhole.open(run)  # reading it is safe
    assert opened["L0.0"].stats.n > 0
    for load in (lambda: keyhole.verify(opened), lambda: keyhole.analyze(run, only=["mutation"])):
        with pytest.raises(UntrustedSource, match=r"not made by you.*model'.*--model"):
            load()
    code, said = invoke("verify", run, "--cells", 2)
    assert (code, "was not made by you on this machine" in said, "Traceback" in said) == (2, True, False)
    done = CliRunner().invoke(app, ["scan", "--from", str(run / "manifest.json"), "--out", str(run.parent / "again")])
    assert isinstance(done.exception, UntrustedSource)
    assert "names the model" in str(done.exception)
    assert "and the corpus" in str(done.exception)
    assert not marker.exists()


def test_a_named_model_is_loaded_without_its_code_unless_this_command_says_so(
    run: Path, model: str, marker: Path, text: Path
) -> None:
    reseal(run, trusting)
    arm(model)
    opened = keyhole.open(run)
    for load in (
        lambda: keyhole.verify(opened, model=model),
        lambda: keyhole.analyze(run, only=["mutation"], model=model),
        lambda: keyhole.scan(model, [text], out=run.parent / "x", **OPTIONS),
    ):
        with pytest.raises(ModelError):
            load()
    done = CliRunner().invoke(app, ["scan", model, str(text), "--from", str(run / "manifest.json"), "--out", f"{run}2"])
    assert isinstance(done.exception, ModelError)
    assert not marker.exists()


def test_even_ones_own_run_grants_no_trust(run: Path, model: str, marker: Path) -> None:
    about = json.loads((run / "manifest.json").read_text())
    about["config"]["trust_remote_code"] = True
    sealed = files.seal(about)
    (run / "manifest.json").write_text(json.dumps(sealed))
    log = files.read_json(run / "log.json", "")
    files.write_json(run / "log.json", log | trust.signature(sealed["checksum"]))
    arm(model)
    assert trust.is_own(run, sealed["checksum"])
    with pytest.raises(ModelError):
        keyhole.verify(keyhole.open(run))
    assert not marker.exists()


def test_a_prompt_loads_nothing_that_the_run_names(run: Path, model: str, marker: Path) -> None:
    from starlette.testclient import TestClient

    from keyhole.web.routes import create

    reseal(run, trusting)
    arm(model)
    client = TestClient(create(keyhole.open(run)), base_url="http://127.0.0.1")
    answer = client.post("/api/prompt", json={"text": "The cat"})
    assert answer.status_code == 503
    assert "not made by you" in answer.json()["error"]["message"]
    assert not marker.exists()


def test_ones_own_run_is_ones_own_word(run: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = keyhole.open(run)
    assert keyhole.verify(opened, cells=2).from_text
    moved = tmp_path / "elsewhere"
    run.rename(moved)
    assert keyhole.verify(keyhole.open(moved), cells=2).ok
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "someone else"))
    with pytest.raises(UntrustedSource):
        keyhole.verify(keyhole.open(moved), cells=2)
    assert not keyhole.verify(keyhole.open(moved), cells=2, model=model).from_text  # nor is its corpus read


def test_the_key_is_private_and_a_missing_home_only_means_asking(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "a", **OPTIONS)
    key = tmp_path / "data" / "keyhole" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert trust.is_own(run.path, run.manifest["checksum"])
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    other = keyhole.scan(tiny("llama"), [text], out=tmp_path / "b", **OPTIONS)
    assert not trust.is_own(other.path, other.manifest["checksum"])
    assert not trust.is_own(run.path, run.manifest["checksum"])


def test_a_merge_is_ones_own_if_all_its_parts_are(text: Path, tmp_path: Path) -> None:
    parts = [keyhole.scan(tiny("llama"), [text], out=tmp_path / f"{i}", shard=(i, 2), **OPTIONS).path for i in (1, 2)]
    merged = keyhole.merge(tmp_path / "own", parts)
    assert trust.is_own(merged.path, merged.manifest["checksum"])
    (parts[1] / "log.json").unlink()
    merged = keyhole.merge(tmp_path / "not", parts)
    assert not trust.is_own(merged.path, merged.manifest["checksum"])


# Values that are not what they should be


HOSTILE: list[Any] = [None, True, -1, 0, 10**30, 1.5, float("nan"), "", "x", "\x1b[31m", [], [1], {}, {"a": 1}, [[[]]]]


@pytest.mark.slow(seconds=2)
def test_no_value_of_a_manifest_leads_to_anything_but_a_plain_refusal(run: Path, tmp_path: Path) -> None:
    original = (run / "manifest.json").read_text()
    about = json.loads(original)
    places: list[tuple[str, ...]] = [(part, name) for part in manifest.FIELDS for name in about[part]]
    places += [("schema",), ("model",), ("corpus",), ("config",), ("files",), ("files", "tokens.npy"), ("versions",)]
    refused = accepted = 0
    for place in places:
        for value in HOSTILE:

            def change(about: dict[str, Any], place: tuple[str, ...] = place, value: Any = value) -> None:
                inner = about
                for name in place[:-1]:
                    inner = inner[name]
                inner[place[-1]] = value

            reseal(run, change)
            try:
                opened = keyhole.open(run)
                for cell in (opened.cell(0, 0), opened.layer(opened.layers - 1)[0]):
                    assert len(cell.triggers) <= opened.top
                assert invoke_info(opened)
                accepted += 1
            except KeyholeError:
                refused += 1
            (run / "manifest.json").write_text(original)
    assert refused > 300
    assert accepted > 20


def invoke_info(run: keyhole.Run) -> bool:
    from keyhole.views import terminal as show

    console = show.console()
    with console.capture() as shown:
        console.print(show.info(run))
    return bool(shown.get())


CELLS: list[Any] = [
    *HOSTILE,
    24,
    [{"layer": "L0", "offset": 0, "width": 24}],
    [{"layer": f"L{i}", "offset": 24 * i, "width": 24} for i in range(4)],
    [{"layer": f"L{i}", "offset": 0, "width": 24} for i in range(3)],
    [{"layer": "L0", "offset": 24 * i, "width": 24} for i in range(3)],
    [{"layer": f"L{i}", "offset": 2**62 * i, "width": 2**62} for i in range(3)],
    [{"layer": "L0", "offset": 0, "width": 10**40}],
    [{"layer": "L0", "offset": 0, "width": 1 << 20, "experts": 1 << 30}],
    [{"layer": "L0", "offset": 0, "width": 1 << 39}],
    [{"layer": "L0", "offset": 0, "width": 71}, {"layer": "L1", "offset": 71, "width": True}],
    [{"layer": "L" + "9" * 30, "offset": 0, "width": 72}],
    [{"layer": "L0", "offset": 0, "width": 72, "x": 1}],
    [{"layer": f"L{i}", "offset": i, "width": 1} for i in range(73)],
    [["L0", 0, 72]],
]


@pytest.mark.parametrize("cells", CELLS, ids=lambda cells: repr(cells)[:40])
def test_an_axis_of_cells_that_does_not_fit_is_refused(run: Path, cells: Any) -> None:
    reseal(run, lambda about: about["model"].update(cells=cells))
    with pytest.raises(RunDamaged, match=r"model\.cells|does not fit the manifest"):
        keyhole.open(run)


def test_an_axis_that_fits_the_arrays_is_read_as_it_says(run: Path) -> None:
    """The same 72 cells as layers of other widths: no file says otherwise."""
    widths = [{"layer": "L0", "offset": 0, "width": 70}, {"layer": "L1", "offset": 70, "width": 2}]
    before = keyhole.open(run)["L2.23"].triggers
    reseal(run, lambda about: about["model"].update(cells=widths))
    assert keyhole.open(run)["L1.1"].triggers == before


def replace_array(run: Path, name: str, array: np.ndarray[Any, Any]) -> None:
    np.save(run / f"{name}.npy", array)

    def listed(about: dict[str, Any]) -> None:
        about["files"][f"{name}.npy"] = files.fingerprint(run / f"{name}.npy")

    reseal(run, listed)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("units", lambda a: a + 1_000_000),
        ("units", lambda a: np.where(a == a.max(), -2, a)),
        ("units", lambda a: a.astype(np.float64)),
        ("units", lambda a: a[:, :1]),
        ("positions", lambda a: a + 1_000_000),
        ("positions", lambda a: a - 1_000_000),
        ("coefficients", lambda a: a.astype(np.int32)),
        ("unit_offsets", lambda a: a[::-1].copy()),
        ("unit_offsets", lambda a: a * 7),
        ("tokens", lambda a: a[:-1]),
        ("tokens", lambda a: np.array([object()] * 3, dtype=object)),
        ("repeated_tokens", lambda a: a + 10**9),
        ("sums", lambda a: a[0]),
        ("active", lambda a: a.astype("S8")),
    ],
)
def test_arrays_that_do_not_fit_are_refused(run: Path, name: str, change: Callable[[Any], Any]) -> None:
    before = np.load(run / f"{name}.npy")
    replace_array(run, name, change(before))
    with pytest.raises(RunDamaged, match=name):
        keyhole.open(run)


def test_names_of_files_that_lead_elsewhere(run: Path) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "a/b.npy", "..", "x.npy\0"):

        def listed(about: dict[str, Any], name: str = name) -> None:
            about["files"][name] = {"bytes": 1, "sha256": "0" * 64}

        original = (run / "manifest.json").read_text()
        reseal(run, listed)
        with pytest.raises(RunDamaged, match="list of files"):
            keyhole.open(run)
        (run / "manifest.json").write_text(original)


def test_logs_and_notes_of_any_kind_are_harmless(run: Path) -> None:
    for value in HOSTILE:
        for log in (value, {"seconds": value}, {"seconds": {"scan": value}}, {"signature": value, "stamps": value}):
            (run / "log.json").write_text(json.dumps(files.seal(log) if isinstance(log, dict) else log))
            assert invoke_info(keyhole.open(run))
            assert not trust.is_own(run, keyhole.open(run).manifest["checksum"])


def test_a_manifest_that_is_too_deep_or_no_text(run: Path) -> None:
    for content in (b"[" * 100_000, b"\xff\xfe", b"", b"[]", b"null", b'{"schema": 1}', os.urandom(500)):
        (run / "manifest.json").write_bytes(content)
        with pytest.raises(KeyholeError):
            keyhole.open(run)


@pytest.mark.parametrize("name", ["manifest.json", "log.json", "analyses.json", "tokens.npy", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_file_that_never_ends_is_not_read(run: Path, name: str, kind: str) -> None:
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    if name == "log.json":
        assert invoke_info(keyhole.open(run))
    else:
        with pytest.raises(KeyholeError):
            keyhole.open(run)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + b"\0" * 300,
        b"",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % 2**70
        + b" " * 50
        + b"\n",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O'}\n",
    ],
)
def test_arrays_that_are_none(run: Path, content: bytes) -> None:
    (run / "units.npy").write_bytes(content)
    listed = {"units.npy": files.fingerprint(run / "units.npy")}
    reseal(run, lambda about: about["files"].update(listed))
    with pytest.raises(RunDamaged, match="units.npy"):
        keyhole.open(run)


def test_a_signature_of_any_kind(run: Path) -> None:
    log = files.read_json(run / "log.json", "")
    for value in ("é", "", "0" * 64, 5, None, ["x"]):
        files.write_json(run / "log.json", log | {"signature": value})
        assert not trust.is_own(run, keyhole.open(run).manifest["checksum"])


def test_a_key_that_was_cut_short_is_made_again(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    key = tmp_path / "data" / "keyhole" / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "own", **OPTIONS)
    assert len(key.read_bytes()) == 32
    assert trust.is_own(run.path, run.manifest["checksum"])


def test_shards_that_do_not_fit_each_other(text: Path, tmp_path: Path) -> None:
    parts = [keyhole.scan(tiny("llama"), [text], out=tmp_path / f"{i}", shard=(i, 2), **OPTIONS).path for i in (1, 2)]
    other = keyhole.scan(
        tiny("llama", layers=2, num_hidden_layers=2), [text], out=tmp_path / "x", shard=(2, 2), **OPTIONS
    ).path
    fingerprint = keyhole.open(parts[0]).manifest["model"]["fingerprint"]
    reseal(other, lambda about: about["model"].update(fingerprint=fingerprint))
    with pytest.raises(ShardError, match="another model"):
        keyhole.merge(tmp_path / "all", [parts[0], other])


@pytest.mark.parametrize("change", [{"model": 5}, {"config": []}, {"corpus": 7}, {"model": None}])
def test_an_unfinished_run_with_an_odd_identity(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)
    partial = unfinished.Partial(tmp_path / "run")
    identity = files.read_json(partial.plan.identity, "")
    files.write_json(partial.plan.identity, identity | change)
    with pytest.raises(KeyholeError):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", resume=True, **OPTIONS)
    files.write_json(partial.plan.identity, identity)
    summary = files.read_json(partial.plan.summary, "")
    for other in (summary | {"files": [1]}, {"files": summary["files"]}, summary | {"extra": 1}):
        files.write_json(partial.plan.summary, other)
        with pytest.raises(RunDamaged, match="--force"):
            keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", resume=True, **OPTIONS)


def test_a_checkpoint_with_any_flipped_bit_is_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)
    file = unfinished.Partial(tmp_path / "run").path / "plan" / "1-of-1.checkpoint.npz"
    whole = file.read_bytes()
    assert checkpoint.read_checkpoint(file, unfinished.AGAIN)["done"] == 2
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(RunDamaged, match="checkpoint.*--force"):
            checkpoint.read_checkpoint(file, unfinished.AGAIN)
