"""A corpus read and split into units by a process of its own.

In the process that tokenises, splitting would take turns with it: both hold the interpreter. The process is given its job
as JSON on standard input and answers in pickles on standard output: chunks of units, column by column, and at the end how
it went.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Sequence

from . import corpus
from .corpus import Unit
from .errors import CorpusError, KeyholeError

START = "from keyhole.reader import child; child()"
WORTHWHILE, PROCESSORS = 4 << 20, 3
"""Bytes of files, and processors, from which on it is faster: with two, tokenising alone keeps both busy."""


def worthwhile(names: Sequence[str]) -> bool:
    """Whether a corpus is read faster so: files, enough of them, and processors to spare."""
    files = corpus.expand(names)
    return (
        bool(sys.executable)
        and (os.cpu_count() or 1) >= PROCESSORS
        and all(map(os.path.isfile, files))
        and sum(map(os.path.getsize, files)) >= WORTHWHILE
    )


def units(names: Sequence[str], unit: str, *, text_field: str | None = None) -> Generator[Unit, None, None]:
    """What `corpus.units` gives, made in another process."""
    job = {"names": list(names), "unit": unit, "text_field": text_field}
    with subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for this process, which ends that one
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
            while isinstance(said := pickle.load(process.stdout), list):
                yield from map(Unit, *said)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise CorpusError(
                f"The process that reads {', '.join(names)} ended early, with status {process.wait()}; what it said is above."
            ) from None
        finally:
            process.kill()  # where nobody wants the rest
    if said is not None:
        kind, message = said
        raise _again(kind, message)


def _again(kind: type[KeyholeError], message: str) -> KeyholeError:
    """An error of the other process, whatever its kind is made from there."""
    error = kind.__new__(kind)
    error.args = (message,)
    return error


# In the process


def child() -> None:
    """Read, split, send; last None, or what was wrong."""
    job = json.loads(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not for the other side
    try:
        failed = None
        try:
            for chunk in corpus.chunks(corpus.units(job["names"], job["unit"], text_field=job["text_field"])):
                pickle.dump([list(column) for column in zip(*chunk, strict=True)], out, pickle.HIGHEST_PROTOCOL)
        except KeyholeError as error:
            failed = (type(error), str(error))
        pickle.dump(failed, out)
        out.flush()
    except BrokenPipeError:  # nobody there any more
        os._exit(1)
