"""Whether this user made a run.

A manifest names a model and a corpus. Anyone can write one, and its checksum has no key, so a run that came from elsewhere
must not decide what is loaded from where. A run that this user made on this machine carries a signature beside its log: an
HMAC of the manifest's checksum under a key in the user's own data folder. The model that such a run names is loaded without a
question. For any other run the user names the model again, with `--model`. No run, not even one's own, ever allows a model's
own code to run: only the command's own `--trust-remote-code` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.files import sync, sync_folder
from ..errors import UntrustedSource
from . import layout

if TYPE_CHECKING:
    from .run import Run

KEY_BYTES = 32


def signature(checksum: str) -> dict[str, str]:
    """What goes into the log of a run this user makes; nothing if there is nowhere to keep a key."""
    key = _key(make=True)
    return {} if key is None else {"signature": _sign(key, checksum)}


def is_own(path: Path, checksum: str) -> bool:
    """Whether the run at `path` was made by this user on this machine, and not changed since."""
    key, signed = _key(make=False), layout.read_log(path).get("signature")
    return (
        key is not None
        and isinstance(signed, str)
        and hmac.compare_digest(signed.encode(), _sign(key, checksum).encode())
    )


def source(run: Run, named: str | os.PathLike[str] | None) -> str:
    """The model to load: the one given, or the one the run names if this user made the run."""
    if named is not None:
        return os.fspath(named)
    told = str(run.manifest["model"]["source"])
    if not is_own(run.path, run.manifest["checksum"]):
        raise UntrustedSource(
            f"{run.path} was not made by you on this machine, and names its model itself: {told!r}. If that is the model you "
            f"mean, say so: --model {shlex.quote(told)} (in Python: model=…)"
        )
    return told


def _sign(key: bytes, checksum: str) -> str:
    return hmac.new(key, checksum.encode(), hashlib.sha256).hexdigest()


def _key(*, make: bool) -> bytes | None:
    """This user's key; None if there is no key and none can be made."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        file = _key_file()
        key = file.read_bytes() if file.exists() else b""
        if len(key) != KEY_BYTES and make:
            _make_key(file)
            key = file.read_bytes()
        return key if len(key) == KEY_BYTES else None
    return None


def _make_key(file: Path) -> None:
    """A new key, if there is none or one that was cut short. If two processes make one at once, the first counts for both."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(KEY_BYTES))
            sync(opened)
        if file.exists() and file.stat().st_size != KEY_BYTES:
            file.unlink()
        try:
            os.link(new, file)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(file.parent)


def _key_file() -> Path:
    folder = os.environ.get("XDG_DATA_HOME")
    return Path(folder if folder else Path.home() / ".local" / "share") / "keyhole" / "key"
