"""A run's tokenizer.json that is damaged, and token ids that no tokenizer has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny, tokenizer
from hostile import reseal
from tokenizers import Tokenizer, models

import keyhole
from keyhole import cli
from keyhole.errors import ModelError, RunDamaged, UsageError
from keyhole.store.vocabulary import Vocabulary


def core() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer().backend_tokenizer.to_str())
    return found


A = core()["model"]["vocab"]["a"]


def changed(**parts: Any) -> bytes:
    return json.dumps({**core(), **parts}).encode()


PANICS = {
    "merge": changed(model={**core()["model"], "continuing_subword_prefix": "##", "merges": [["a", "b"]]}),
    "charsmap": changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
}
"""What the tokenizers' Rust does not survive: a panic, which is no Exception in Python."""
DAMAGED = {
    "empty": b"",
    "garbage": b"\x00\xff\xfe garbage",
    "null": b"null",
    "list": b"[]",
    "truncated": changed()[:500],
    "deep": b"[" * 200_000,
    "deep object": b'{"model":' * 200_000,
    "escape": b'"\x1b[31m"',
    "negative id": changed(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}),
    "pattern": changed(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}
    ),
    **PANICS,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_tokenizer_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(DAMAGED[name])
    with pytest.raises(RunDamaged, match="tokenizer.json is damaged: .*Scan again, or restore"):
        Vocabulary(file)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDamaged, match="tokenizer.json is damaged"):
        Vocabulary(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("use", [lambda v: v.text([A]), lambda v: v.texts([[A]]), lambda v: v.texts([[A, -1]])])
def test_a_tokenizer_that_breaks_when_it_is_used(use: Callable[[Vocabulary], object], tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(changed(decoder={"type": "Strip", "content": "a", "start": 100, "stop": 100}))
    with pytest.raises(RunDamaged, match="tokenizer.json is damaged"):
        use(Vocabulary(file))
    with pytest.raises(ModelError, match="tokenizer failed"):
        use(Vocabulary(Tokenizer.from_file(str(file))))


def test_the_commands_say_so_in_one_line(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = keyhole.scan(tiny("gpt2"), [text], out=tmp_path / "run", top=3, unit="line").path
    for name in ("truncated", "escape", "charsmap"):
        content = DAMAGED[name]
        (path / "tokenizer.json").write_bytes(content)
        listed = {"tokenizer.json": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
        reseal(path, lambda manifest, listed=listed: manifest["files"].update(listed))
        for arguments in (["show", path, "L0.0"], ["report", path]):
            monkeypatch.setattr("sys.argv", ["keyhole", *map(str, arguments)])
            with pytest.raises(SystemExit) as done:
                cli.main()
            assert done.value.code == 2
            err = capsys.readouterr().err
            assert "Traceback" not in err
            assert err.startswith(f"keyhole: {path / 'tokenizer.json'} is damaged: ")
            assert len(err.splitlines()) == 1
            assert "\x1b" not in err


@pytest.mark.parametrize("token", [-1, -(2**40), 299, 2**31, 2**32, 2**70, np.int64(-5)])
def test_ids_outside_the_vocabulary(token: int, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    vocabulary = Vocabulary(tmp_path / "tokenizer.json")
    a = vocabulary.find("a")
    assert vocabulary.piece(token) == f"[{token}]"
    assert vocabulary.raw(token) == b""
    assert vocabulary.text([a, token, a]) == "aa"
    assert vocabulary.texts([[a, token], [token], []]) == ["a", "", ""]


def test_a_token_is_found_whatever_its_number(tmp_path: Path) -> None:
    """Numbers with gaps: the largest is far above the count."""
    made = Tokenizer(models.WordLevel({"▁far": 40, "x": 7}, unk_token="x"))
    text = made.to_str().replace('"▁far":40', '"▁far":4000000000')  # made with that number, it would take a minute
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    vocabulary = Vocabulary(tmp_path / "tokenizer.json")
    assert vocabulary.find(" far") == 4_000_000_000
    with pytest.raises(UsageError, match="is not a token"):
        vocabulary.find("far")
