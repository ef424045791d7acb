"""Checks the types of the page's JavaScript (`// @ts-check`) with TypeScript, at the settings of tsconfig.json.

    python tests/helpers/check_js.py

Node comes with playwright's wheel. TypeScript is one archive from npm's registry, fixed by its checksum and unpacked into the
virtual environment. If it cannot be fetched, the check is skipped with a message.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "6.0.3"
SHA512 = "y2TvuxSZPDyQakkFRPZHKFm+KKVqIisdg9/CZwm9ftvKXLP8NRWj38/ODjNbr43SsoXqNuAisEf1GdCxqWcdBw=="
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    try:
        compiler = typescript(Path(sys.prefix) / f"typescript-{VERSION}")
    except OSError as error:
        print(
            f"TypeScript {VERSION} cannot be fetched from {REGISTRY} ({error}): the JavaScript's types are not checked."
        )
        return 0
    from playwright._impl._driver import compute_driver_executable

    node = compute_driver_executable()[0]
    return subprocess.run([node, str(compiler), "--project", str(ROOT)], check=False).returncode


def typescript(folder: Path) -> Path:
    """The compiler, fetched if it is not there yet."""
    compiler = folder / "package" / "lib" / "tsc.js"
    if not compiler.exists():
        with urllib.request.urlopen(f"{REGISTRY}/typescript/-/typescript-{VERSION}.tgz", timeout=60) as answer:
            archive = answer.read()
        if base64.b64encode(hashlib.sha512(archive).digest()).decode() != SHA512:
            raise SystemExit(f"{REGISTRY} gave another TypeScript {VERSION} than the one that is pinned.")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(partial, filter="data")
        partial.rename(folder)
    return compiler


if __name__ == "__main__":
    sys.exit(main())
