"""Every error Keyhole raises on purpose.

    KeyholeError
    ├── ModelError            the model cannot be loaded or is not what its family says
    │   ├── UnknownFamily     no row in the family table for this architecture
    │   ├── ProofFailed       an identity that holds for its family does not hold for this model
    │   └── UnsafeCheckpoint  only pickled weights are there, and pickles are never loaded
    ├── CorpusError           a text cannot be read, is empty, is not UTF-8, lacks its field
    ├── RunError              a run directory cannot be written, opened, resumed or merged
    │   ├── RunExists         the directory is there already
    │   ├── RunDamaged        a file is missing, cut short, or not what its checksum says
    │   ├── SchemaTooNew      written by a newer Keyhole
    │   ├── SchemaTooOld      written by an older Keyhole, whose files this one does not read
    │   ├── UntrustedSource   a run that came from elsewhere names the model itself
    │   └── ShardError        a shard is missing, given twice, belongs to another scan, or failed
    ├── OutOfMemory           not even one unit fits into memory
    ├── DiskFull              no room left; what is done stays resumable
    ├── Interrupted           Ctrl-C; what is done stays resumable
    ├── UsageError            an option or argument with an impossible value
    └── MissingExtra          an optional dependency is not installed

A message says what failed, with which values, and what to do about it.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs Keyhole with an extra. All messages take it from here.
    Keyhole is not published yet, so the command installs a clone. Once it is: pip install 'keyhole[extra]'.
    """
    return f"pip install -e '.[{extra}]' (in your clone of Keyhole)"


def how_to_upgrade() -> str:
    """The command that brings Keyhole up to date. Once it is published: pip install -U keyhole."""
    return "git pull && pip install -e . (in your clone of Keyhole)"


class KeyholeError(Exception):
    """Base of every error Keyhole raises on purpose."""


class ModelError(KeyholeError):
    """The model cannot be loaded, or is not what its family says."""


class UnknownFamily(ModelError):
    """No row in the family table describes this architecture."""


class ProofFailed(ModelError):
    """The family's description does not reproduce the model's own numbers."""


class UnsafeCheckpoint(ModelError):
    """The weights are pickled, and pickles are never loaded."""


class CorpusError(KeyholeError):
    """A corpus cannot be read."""


class RunError(KeyholeError):
    """A run directory cannot be written, opened, resumed or merged."""


class RunExists(RunError):
    """The run directory is there already."""


class RunDamaged(RunError):
    """A file of the run is missing, cut short or changed."""


class SchemaTooNew(RunError):
    """The run was written by a newer Keyhole."""


class SchemaTooOld(RunError):
    """The run was written by an older Keyhole, whose files this one does not read."""


class UntrustedSource(RunError):
    """A run that this user did not make names the model to load."""


class ShardError(RunError):
    """A shard is missing, given twice, belongs to another scan, or failed."""


class OutOfMemory(KeyholeError):
    """Not even one unit fits into memory."""


class DiskFull(KeyholeError):
    """The disk has no room left."""


class Interrupted(KeyholeError):
    """Stopped by the user; what is done stays resumable."""


class UsageError(KeyholeError, ValueError):
    """An option or argument with an impossible value."""


class MissingExtra(KeyholeError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}'. Install it with: {how_to_install(extra)}")
