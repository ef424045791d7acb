"""A corpus read and split into units by a process of its own.

In the process that tokenises, splitting would take turns with it: both hold the interpreter. The process is given its job
as a line of JSON and answers in such lines: chunks of units, column by column, and at the end how it went.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import IO, Any

from .. import errors
from ..common.children import start_child
from ..errors import CorpusError, KeyholeError
from . import corpus
from .corpus import Unit
from .formats import shown

START = "from keyhole.inputs.reader import child; child()"
WORTHWHILE, PROCESSORS = 4 << 20, 3
"""Bytes of files, and processors, from which on it is faster: with two, tokenising alone keeps both busy."""


def worthwhile(names: Sequence[str]) -> bool:
    """Whether a corpus is read faster so: files, enough of them, and processors to spare."""
    files = corpus.expand(names)
    if not sys.executable or (os.cpu_count() or 1) < PROCESSORS or not all(map(os.path.isfile, files)):
        return False
    try:
        return sum(map(os.path.getsize, files)) >= WORTHWHILE
    except OSError:  # gone meanwhile: reading it will say so
        return False


def units(names: Sequence[str], unit: str, *, text_field: str | None = None) -> Generator[Unit, None, None]:
    """What `corpus.units` gives, made in another process. Standard input is this one's, so it is read here."""
    if "-" in names:
        yield from corpus.units(names, unit, text_field=text_field)
        return
    job = {"names": list(names), "unit": unit, "text_field": text_field}
    with start_child(START) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # one that ended at once is heard of below
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.close()
            for said in _said(process.stdout):
                if isinstance(said, dict):
                    break
                yield from map(Unit, *said)
            else:
                raise CorpusError(
                    f"The process that reads {', '.join(map(shown, names))} ended early, with status {process.wait()}; what it said is above."
                )
        finally:
            process.kill()  # where nobody wants the rest
    if said:
        raise _again(said["error"], said["message"])


def _said(lines: IO[str]) -> Iterator[Any]:
    """What the process says, until it ends, be it within a line."""
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def _again(name: str, message: str) -> KeyholeError:
    """An error of the other process, whatever its kind is made from there."""
    kind: type[KeyholeError] = getattr(errors, name)
    error = kind.__new__(kind)
    error.args = (message,)
    return error


# In the process


def child() -> None:
    """Read, split, send; last an object: empty, or what was wrong."""
    job = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    # what a library prints is not for the other side
    try:
        os.dup2(2, 1)
    except OSError:  # there is no standard error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    failed = {}
    try:
        try:
            for chunk in corpus.chunks(corpus.units(job["names"], job["unit"], text_field=job["text_field"])):
                print(json.dumps(list(zip(*chunk, strict=True))), file=out)
        except KeyholeError as error:
            failed = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(failed), file=out, flush=True)
    except BrokenPipeError:  # nobody there any more
        os._exit(1)
