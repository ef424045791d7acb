"""The explorer as files, for any static host: the page, the server's answers whose address is a word as JSON files, and all others
in packs of many (packs.py).

The export is written to SITE.partial, flushed to disk, and then renamed to SITE. Only exports are ever replaced or deleted: a
folder that contains anything else is refused, and so is a SITE.partial that is something else (an unfinished scan, for example).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..analyses.beside import check
from ..common import notebook
from ..common.files import put_in_place, sync_folder
from ..errors import DiskFull, RunError, RunExists, UsageError
from ..store.run import Run
from ..web import schema
from ..web.contract import Explorer
from ..web.pack import compact
from ..web.routes import static_file, static_files
from .packs import Packs
from .part import Layers, Part

Progress = Callable[[str, int], Callable[[int], None]]
_FOLDER = re.compile(
    r"static|data|data/(layers|labels|tokens|words|units|patterns|documents|passages|cells|beside)|data/(cells|beside)/[0-9]+"
)
_FILE = re.compile(
    r"index\.html|static/[a-z0-9_-]+(\.[a-z0-9]+)+"
    r"|data/[a-z]+\.json|data/[a-z]+(-[0-9]+)*\.pack|data/(layers|labels|tokens|words|units|patterns|documents|passages)/[0-9]+\.json|data/(cells|beside)/[0-9]+/[0-9]+\.json"
)
_ABOUT = "run.json"
_FLUSHING = 16
"""Files that are flushed to disk in parallel: together they wait less for the disk than one by one."""


@dataclass(frozen=True)
class Exported:
    path: Path
    files: int
    bytes: int


def export(
    run: Run,
    site: Path,
    *,
    force: bool = False,
    beside: Run | None = None,
    layers: Layers = (),
    cells: Sequence[str] = (),
    collection: str | None = None,
    progress: Progress = notebook.stages,
) -> Exported:
    """Write the explorer of a run into the folder `site`, completely or not at all. With `beside`, that run is shown
    too: on every page if it has the same cells, which about doubles the export, else on the overview. `layers` (`"3,10-12"`), `cells` (`["L3.17"]`) and `collection` (its name) choose what
    is exported; without them, it is every cell."""
    if beside is not None:
        check(run, [beside])
    part = Part(run, layers, cells, collection) if layers or cells or collection is not None else None
    count = size = 0
    try:
        site = Path(os.path.realpath(site))  # if it is a link, its target is written and the link stays
        with _beside(run, site, force) as folder:
            explorer = Explorer(run, other=beside, only=None if part is None else part.has)
            advance = progress("writing cells", len(run.cells) if part is None else part.about.cells)
            for name, content in _files(explorer, part, advance):
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                count, size = count + 1, size + len(content)
            _flush(folder)
            _check(site, force)  # again, because writing took a while
            _put_in_place(folder, site)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"The disk is full after {size / 1e6:,.0f} MB of the export; nothing of it is kept. Make room, or choose "
                "another folder."
            ) from error
        raise RunError(f"{site} cannot be written: {error.strerror or error}. Choose another folder.") from error
    return Exported(site, count, size)


def _files(explorer: Explorer, part: Part | None, advance: Callable[[int], None]) -> Iterator[tuple[str, bytes]]:
    """Every file: those of the page first, run.json last, because it says which packs there are."""
    for name in (*static_files(), "vega.js"):
        content = static_file(name)
        assert content is not None
        yield (name if name == "index.html" else f"static/{name}"), content

    def paths() -> Iterator[str]:
        return explorer.paths() if part is None else part.paths(explorer)

    def answer(path: str) -> schema.Record:
        return explorer.answer(path) if part is None else part.narrowed(explorer.answer(path))

    def numbered() -> Iterator[tuple[str, schema.Record]]:
        for path in paths():
            if "/" in path:
                yield path, answer(path)
                if path.startswith("cells/"):
                    advance(1)

    for path in paths():
        if "/" not in path and path != _ABOUT:
            yield f"data/{path}", compact(answer(path))
    packs = Packs(explorer.run)
    for path, content in packs.files(numbered()):
        yield f"data/{path}", content
    about = answer(_ABOUT)
    assert isinstance(about, schema.About)
    about.export = schema.Export(packs.first, packs.stamp, msgspec.UNSET if part is None else part.about)
    yield f"data/{_ABOUT}", compact(about)


# What may be written, replaced and deleted


def _check(site: Path, force: bool) -> None:
    """Accept a folder that is new or empty, or, with `force`, one that contains an export and nothing else."""
    if not os.path.lexists(site):
        return
    _refuse_foreign(site)
    if not any(site.iterdir()):
        return
    about = site / "data" / "run.json"
    if not (site / "index.html").is_file() or not about.is_file() or not about.read_bytes().startswith(b'{"keyhole":'):
        raise RunExists(f"There is something at {site} already that is not an export. Choose another folder.")
    if not force:
        raise RunExists(f"There is an export at {site} already. Choose another folder, or replace it with --force.")


def _refuse_foreign(folder: Path) -> None:
    """Refuse a path that is anything but a folder of what an export writes."""
    if folder.is_symlink() or not folder.is_dir():
        raise RunExists(
            f"There is something at {folder} already that is not an export: it is not a folder. Move it away."
        )
    if (foreign := _foreign(folder)) is not None:
        raise RunExists(
            f"{folder} is not an export, or not only one: no export writes its {foreign}. Choose another folder, or move that away."
        )


def _foreign(folder: Path, below: str = "") -> str | None:
    """The path of the first entry that no export writes; None if there is none."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            name = below + entry.name
            if entry.is_dir(follow_symlinks=False) and _FOLDER.fullmatch(name):
                if found := _foreign(Path(entry.path), f"{name}/"):
                    return found
            elif not (entry.is_file(follow_symlinks=False) and _FILE.fullmatch(name)):
                return name
    return None


def _check_leftover(old: Path) -> None:
    """Refuse what is at SITE.replaced, unless it is an old export."""
    with contextlib.suppress(FileNotFoundError):
        os.lstat(old)  # a name that is too long fails now, not at the end
        _refuse_foreign(old)


def _places(run: Run, site: Path) -> tuple[Path, Path]:
    """Where an export is built, and where the one it replaces may be moved meanwhile."""
    if not site.name or os.path.ismount(site):
        raise UsageError(f"{site} cannot be replaced as a whole. Name a folder below it.")
    if Path(os.path.realpath(os.curdir)).is_relative_to(site):
        raise UsageError(f"{site} is the folder you are in, or above it. Name a folder below, or go elsewhere.")
    beside, old = site.with_name(site.name + ".partial"), site.with_name(site.name + ".replaced")
    for place in (site, beside, old):
        if Path(os.path.realpath(run.path)).is_relative_to(place):
            raise RunExists(f"{place} is not an export: the run {run.path} is there. Choose another folder.")
    return beside, old


@contextlib.contextmanager
def _beside(run: Run, site: Path, force: bool) -> Iterator[Path]:
    """The empty folder in which the export is built, locked for this process and removed afterwards."""
    beside, old = _places(run, site)
    _check(site, force)
    _check_leftover(old)
    missing = [parent for parent in site.parents if not parent.exists()]
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            beside.mkdir()
        with _locked(beside):
            _refuse_foreign(beside)  # an export that was killed may have left files: they are deleted
            for entry in beside.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            try:
                yield beside
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    finally:
        for parent in missing:
            with contextlib.suppress(OSError):  # the export is in it
                parent.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder: a second export into the same place is refused."""
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        yield
        return
    if folder.is_symlink() or not folder.is_dir():
        _refuse_foreign(folder)
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(opened), os.lstat(folder))  # it was not renamed meanwhile
        except (BlockingIOError, FileNotFoundError):
            same = False
        if not same:
            raise RunExists(f"Another process is writing {folder} right now. Wait for it, or choose another folder.")
        yield
    finally:
        os.close(opened)


# On disk


def _put_in_place(beside: Path, site: Path) -> None:
    """The new export at the site's name; the old one, if there is one, is deleted."""
    old = site.with_name(site.name + ".replaced")
    _check_leftover(old)
    shutil.rmtree(old, ignore_errors=True)
    put_in_place(beside, site, old)
    shutil.rmtree(old, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Flush everything in a folder to disk: a power cut after the renaming must not leave empty files under the new name."""
    with ThreadPoolExecutor(_FLUSHING) as several:
        for where, _, names in os.walk(folder, topdown=False):
            for _ in several.map(_sync_file, (Path(where, name) for name in names)):
                pass
            sync_folder(Path(where))


def _sync_file(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
