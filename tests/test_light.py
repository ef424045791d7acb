"""What only looks at a run starts without the model libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ALL = """
import sys
from importlib import import_module
from pathlib import Path
root = Path(import_module("keyhole").__file__).parent
for name in sys.argv[1:]:
    place = root.joinpath(*name.split(".")[1:])
    files = [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else sorted(place.rglob("*.py"))
    assert files, name
    for file in files:
        import_module(".".join(("keyhole", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"))
heavy = {"torch", "transformers", "triton", "accelerate"} & set(sys.modules)
assert not heavy, heavy
print(sum(name.startswith("keyhole.") for name in sys.modules))
"""


def test_what_looks_at_a_run_brings_no_model_library_along() -> None:
    """Every module that the import contract keeps from importing torch, imported with all that it imports."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (light,) = (contract["source_modules"] for contract in contracts if contract["type"] == "forbidden")
    assert {"keyhole.cli", "keyhole.views", "keyhole.web", "keyhole.store"} <= set(light)
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *light], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


def test_nothing_inside_imports_the_public_names() -> None:
    """`from .. import scan` would reach any part from any other, unseen by the import contract."""
    source = ROOT / "src" / "keyhole"
    parts = {path.stem for path in source.iterdir()} | {"__version__"}
    looked_at = 0
    for file in source.rglob("*.py"):
        depth = len(file.relative_to(source).parts)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not [name.name for name in node.names if name.name == "keyhole"], file
            elif isinstance(node, ast.ImportFrom) and (
                (node.level == depth and node.module is None) or (node.level == 0 and node.module == "keyhole")
            ):
                looked_at += 1
                assert {name.name for name in node.names} <= parts, f"{file}:{node.lineno}"
    assert looked_at > 3
