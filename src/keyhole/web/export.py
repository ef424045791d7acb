"""The explorer as files: what the server answers, under the same addresses, for any static host."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DiskFull, RunError, RunExists
from ..run import Run
from .app import static_file, static_files
from .contract import Explorer, compact

Progress = Callable[[str, int], Callable[[int], None]]


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
    progress: Progress = lambda what, total: lambda done: None,
) -> Exported:
    """Write the explorer of a run into the folder `site`, whole or not at all: beside it first, then renamed into place."""
    site = Path(os.path.abspath(site))
    _check(site, force)
    beside = site.with_name(site.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    explorer = Explorer(run)
    cells = run.layers * run.cells
    advance = progress("writing cells", cells)
    count = size = 0
    try:
        for name, content in _files(explorer):
            file = beside / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            count, size = count + 1, size + len(content)
            if name.startswith("data/cells/"):
                advance(1)
        _put_in_place(beside, site)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"The disk is full after {size / 1e6:,.0f} MB of the export; nothing of it is kept. Make room, or choose "
                "another folder."
            ) from error
        raise RunError(f"{site} cannot be written: {error.strerror or error}. Choose another folder.") from error
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return Exported(site, count, size)


def _files(explorer: Explorer) -> Iterator[tuple[str, bytes]]:
    """Every file, the page's own first."""
    for name in (*static_files(), "vega.js"):
        content = static_file(name)
        assert content is not None
        yield (name if name == "index.html" else f"static/{name}"), content
    for path in explorer.paths():
        yield f"data/{path}", compact(explorer.answer(path))


def _check(site: Path, force: bool) -> None:
    """Take a folder that is new or empty, or with `force` one that holds an export; never anything else."""
    if not site.exists() or (site.is_dir() and not any(site.iterdir())):
        return
    exported = (site / "index.html").is_file() and (site / "data" / "run.json").is_file()
    if not exported:
        raise RunExists(f"There is something at {site} already that is no export. Choose another folder.")
    if not force:
        raise RunExists(f"There is an export at {site} already. Choose another folder, or replace it with --force.")


def _put_in_place(beside: Path, site: Path) -> None:
    old = site.with_name(site.name + ".replaced")
    if site.exists():
        shutil.rmtree(old, ignore_errors=True)
        site.rename(old)
    beside.rename(site)
    shutil.rmtree(old, ignore_errors=True)
