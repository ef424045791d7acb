"""Tokens in readable form: no `Ġ`, no `▁`, and a token that is part of a character is shown as its bytes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..common.files import read_small
from ..errors import ModelError, RunDamaged, UsageError

LARGEST_FILE = 256 << 20
MOST_ID = 2**32 - 1
"""The largest token id a tokenizer can be asked about."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPLIT_AT_SPACES = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
"""Pre-tokenizers that cut a text at its spaces and drop them."""
_SPACES = {" ", " +", r"\s", r"\s+"}
"""Regular expressions for the spaces between words."""


@cache
def _byte_letters() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable letter: a printable byte as itself, the others as the letters from 256
    on."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _parts(part: Any) -> list[dict[str, Any]]:
    """A pre-tokenizer or decoder, or those of a sequence; none if there is none."""
    if not isinstance(part, dict):
        return []
    inner = [each for name in ("pretokenizers", "decoders") for each in part.get(name) or ()]
    return [found for each in inner for found in _parts(each)] if inner else [part]


def _drops_spaces(part: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer cuts a text at its spaces and leaves them out."""
    if part.get("type") in _SPLIT_AT_SPACES:
        return True
    if part.get("type") == "CharDelimiterSplit":
        return part.get("delimiter") == " "
    pattern = part.get("pattern")
    at_spaces = isinstance(pattern, dict) and (pattern.get("String") == " " or str(pattern.get("Regex")) in _SPACES)
    return part.get("type") == "Split" and part.get("behavior") == "Removed" and not part.get("invert") and at_spaces


def _continuation(core: dict[str, Any]) -> str | None:
    """If tokens are words without their spaces, which are put back between them when they are shown: how a token begins that
    continues a word (`##`), empty if none does. None for every other tokenizer."""
    model = core.get("model")
    model = model if isinstance(model, dict) else {}
    kind = model.get("type")
    if kind not in ("WordLevel", "WordPiece") or not any(map(_drops_spaces, _parts(core.get("pre_tokenizer")))):
        return None
    if {part.get("type") for part in _parts(core.get("decoder"))} - {"WordPiece"}:
        return None  # the tokenizers library joins words with spaces if there is no decoder, and the decoder WordPiece does
    return str(model.get("continuing_subword_prefix") or "") if kind == "WordPiece" else ""


def _possible(ids: Sequence[int]) -> list[int]:
    return [int(i) for i in ids if 0 <= i <= MOST_ID]


class Vocabulary:
    """A tokenizer read back from its `tokenizer.json` (or that of a model in memory); no model library needed."""

    def __init__(self, source: Path | Tokenizer) -> None:
        self._file = source if isinstance(source, Path) else None
        with self._asked():
            if isinstance(source, Path):
                text = read_small(source, LARGEST_FILE)
                self.tokenizer, core = Tokenizer.from_buffer(text), json.loads(text)
            else:
                self.tokenizer, core = source, json.loads(source.to_str())
            self._byte_level = "ByteLevel" in json.dumps([core.get("decoder"), core.get("pre_tokenizer")])
            self._added = {token["id"] for token in core.get("added_tokens", [])}
            self._continues = _continuation(core)
        self._found: dict[str, int] = {}
        """tokens by what they read, as far as they were asked for"""

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn any failure of the tokenizer into our error. It is written in Rust, whose panics are not an `Exception`."""
        try:
            yield
        except BaseException as error:
            ours = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not ours and type(error).__name__ != "PanicException":
                raise
            said = f"{str(error)[:200] or type(error).__name__}"
            if self._file is None:
                raise ModelError(f"The model's tokenizer failed: {said}.") from None
            raise RunDamaged(f"{self._file} is damaged: {said}. Scan again, or restore the file.") from None

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def text(self, ids: Sequence[int]) -> str:
        """The text of a sequence of tokens; an id outside the vocabulary adds nothing."""
        with self._asked():
            return str(self.tokenizer.decode(_possible(ids), skip_special_tokens=False))

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many sequences."""
        with self._asked():
            try:
                found = self.tokenizer.decode_batch(list(sequences), skip_special_tokens=False)
            except OverflowError:
                found = self.tokenizer.decode_batch([_possible(ids) for ids in sequences], skip_special_tokens=False)
            return [str(text) for text in found]

    @cached_property
    def _encoder(self) -> Tokenizer:
        """A copy of the tokenizer that reads text as text, as a scan does: a `<s>` is three characters, no special token."""
        encoder = Tokenizer.from_str(self.tokenizer.to_str())
        encoder.no_padding()
        encoder.no_truncation()
        encoder.encode_special_tokens = True
        return encoder

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, without special tokens."""
        whole = [text.encode("utf-8", "replace").decode() for text in texts]  # no tokenizer accepts half a character
        with self._asked():
            return [encoding.ids for encoding in self._encoder.encode_batch_fast(whole, add_special_tokens=False)]

    def raw(self, token: int) -> bytes:
        """The bytes a token stands for; none for an id outside the vocabulary. A token that begins a word has a space before it,
        so that the tokens of a text, put one after another, are the text."""
        if not 0 <= token <= MOST_ID:
            return b""
        with self._asked():
            piece = self.tokenizer.id_to_token(int(token))
        if piece is None:
            return b""
        if token in self._added:
            return str(piece).encode()
        if self._byte_level and all(letter in _byte_letters() for letter in piece):
            return bytes(_byte_letters()[letter] for letter in piece)
        if self._continues is not None:
            inside = bool(self._continues) and piece.startswith(self._continues)
            shown = piece.removeprefix(self._continues) if inside else f" {piece}"
            return str(shown).encode("utf-8", "surrogatepass")
        if match := _BYTE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return str(piece).replace("▁", " ").encode("utf-8", "surrogatepass")

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {}

    def piece(self, token: int) -> str:
        """One token, readable: bytes that are not a whole character are written `\\xe2`, and a row of the unembedding
        without a token in the tokenizer is written as its number."""
        token = int(token)
        if token not in self._pieces:
            self._pieces[token] = self.raw(token).decode("utf-8", "backslashreplace") or f"[{token}]"
        return self._pieces[token]

    def find(self, text: str) -> int:
        """The token that reads `text`. If tokens are words without spaces, the space before a word may be left out."""
        if text not in self._found:
            self._found[text] = self._find(text)
        return self._found[text]

    def _find(self, text: str) -> int:
        whole = text.encode("utf-8", "replace").decode()  # a half character is in no token, and no tokenizer accepts it
        with self._asked():
            ids = self.tokenizer.encode(whole, add_special_tokens=False).ids
        if len(ids) == 1 and self._reads(ids[0], text):
            return int(ids[0])
        # a tokenizer may add a space of its own before it looks
        for token in sorted(self.tokenizer.get_vocab(with_added_tokens=True).values()):
            if self._reads(token, text):
                return int(token)
        pieces = [self.piece(i) for i in ids]
        if len(ids) == 1:
            hint = f"The nearest is {pieces[0]!r}. "
        elif ids:
            some = ", ".join(map(repr, pieces[:20])) + (", …" if len(ids) > 20 else "")
            hint = f"It is {len(ids)} tokens, {some}: ask for one of them. "
        else:
            hint = ""
        shown = repr(text) if len(text) <= 200 else f"{text[:200]!r}…"
        space = "" if self._continues is not None else "Mind the space: ' Paris' and 'Paris' are two tokens."
        raise UsageError(f"{shown} is not a token of this model. {hint}{space}".rstrip())

    def _reads(self, token: int, text: str) -> bool:
        return self.piece(token) == text or (
            self._continues is not None and bool(text) and self.piece(token) == f" {text}"
        )
