"""The export: the same addresses, the same answers, whole or not at all."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import explored
import msgspec
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import DiskFull, RunError, RunExists
from keyhole.export import site as export
from keyhole.store import annotations
from keyhole.web import addresses
from keyhole.web import routes as web


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("export"))
    annotations.save_note(run, {"layer": 0, "cell": 3, "text": "odd"})
    return run


@pytest.mark.slow(seconds=2)
def test_every_file_is_what_the_server_answers(run: keyhole.Run, tmp_path: Path) -> None:
    site = tmp_path / "a" / "site"
    result = CliRunner().invoke(app, ["export", str(run.path), str(site)])
    assert result.exit_code == 0, result.output
    written = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    assert {"index.html", "static/vega.js", "data/run.json", "data/cells/2/23.json"} <= set(written)
    assert f"{len(written):,} files" in result.output
    with TestClient(web.create(run), base_url="http://localhost") as client:
        for name, path in written.items():
            answer = client.get(f"/{name}")
            assert answer.status_code == 200, name
            if name == "data/run.json":
                assert json.loads(path.read_bytes()) == answer.json() | {"live": False}
            elif name.endswith(".json"):
                assert json.loads(path.read_bytes()) == answer.json()
                kind = name.split("/")[1].removesuffix(".json")
                msgspec.json.decode(path.read_bytes(), type=addresses.DATA[kind].answer)
            else:
                assert path.read_bytes() == answer.content
    assert sum(name.startswith("data/cells/") for name in written) == len(run.cells)
    assert [path.name for path in site.parent.iterdir()] == ["site"]


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
