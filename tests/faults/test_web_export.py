"""An export over what is there: only exports go, nothing half-made stays, and what is renamed is on disk."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import explored
import pytest

import keyhole
from keyhole.common import files
from keyhole.errors import DiskFull, KeyholeError, RunError, RunExists, UsageError
from keyhole.export import site as module
from keyhole.export.site import export
from keyhole.store.unfinished import Partial


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def exported(run: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, tmp_path_factory.mktemp("exported") / "site").path


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before anything is made."""

    def work(*args: Any) -> Any:
        raise AssertionError("the export began")

    monkeypatch.setattr(module, "Explorer", work)


@pytest.mark.parametrize("suffix", [".partial", ".replaced"])
@pytest.mark.parametrize("entry", ["lock", "plan/summary.json", "coefficients.npy", ".git/config", "data/mine.txt"])
def test_what_stands_beside_and_is_no_export_stays(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, entry: str
) -> None:
    file = tmp_path / f"site{suffix}" / entry
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    before = tree(tmp_path)
    no_work(monkeypatch)
    with pytest.raises(RunExists, match=entry.split("/")[0]):
        export(run, tmp_path / "site")
    assert tree(tmp_path) == before


def test_an_unfinished_scan_of_that_name_stays(run: keyhole.Run, tmp_path: Path) -> None:
    scan = Partial(tmp_path / "site")
    scan.begin(resume=False, force=False)
    scan.save("tokens", run.tokens)
    scan.close()
    before = tree(tmp_path)
    assert any(name.startswith("site.partial/") for name in before)
    with pytest.raises(RunExists, match="not an export"):
        export(run, tmp_path / "site", force=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "entry", [".git/HEAD", "CNAME", "data/notes.txt", "static/sub/x.js", "data/cells/x/1.json", ".nojekyll"]
)
def test_an_export_with_something_else_in_it_stays(
    run: keyhole.Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    site = Path(shutil.copytree(exported, tmp_path / "site"))
    (site / entry).parent.mkdir(parents=True, exist_ok=True)
    (site / entry).write_text("mine")
    before = tree(tmp_path)
    no_work(monkeypatch)
    named = next(part for part in (entry, *map(str, Path(entry).parents)) if part in str(refusal(run, site)))
    assert named not in (".", "data", "static")
    assert tree(tmp_path) == before


def refusal(run: keyhole.Run, site: Path) -> KeyholeError:
    with pytest.raises(RunExists) as raised:
        export(run, site, force=True)
    return raised.value


def test_a_link_in_an_export_is_not_ours(run: keyhole.Run, exported: Path, tmp_path: Path) -> None:
    site = Path(shutil.copytree(exported, tmp_path / "site"))
    shutil.rmtree(site / "static")
    (tmp_path / "mine").mkdir()
    (site / "static").symlink_to(tmp_path / "mine")
    assert "static" in str(refusal(run, site))


def test_another_page_with_the_same_names_is_no_export(run: keyhole.Run, tmp_path: Path) -> None:
    (tmp_path / "site" / "data").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text("mine")
    (tmp_path / "site" / "data" / "run.json").write_text('{"runs": []}')
    assert "not an export" in str(refusal(run, tmp_path / "site"))


@pytest.mark.slow
@pytest.mark.parametrize("there", ["nothing", "empty", "export"])
def test_what_a_link_leads_to_is_written(run: keyhole.Run, exported: Path, tmp_path: Path, there: str) -> None:
    target, link = tmp_path / "disk" / "target", tmp_path / "link"
    target.parent.mkdir()
    if there == "export":
        shutil.copytree(exported, target)
        (target / "data" / "stale.json").write_text("{}")
    elif there == "empty":
        target.mkdir()
    link.symlink_to(target)
    assert export(run, link, force=there == "export").path == target
    assert link.is_symlink()
    assert tree(link) == tree(exported)
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("name", ["site", "site.partial", "site.replaced"])
def test_never_the_run_itself_nor_what_holds_it(run: keyhole.Run, tmp_path: Path, name: str) -> None:
    for folder in (tmp_path / name, tmp_path / "deep" / name / "data"):
        moved = keyhole.open(shutil.copytree(run.path, folder))
        before = tree(moved.path)
        holder = tmp_path if folder.parent == tmp_path else tmp_path / "deep"
        with pytest.raises(RunExists):
            export(moved, holder / "site", force=True)
        assert tree(moved.path) == before


def test_the_folder_one_is_in(
    run: keyhole.Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(shutil.copytree(exported, tmp_path / "site"))
    (tmp_path / "empty").mkdir()
    no_work(monkeypatch)
    for here in (tmp_path / "empty", site, site / "data"):
        monkeypatch.chdir(here)
        with pytest.raises(UsageError, match="folder you are in"):
            export(run, Path() if here != site / "data" else Path(".."), force=True)
    with pytest.raises(UsageError, match="below"):
        export(run, Path("/"), force=True)


@pytest.mark.parametrize("where", ["file/site", "file/deep/site", "x" * 250, "x" * 247, "x" * 300, "loop/site"])
def test_where_nothing_can_be_written(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    no_work(monkeypatch)
    with pytest.raises(RunError, match="cannot be written"):
        export(run, tmp_path / where)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_folder_that_may_not_be_written(run: keyhole.Run, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(RunError, match="cannot be written"):
        export(run, tmp_path / "shut" / "site")


def fails_at(target: str, number: int) -> Callable[..., Any]:
    def failing(*args: Any, **options: Any) -> Any:
        raise OSError(number, "no")

    return failing


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["_flush", "_put_in_place"])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_at_the_end_leaves_nothing_but_what_was(
    run: keyhole.Run,
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    step: str,
    there: bool,
) -> None:
    site = tmp_path / "new" / "deep" / "site"
    if there:
        shutil.copytree(exported, site)
    before = tree(tmp_path)
    monkeypatch.setattr(module, step, fails_at(step, number))
    with pytest.raises(DiskFull if number == errno.ENOSPC else RunError):
        export(run, site, force=True)
    assert tree(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("swaps", [True, False])
def test_an_export_is_replaced_with_and_without_swapping(
    run: keyhole.Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    site = Path(shutil.copytree(exported, tmp_path / "site"))
    shutil.copytree(exported, tmp_path / "site.partial")  # left by one that was killed
    shutil.copytree(exported, tmp_path / "site.replaced")
    (site / "data" / "stale.json").write_text("{}")
    if not swaps:
        monkeypatch.setattr(files, "swap", lambda one, other: False)
    export(run, site, force=True)
    assert tree(site) == tree(exported)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_where_the_last_renaming_fails_the_old_export_is_back(
    run: keyhole.Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(shutil.copytree(exported, tmp_path / "site"))
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "site.partial":
            raise OSError(errno.EIO, "no")
        return real(self, target)

    monkeypatch.setattr(files, "swap", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RunError):
        export(run, site, force=True)
    assert tree(site) == tree(exported)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_two_names_are_swapped_in_one_step(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not files.swap(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this file system cannot")
    assert sorted(tree(tmp_path)) == ["one", "one/other", "other", "other/one"]


def test_all_is_on_disk_before_it_gets_its_name_and_the_name_after(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int | str] = []
    flush, rename = os.fsync, Path.rename

    def flushed(opened: int) -> None:
        flush(opened)
        done.append(os.fstat(opened).st_ino)

    def renamed(self: Path, target: Path) -> Path:
        done.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    site = export(run, tmp_path / "site").path
    named = done.index("renamed")
    assert {path.stat().st_ino for path in (site, *site.rglob("*"))} <= set(done[:named])
    assert tmp_path.stat().st_ino in done[named:]


def test_two_exports_into_one_place(run: keyhole.Run, tmp_path: Path) -> None:
    refused: list[BaseException] = []
    other = threading.Thread(target=lambda: refused.append(refusal(run, tmp_path / "site")))

    def progress(what: str, total: int) -> Any:
        other.start()  # while this one is being written
        other.join()
        return lambda done: None

    export(run, tmp_path / "site", progress=progress)
    assert "right now" in str(refused[0])
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
