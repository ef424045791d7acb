"""The export: the same addresses, the same answers, whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import explored
import msgspec
import packed
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import DiskFull, RunError, RunExists
from keyhole.export import packs, texts
from keyhole.export import site as export
from keyhole.store import collections
from keyhole.web import addresses, schema
from keyhole.web import routes as web
from keyhole.web.contract import Explorer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("export"))
    collections.save_note(run, {"layer": 0, "cell": 3, "text": "odd"})
    return run


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("shared", [True, False])
def test_every_answer_is_what_the_server_answers(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Also if the corpus is too large to be one file, and if there are many packs."""
    monkeypatch.setattr(texts, "SHARED", texts.SHARED if shared else 0)
    monkeypatch.setattr(packs, "BYTES", packs.BYTES if shared else 2000)
    site = tmp_path / "a" / "site"
    result = CliRunner().invoke(app, ["export", str(run.path), str(site)])
    assert result.exit_code == 0, result.output
    written = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    assert {"index.html", "static/vega.js", "data/run.json", "data/map.json", "data/cells-0-0.pack"} <= set(written)
    assert ("data/texts.pack" in written) == shared
    assert len([name for name in written if name.endswith(".pack")]) < 16 if shared else "data/cells-1-0.pack"
    assert f"{len(written):,} files" in result.output
    answers = packed.answers(site)
    with TestClient(web.create(run), base_url="http://localhost") as client:
        for name, path in written.items():
            if not name.startswith("data/"):
                assert path.read_bytes() == client.get(f"/{name}").content, name
        assert set(answers) == set(Explorer(run).paths())
        about = answers["run.json"].pop("export")
        for name, found in answers.items():
            answer = client.get(f"/data/{name}").json()
            assert found == (answer | {"live": False} if name == "run.json" else answer), name
            msgspec.convert(answer, type=addresses.DATA[name.split("/")[0].removesuffix(".json")].answer)
    msgspec.convert(about, type=schema.Export)
    assert sum(name.startswith("cells/") for name in answers) == len(run.cells)
    assert [path.name for path in site.parent.iterdir()] == ["site"]


def test_the_same_run_gives_the_same_bytes(run: keyhole.Run, tmp_path: Path) -> None:
    one, two = (export.export(run, tmp_path / name).path for name in ("one", "two"))
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_nothing_names_the_folders_of_this_machine(run: keyhole.Run, tmp_path: Path) -> None:
    export.export(run, tmp_path / "site")
    for path in (tmp_path / "site" / "data").glob("*.json"):
        assert str(run.path.parent) not in path.read_text("utf-8")


@pytest.mark.slow(seconds=2)
def test_only_an_export_is_replaced(run: keyhole.Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    told: list[int] = []
    export.export(run, site, progress=lambda what, total: told.append)
    assert sum(told) == len(run.cells)
    with pytest.raises(RunExists, match="--force"):
        export.export(run, site)
    (site / "data" / "stale.json").write_text("{}")
    export.export(run, site, force=True)
    assert not (site / "data" / "stale.json").exists()
    for other in (run.path, tmp_path / "mine", tmp_path / "file"):
        if other != run.path:
            other.mkdir() if other.name == "mine" else other.write_text("mine")
            (other / "thesis.txt").write_text("mine") if other.is_dir() else None
        with pytest.raises(RunExists, match="not an export"):
            export.export(run, other, force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EACCES, RunError)])
def test_what_cannot_be_finished_leaves_what_was(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    site = tmp_path / "site"
    export.export(run, site)
    before = (site / "data" / "run.json").read_bytes()
    real, left = Path.write_bytes, [20]

    def full(self: Path, content: bytes) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, "no")
        return real(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(error):
        export.export(run, site, force=True)
    assert (site / "data" / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_an_interrupt_leaves_nothing(run: keyhole.Run, tmp_path: Path) -> None:
    def stop(what: str, total: int) -> Any:
        def advance(done: int) -> None:
            raise KeyboardInterrupt

        return advance

    with pytest.raises(KeyboardInterrupt):
        export.export(run, tmp_path / "site", progress=stop)
    assert list(tmp_path.iterdir()) == []
