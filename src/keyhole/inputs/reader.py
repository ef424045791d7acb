"""A corpus read and split into units by a process of its own.

In the process that tokenises, splitting and tokenising would take turns, because both hold Python's interpreter lock. The
process gets its job as a line of JSON and answers in lines of JSON: chunks of units, column by column, and last an object that
says how it ended.
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
"""Smallest size of the files in bytes, and smallest number of processors, for which this is faster. With two processors,
tokenising alone keeps both busy."""


def worthwhile(names: Sequence[str]) -> bool:
    """Whether a corpus is read faster this way: it consists of files that are large enough, and there are processors to spare."""
    files = corpus.expand(names)
    if not sys.executable or (os.cpu_count() or 1) < PROCESSORS or not all(map(os.path.isfile, files)):
        return False
    try:
        return sum(map(os.path.getsize, files)) >= WORTHWHILE
    except OSError:  # a file is gone by now: reading it will say so
        return False


def units(
    names: Sequence[str], unit: str, *, text_field: str | None = None, language: str = "en"
) -> Generator[Unit, None, None]:
    """What `corpus.units` gives, made in another process. Standard input belongs to this process, so it is read here."""
    if "-" in names:
        yield from corpus.units(names, unit, text_field=text_field, language=language)
        return
    job = {"sources": list(names), "unit": unit, "text_field": text_field, "language": language}
    with start_child(START) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # a process that ended at once is noticed below
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
            process.kill()  # it still runs if the caller stopped early
    if said:
        raise _again(said["error"], said["message"])


def _said(lines: IO[str]) -> Iterator[Any]:
    """What the process sends. It may end in the middle of a line."""
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def _again(name: str, message: str) -> KeyholeError:
    """An error of the other process, raised again here. Its class may take other arguments than a message."""
    kind: type[KeyholeError] = getattr(errors, name)
    error = kind.__new__(kind)
    error.args = (message,)
    return error


# In the process


def child() -> None:
    """Read, split and send. The last line is an object: empty, or with the error."""
    job = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    # what a library prints must not reach the parent as data
    try:
        os.dup2(2, 1)
    except OSError:  # there is no standard error
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    failed = {}
    try:
        try:
            for chunk in corpus.chunks(corpus.units(**job)):
                print(json.dumps(list(zip(*chunk, strict=True))), file=out)
        except KeyholeError as error:
            failed = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(failed), file=out, flush=True)
    except BrokenPipeError:  # the parent is gone
        os._exit(1)
