"""Work that goes on in a second process while the explorer serves its run: the first look does not wait for the analyses.

The second process shows its own progress at the terminal. It ends with this one: after Ctrl-C, and if this one is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..common.output import complain, prepare
from ..errors import KeyholeError

PATIENCE = 5.0
"""Seconds for which a process that was asked to end may clean up."""
NICE = 5
"""How much the work gives way to the server, which someone waits for."""


def at_terminal() -> bool:
    """Whether a person is at the terminal, to whom the explorer can be shown."""
    return sys.stdout.isatty() and not os.environ.get("CI")


@contextlib.contextmanager
def working(work: Callable[..., object], *args: Any) -> Iterator[None]:
    """Call `work(*args)` in a second process, inside the `with`; it ends with it."""
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(work, args))
    process.start()
    try:
        yield
    finally:
        if process.is_alive():
            process.terminate()
            process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
            _show_cursor()


def _work(work: Callable[..., object], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the other one decides
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(AttributeError, OSError):
        os.nice(NICE)
    prepare()
    try:
        work(*args)
    except KeyholeError as error:
        complain(f"keyhole: {error}")
        sys.exit(2)


def _end(signum: int, frame: object) -> NoReturn:
    raise SystemExit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _show_cursor()
        os._exit(1)


def _show_cursor() -> None:
    """A progress bar hides the cursor, and one that was killed leaves it hidden."""
    if sys.stderr.isatty():
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), b"\x1b[?25h")


def analyze_and_report(path: str, device: str = "auto", trust_remote_code: bool = False) -> None:
    """What `keyhole analyze` and `keyhole report` do, for a run that was just scanned."""
    from ..analyses.analyze import analyze
    from ..common.output import printable, say
    from ..store.run import Run
    from ..views.progress import Stages
    from ..views.report import write as report

    with Stages() as progress:
        analyze(path, device=device, trust_remote_code=trust_remote_code, progress=progress)
    say(f"{printable(path)}: analyzed. The report: {printable(str(report.write(Run(Path(path)))))}", flush=True)
