"""A second Python process that does part of the work. The two exchange lines of JSON."""

from __future__ import annotations

import os
import subprocess
import sys


def start_child(code: str) -> subprocess.Popen[str]:
    """A process that runs `code` and imports the same modules as this one.

    It has a session of its own, so Ctrl-C reaches only this process, which then tells its children.
    """
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
