"""How a command ends: its exit code, and one plain line for a `KeyholeError`.

0    done
1    `verify` found a difference, the output could not be written, or an unexpected error
2    a `KeyholeError`, or arguments that no command takes
130  Ctrl-C
"""

from __future__ import annotations

import errno
import io
import sys
import traceback
from typing import Any, NoReturn

import typer

from .common.output import complain, flush, prepare
from .errors import Interrupted, KeyholeError

NOT_WRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)


def run_to_the_end(app: typer.Typer) -> NoReturn:
    """Run the command that the arguments name, and end the process."""
    prepare()
    try:
        code = _call(app)
    except SystemExit as done:  # raised by Typer if a pipe broke while the command wrote
        code = done.code if isinstance(done.code, int) else 1
    if (failed := flush()) is not None:
        code = code or _unwritten(failed)
    sys.exit(code)


def _call(app: typer.Typer) -> int:
    """The command's exit code.

    By itself Typer ends the process, and prints only `Aborted!` for an EOFError. With standalone_mode=False it raises what
    the command raised, or an Abort caused by it.
    """
    try:
        return int(app(standalone_mode=False) or 0)
    except Interrupted as stopped:
        complain(f"\n{stopped}")
        return 130
    except KeyholeError as error:
        complain(f"keyhole: {error}")
        return 2
    except OSError as error:
        unwritten = error.filename is None and error.errno in NOT_WRITTEN
        return _unwritten(error) if unwritten else _unexpected(error)
    except typer.Abort as stopped:
        return _unexpected(stopped.__cause__) if isinstance(stopped.__cause__, EOFError) else 130
    except Exception as error:  # noqa: BLE001 - the last handler
        return _misused(error) if hasattr(error, "format_message") else _unexpected(error)


def _unwritten(error: OSError) -> int:
    """Say that the output could not be written, unless its reader is gone: then there is nobody to tell."""
    if error.errno != errno.EPIPE:
        complain(f"keyhole: The output cannot be written: {error.strerror}.")
    return 1


def _misused(error: Any) -> int:
    """Show Typer's error about an argument that no command takes. It quotes the argument."""
    shown = io.StringIO()
    error.show(shown)
    complain(shown.getvalue().rstrip("\n"))
    return int(error.exit_code)


def _unexpected(error: BaseException) -> int:
    """Show an unexpected error as Python does, without control characters: its message may quote what was read."""
    complain("".join(traceback.format_exception(error)).rstrip("\n"))
    return 1
