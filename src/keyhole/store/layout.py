"""The run directory. This is the only module that knows its file names.

    manifest.json               what was scanned, with which model and options; size and sha256 of every file of the scan
    log.json                    time, machine, duration: what differs between two runs of the same scan; the signature of its maker
    tokenizer.json              turns token ids into text
    tokens.npy                  the token ids of the corpus; unit_offsets, unit_documents and unit_starts say where each unit is
    repeated_tokens.npy         prefixes that occur more than once, by the token index of the first; repeated_counts: how often
    coefficients.npy            [cells, top] the triggers, with units.npy and positions.npy; *_negative: those below zero
    active.npy sums.npy extremes.npy    [cells, …] the statistics are computed from these
    orientation.npy             [cells] if the layers have a gate: the sign, 1 or −1, that the arrays above have each cell in

The first axis of these arrays is the axis of cells, layer by layer. The manifest says how many cells each layer has (`cells.py`).

What the analyses add after the scan, in groups of files. A group is valid if `analyses.json` lists it; it is listed after all
its files are written:

    analyses.json               per group its settings, and size and sha256 of its files
    tables.duckdb               the tables
    values_LENS_*.npy           what every value says: tokens and logits at both ends, max_prob, entropy, norms, the index by token
    maps_linear.npy maps_offset.npy     per layer the affine map to the last layer's residual, which the lens `mapped` reads through
    similar_cells.npy similar_cosines.npy       for every cell the cells with the most similar values
    shading.npy                 one byte per token shown with a trigger; shading_offsets says where each cell's bytes begin
    histograms.npy              [cells, bins] coefficients over a sample of the corpus
    firing.npy                  [cells] how many of that sample are above a tenth of the cell's largest coefficient
    below_*.npy                 examples below the top, from that sample (`below.py`)
    cells_GROUP_*.npy           [cells, …] what an analysis says of every cell: its kinds, its gate (`percell.py`)
    patterns_LAYER.jsonl        the patterns of the layer's keys, one line per key and side (`patterns.py`)
    patterns_evidence_LAYER.jsonl       what gives each position a score by these patterns
    patterns_vectors.npy        a short vector of every token, from the model's input embeddings
    patterns_fired_*            where the sampled keys fire in the text that patterns are found in, until they are complete
    leaks.json                  what the model says by heart, and in which cells (`leaks.py`)
    report/index.html           the report

What people add (`lines.py`), one line per save:

    annotations/NAME.jsonl      the patterns an annotator found
    marks.jsonl                 stars, tags and notes on cells (`collections.py`)
    notes.jsonl                 notes on cells, as earlier versions saved them

A run is built in `NAME.partial` (`unfinished.py`) and renamed when it is complete, so a directory called NAME is a finished run.
It holds plain files: a symbolic link inside it is never followed, neither to read nor to write.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..common import files
from ..common.files import Array, disk_errors, fingerprint
from ..errors import RunDamaged, RunError, RunExists

SCHEMA = 3
"""Version of the run directory. 1 had rectangular arrays [layers, cells, …], 2 had gated cells in the model's own signs."""

CORPUS = ("tokens", "unit_offsets", "unit_documents", "unit_starts", "repeated_tokens", "repeated_counts")
STATISTICS = ("active", "sums", "extremes")
ORIENTATION = "orientation"
TRIGGERS = ("coefficients", "units", "positions")
NEGATIVE = "_negative"
"""Ends the names of the arrays that hold the triggers with negative coefficients."""
SHADING = ("shading", "shading_offsets", "histograms", "firing")
BELOW = ("below_places", "below_chosen", "below_coefficients", "below_edges")
"""Further files of the group `shading`."""
SIMILAR = ("similar_cells", "similar_cosines")
MAPS = ("maps_linear", "maps_offset")
PATTERNS = "patterns"
PATTERN_VECTORS = "patterns_vectors"
PATTERNS_FIRED = "patterns_fired"
"""Begins the names of the files that are there while patterns are searched for."""
CHECK_ON_OPEN = 256 << 20
"""Largest run, in bytes, whose checksums are compared whenever it is opened. `verify` compares those of any run."""

_TRIGGERS = (f"(?:{name})(?:{NEGATIVE})?" for name in TRIGGERS)
_ARRAYS = "|".join((*CORPUS, *STATISTICS, ORIENTATION, *_TRIGGERS, *SHADING, *BELOW, *SIMILAR, *MAPS))
_FILES = re.compile(
    rf"(?:manifest|log|tokenizer|analyses)\.json|(?:{_ARRAYS}|values_\w+|cells_\w+)\.npy|tables\.duckdb(?:\.new)?(?:\.wal)?"
    r"|patterns_(?:evidence_)?[0-9]+\.jsonl|patterns_fired_\w+\.(?:npy|json|jsonl)|patterns_vectors\.npy|leaks\.json|(?:marks|notes)\.jsonl|lock|report/index\.html|annotations/[a-z0-9_-]+(?:\.[0-9a-f]{32})?\.jsonl"
    r"|plan/(?:(?:summary|identity)\.json|[0-9]+-of-[0-9]+(?:\.checkpoint)?\.npz|merge|(?:window|batch)_\w+\.npy)"
)
_FOLDERS = re.compile(r"report|annotations|plan")
_BESIDE = re.compile(r"(\.[0-9a-f]{8})?\.new$")
"""The end of a file's name while it is being written (`files.beside`)."""


def sides(signed: bool) -> tuple[bool, ...]:
    """The sides of a run's triggers, each as whether it is the negative one; an unsigned model has no negative side."""
    return (False, True) if signed else (False,)


def side_names(negative: bool) -> tuple[str, str, str]:
    """The names of one side's arrays: coefficients, units and positions of its triggers."""
    coefficients, units, positions = (f"{name}{NEGATIVE}" if negative else name for name in TRIGGERS)
    return coefficients, units, positions


def sealed_names(*, signed: bool, gated: bool) -> list[str]:
    """The names of a scan's files, which its manifest lists."""
    arrays = [*CORPUS, *STATISTICS, *(name for negative in sides(signed) for name in side_names(negative))]
    arrays += [ORIENTATION] if gated else []
    return sorted([*(f"{name}.npy" for name in arrays), "tokenizer.json"])


# What may be replaced, and locks


def foreign(path: Path, below: str = "") -> str | None:
    """The first entry of a directory that is not one of a run's files; '.' if the path is not a directory; None if there is none."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return "."
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            name = below + entry.name
            found: str | None = name
            if entry.is_dir(follow_symlinks=False):
                if _FOLDERS.fullmatch(name):
                    found = foreign(Path(entry.path), f"{name}/")
            elif entry.is_file(follow_symlinks=False) and _FILES.fullmatch(_BESIDE.sub("", name)):
                found = None
            if found is not None:
                return found
    return None


def is_run(path: Path) -> bool:
    """Whether a path is that of a finished run, as far as names say."""
    return (path / "manifest.json").is_file()


def is_ours(path: Path) -> bool:
    """Whether a directory may be replaced: it is a run, an unfinished run, or empty."""
    if foreign(path) is not None:
        return False
    names = set(os.listdir(path))
    if "manifest.json" not in names:
        return "plan" in names or names <= {"lock"}
    try:
        about = json.loads(files.read_small(path / "manifest.json"))
    except (OSError, ValueError, RecursionError):
        return any(
            name.endswith(".npy") for name in names
        )  # the manifest is damaged; arrays beside it show that this is a run
    return isinstance(about, dict) and "keyhole" in about and "schema" in about


def check_ours(path: Path) -> None:
    if not is_ours(path):
        what = foreign(path)
        if what is None:
            why = "its manifest.json is not that of a run, or missing"
        else:
            why = "it is not a directory" if what == "." else f"it holds {what!r}"
        raise RunExists(
            f"{path} is not a run that may be replaced: {why}. Choose another directory, or move that away."
        )


def empty(path: Path) -> None:
    """Remove everything in a run's directory except its lock."""
    check_ours(path)
    for entry in path.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def lock(path: Path) -> BinaryIO:
    """Lock a directory for writing, until the returned file is closed. If the directory is renamed, the lock stays on it."""
    while True:
        try:
            descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:
            raise RunExists(f"Another process finished {path} just now. Look at what it made, and try again.") from None
        file = os.fdopen(descriptor, "r+b")
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no advisory locks on this system
            return file
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # a file system without locks
                return file
            file.close()
            raise RunExists(
                f"Another process is writing {path} right now. Wait for it, or choose another directory."
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path / "lock")):
                return file
        file.close()  # its holder finished in between, and renamed the directory or removed the file: try again


@contextlib.contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """Lock a finished run while analyses are written into it. The lock is a file, in which `underway` notes how far they are."""
    with writing_analyses(path):
        held = lock(path)
    try:
        yield held
    finally:
        with contextlib.suppress(OSError):
            (path / "lock").unlink()
        held.close()


# The cache


def cache_dir() -> Path:
    """The folder for files that can be made again (converted models, the charts' script): $KEYHOLE_CACHE, or a folder in the
    user's cache."""
    if chosen := os.environ.get("KEYHOLE_CACHE"):
        return Path(chosen)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "keyhole"
    try:
        return Path.home() / ".cache" / "keyhole"
    except RuntimeError:
        raise RunError("There is no home folder to keep a cache in. Set KEYHOLE_CACHE to a folder.") from None


# Reading a run


def problem(path: Path, name: str, choices: list[dict[str, Any]], contents: bool) -> str | None:
    """What is wrong with a file; None if nothing is. Its size and checksum must be one of `choices`."""
    file = path / name
    try:
        about = file.lstat()
        if stat.S_ISLNK(about.st_mode):
            return f"{name} is a symbolic link, and a run holds plain files"
        if not stat.S_ISREG(about.st_mode):
            return f"{name} is not a plain file"
        if about.st_size not in [choice["bytes"] for choice in choices]:
            return f"{name} has {about.st_size:,} bytes where {choices[-1]['bytes']:,} were written"
        if contents and fingerprint(file) not in choices:
            return f"the content of {name} changed (sha256)"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror or error})"
    return None


def load_array(path: Path, name: str) -> Array:
    """An array of the run, memory-mapped for access in any order."""
    file = path / f"{name}.npy"
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError, OverflowError, TypeError) as error:
        raise RunDamaged(f"{file} cannot be read as an array: {error}. Restore it, or make it again.") from None
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        import mmap

        mapped.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)  # a plain array: slicing a memmap is slow


def read_log(path: Path) -> dict[str, Any]:
    """The log; empty if it cannot be read, because no result depends on it."""
    try:
        return files.read_json(path / "log.json", "")
    except RunDamaged:
        return {}


def report_file(path: Path) -> Path:
    return path / "report" / "index.html"


def annotations_folder(path: Path) -> Path:
    return path / "annotations"


def marks_file(path: Path) -> Path:
    return path / "marks.jsonl"


def notes_file(path: Path) -> Path:
    return path / "notes.jsonl"


def tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json"


def tables_file(path: Path) -> Path:
    return path / "tables.duckdb"


def analyses_file(path: Path) -> Path:
    return path / "analyses.json"


# What the analyses add


def analyses(path: Path) -> dict[str, dict[str, Any]]:
    """The groups of files that analyses added, each {"settings": …, "files": {name: [size and sha256, …]}}."""
    file = analyses_file(path)
    if not os.path.lexists(file):
        return {}
    advice = f"Analyze it again: keyhole analyze {path}"
    if file.is_symlink():
        raise RunDamaged(f"{file} is a symbolic link, and a run holds plain files. {advice}")
    groups = files.read_json(file, advice).get("groups")
    if not isinstance(groups, dict) or not all(map(_is_group, groups.values())):
        raise RunDamaged(f"{file} is damaged: its groups cannot be read. {advice}")
    return groups


def _is_group(group: Any) -> bool:
    return (
        isinstance(group, dict)
        and isinstance(group.get("settings"), dict)
        and isinstance(group.get("files"), dict)
        and all(
            files.is_plain_name(name)
            and isinstance(choices, list)
            and choices
            and all(map(files.is_fingerprint, choices))
            for name, choices in group["files"].items()
        )
    )


def save_group(path: Path, group: str, settings: dict[str, Any], names: list[str]) -> None:
    """List a group whose files are written. From now on it is valid."""
    with writing_analyses(path):
        listed = {name: [fingerprint(path / name)] for name in names}
        _write_groups(path, {**analyses(path), group: {"settings": settings, "files": listed}})


def drop_group(path: Path, group: str) -> None:
    """Remove a group from the list, before its files change."""
    groups = analyses(path)
    if groups.pop(group, None) is not None:
        with writing_analyses(path):
            _write_groups(path, groups)


def replace_listed(path: Path, group: str, name: str, beside: Path) -> None:
    """Replace a group's only file by the finished file `beside`. Until that is done both are listed, so that after a power cut
    the file is one of the two, and complete."""
    with writing_analyses(path):
        groups, new = analyses(path), fingerprint(beside)
        if before := groups.get(group, {"files": {}})["files"].get(name, []):
            groups[group] = {"settings": {}, "files": {name: [*before, new]}}
            _write_groups(path, groups)
        beside.replace(path / name)
        files.sync_folder(path)
        groups[group] = {"settings": {}, "files": {name: [new]}}
        _write_groups(path, groups)


def _write_groups(path: Path, groups: dict[str, Any]) -> None:
    files.write_json(analyses_file(path), {"groups": groups})


def writing_analyses(path: Path) -> contextlib.AbstractContextManager[None]:
    """`disk_errors`, with the advice that fits an analysis."""
    return disk_errors(
        path,
        full="Make room and run the same command again; what is done is kept.",
        refused="Make the run writable, or analyze a copy of it.",
    )


def damaged_groups(path: Path) -> list[str]:
    """The groups whose files are not what was written. Checksums are compared up to the size up to which `open` does."""
    try:
        groups = analyses(path)
    except RunDamaged:
        return [analyses_file(path).name]
    size = sum(choices[0]["bytes"] for group in groups.values() for choices in group["files"].values())
    return [
        group
        for group, each in groups.items()
        if any(problem(path, name, choices, size <= CHECK_ON_OPEN) for name, choices in each["files"].items())
    ]


def drop_damaged(path: Path) -> None:
    """Remove damaged groups from the list, so that they are made again."""
    for group in damaged_groups(path):
        if group == analyses_file(path).name:
            with writing_analyses(path):
                analyses_file(path).unlink()
        else:
            drop_group(path, group)


def save_array(path: Path, name: str, array: Array) -> None:
    """Write an array of an analysis. After a crash it is there completely, or not at all."""
    with writing_analyses(path):
        files.replace_array(path / f"{name}.npy", array)


@contextlib.contextmanager
def building(path: Path, name: str, dtype: npt.DTypeLike, length: int) -> Iterator[Array]:
    """A new array of an analysis, to be filled on disk. It is there after the `with` ends without an error."""
    with files.beside(path / f"{name}.npy") as file:
        array = files.new_memmap(file, dtype, max(1, length))
        yield array
        files.flush_memmap(file, array)


def lens_array(lens: str, name: str) -> str:
    return f"values_{lens}_{name}"


def save_lens(path: Path, lens: str, settings: dict[str, Any]) -> None:
    names = sorted(file.name for file in path.glob(f"values_{lens}_*.npy"))
    save_group(path, f"values_{lens}", settings, names)


def read_lens(path: Path, lens: str) -> dict[str, Any] | None:
    """The settings with which the values were read through a lens; None if they were not read yet."""
    return _settings(path, f"values_{lens}")


def drop_lens(path: Path, lens: str) -> None:
    drop_group(path, f"values_{lens}")


def save_maps(path: Path, settings: dict[str, Any]) -> None:
    save_group(path, "maps", settings, [f"{name}.npy" for name in MAPS])


def read_maps(path: Path) -> dict[str, Any] | None:
    """The settings with which the maps between layers were fitted; None if they are not stored."""
    return _settings(path, "maps")


def drop_maps(path: Path) -> None:
    drop_group(path, "maps")


def save_similar(path: Path) -> None:
    save_group(path, "similar", {}, [f"{name}.npy" for name in SIMILAR])


def has_similar(path: Path) -> bool:
    """Whether similar values were searched for."""
    return _settings(path, "similar") is not None


def save_shading(path: Path, settings: dict[str, Any]) -> None:
    save_group(path, "shading", settings, [f"{name}.npy" for name in (*SHADING, *BELOW)])


def read_shading(path: Path) -> dict[str, Any] | None:
    """The settings with which the triggers were shaded; None if they were not shaded yet."""
    return _settings(path, "shading")


def drop_shading(path: Path) -> None:
    drop_group(path, "shading")


def pattern_files(path: Path, layer: int) -> tuple[Path, Path]:
    """The keys of a layer with their patterns, and the evidence of these keys."""
    return path / f"{PATTERNS}_{layer}.jsonl", path / f"{PATTERNS}_evidence_{layer}.jsonl"


def save_patterns(path: Path, settings: dict[str, Any], layers: int) -> None:
    names = [file.name for layer in range(layers) for file in pattern_files(path, layer)]
    if (path / f"{PATTERN_VECTORS}.npy").is_file():
        names.append(f"{PATTERN_VECTORS}.npy")
    save_group(path, PATTERNS, settings, names)


def read_patterns(path: Path) -> dict[str, Any] | None:
    """The settings with which the patterns were found; None if they are not complete."""
    return _settings(path, PATTERNS)


def cells_group(group: str) -> str:
    return f"cells_{group}"


def cells_array(group: str, name: str) -> str:
    """The name of an array that a group has of every cell."""
    return f"cells_{group}_{name}"


def save_cells(path: Path, group: str, settings: dict[str, Any]) -> None:
    """List the arrays of a group, which `settings` names."""
    save_group(path, cells_group(group), settings, [f"{cells_array(group, name)}.npy" for name in settings["arrays"]])


def read_cells(path: Path, group: str) -> dict[str, Any] | None:
    return _settings(path, cells_group(group))


def has_tables(path: Path) -> bool:
    return _settings(path, "tables") is not None


def _settings(path: Path, group: str) -> dict[str, Any] | None:
    found = analyses(path).get(group)
    return None if found is None else dict(found["settings"])
