"""What the commands write: text without control characters, and strict JSON.

Names, tokens, notes and paths come from corpora, models and runs that others wrote. A terminal obeys control characters,
so none that was read from there reaches it: `printable` makes them visible. Data for a file or a pipe stay as they are.
Imports nothing heavy: errors and --help need it too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

CONTROL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Unicode's categories of control, format (bidi, zero width), surrogate, private, line and paragraph separator."""
_NAMED = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


# Text


def printable(text: str) -> str:
    """Text that others wrote, made harmless, on one line: line ends and control characters become visible signs."""
    return "".join(_NAMED.get(c, "�" if unicodedata.category(c) in CONTROL else c) for c in text)


def harmless(text: str) -> str:
    """The same for a message of several lines: its line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str = "", *, flush: bool = False) -> None:
    """A message on standard output."""
    print(harmless(text), flush=flush)


def complain(text: str) -> None:
    """A message on standard error; a closed stream is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(harmless(text), file=sys.stderr, flush=True)


# Data


def plain(value: Any) -> Any:
    """A value that JSON can hold: NaN and ±∞ become null, bytes become hexadecimal, other types (dates, decimals) their text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if callable(item := getattr(value, "item", None)):  # a numpy number
        return plain(item())
    return str(value)


def as_json(value: Any, *, indent: int | None = None, to: TextIO | None = None) -> str:
    """Strict JSON, for the stream `to`. On a terminal every control character is escaped; if the stream's encoding lacks a
    character, everything but ASCII is."""
    value = plain(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    if to is not None and not _takes(to, text):
        return json.dumps(value, allow_nan=False, indent=indent)
    return "".join(map(_escaped, text)) if to is not None and to.isatty() else text


def _takes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _escaped(character: str) -> str:
    """A character of JSON text; a control character, which is always part of a string, as an escape."""
    control = character != "\n" and unicodedata.category(character) in CONTROL
    return json.dumps(character)[1:-1] if control else character


def put_json(value: Any, *, indent: int | None = None) -> None:
    """A value on standard output, as JSON."""
    sys.stdout.write(as_json(value, indent=indent, to=sys.stdout) + "\n")


def put_json_list(parts: Iterable[list[Any]]) -> None:
    """A list that comes in parts, on standard output as JSON: the bytes of `put_json(…, indent=1)`, without holding all of it."""
    written = False
    for part in parts:
        if part:
            sys.stdout.write(("," if written else "[") + as_json(part, indent=1, to=sys.stdout)[1:-2])
            written = True
    sys.stdout.write("\n]\n" if written else "[]\n")


# The streams of a process


def prepare() -> None:
    """Make standard output and error take any text.

    What a stream's encoding lacks is written as an escape. A stream that was closed before the start (`>&-`) is replaced by one
    that discards everything and takes its number: else a file opened later would get that number, and what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the closed stream
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - open to the end
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _warning


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as Python writes it, on one line and without control characters: it may quote what was read."""
    return harmless(f"{filename}:{lineno}: {category.__name__}: {message}") + "\n"


def flush() -> OSError | None:
    """Write what is buffered in both streams. None, or why it could not be written: then the rest is dropped, because Python
    would try again at its end, and print an error."""
    failed = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failed = error
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failed
