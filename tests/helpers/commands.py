"""A command of Keyhole run in the test's own process, where torch is loaded already."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keyhole import cli


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def call(*arguments: object, cwd: Path | None = None) -> Done:
    """`keyhole ARGUMENTS` through the entry point of the console script, with streams of its own, in the folder `cwd`."""
    out, err = _stream(), _stream()
    with _as_a_command(["keyhole", *map(str, arguments)], cwd), _writing(out, err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        else:
            raise AssertionError("the console script returned: it has to end the process")
    assert isinstance(code, int), code
    return Done(code, _written(out), _written(err))


def run(*arguments: object, code: int = 0, cwd: Path | None = None) -> str:
    """What a command printed that ends with `code`: to standard output, or if it fails to standard error."""
    done = call(*arguments, cwd=cwd)
    assert done.code == code, done.out + done.err
    assert "Traceback" not in done.err
    return done.out if code == 0 else done.err


@contextlib.contextmanager
def _as_a_command(argv: list[str], cwd: Path | None) -> Iterator[None]:
    before = sys.argv, warnings.formatwarning, dict(os.environ)
    sys.argv = argv
    try:
        with contextlib.chdir(cwd or os.getcwd()):
            yield
    finally:
        sys.argv, warnings.formatwarning = before[:2]
        os.environ.clear()
        os.environ.update(before[2])


@contextlib.contextmanager
def _writing(out: io.TextIOWrapper, err: io.TextIOWrapper) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")
