"""Arrays in one file that shows damage: what a scan has found so far, or a shard's result.

The file is an .npz archive with its sha256 appended. It is written under another name and then renamed, so there is a whole
file or none. Several writers may write the same path: each has a name of its own until the rename.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..common import files
from ..errors import RunDamaged

DIGEST_BYTES = 32


def write_checkpoint(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    named: dict[str, Any] = dict(arrays)

    def write(file: BinaryIO) -> None:
        np.savez(file, **named)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        file.seek(0, os.SEEK_END)
        file.write(digest)

    files.replace_file(path, write, alone=False)


def read_checkpoint(path: Path, advice: str) -> dict[str, npt.NDArray[Any]]:
    """What `write_checkpoint` wrote. Anything else is damage, and `advice` says what to do."""
    try:
        with path.open("rb") as file:
            file.seek(-DIGEST_BYTES, os.SEEK_END)
            size, told = file.tell(), file.read()
            file.seek(0)
            digest = hashlib.sha256()
            while size and (part := file.read(min(size, 1 << 20))):
                digest.update(part)
                size -= len(part)
            if digest.digest() != told:
                raise ValueError("its checksum does not match")
            file.seek(0)
            with np.load(file, allow_pickle=False) as saved:
                return {name: saved[name] for name in saved.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunDamaged(f"The checkpoint {path} cannot be read ({error}). {advice}") from None
