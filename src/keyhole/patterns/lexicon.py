"""What rules know of a token without its context: its text, its form, and a short vector of what it means to the model.

The vectors are the model's own input embeddings, reduced to their first principal components and stored in the run, so that a
rule about meaning runs without the model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import RunError
from ..store import layout
from ..store.run import Run
from ..store.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

DIMENSIONS = 64
"""Length of a token's vector, at most."""
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

FORMS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "starts a word": ("a token that starts a word", lambda text: text[:1].isspace() and text.strip()[:1].isalnum()),
    "continues a word": ("a token inside a word", lambda text: text[:1].isalpha()),
    "capitalised": ("a capitalised token", lambda text: text.strip()[:1].isupper() and not text.strip()[1:2].isupper()),
    "capitals": ("a token in capitals", lambda text: len(text.strip()) > 1 and text.strip().isupper()),
    "lower case": ("a token in lower case", lambda text: text.strip().isalpha() and text.strip().islower()),
    "number": ("a number", lambda text: text.strip().isdigit()),
    "four digits": ("four digits", lambda text: text.strip().isdigit() and len(text.strip()) == 4),
    "two digits": ("two digits", lambda text: text.strip().isdigit() and len(text.strip()) == 2),
    "one letter": ("a single letter", lambda text: len(text.strip()) == 1 and text.strip().isalpha()),
    "punctuation": ("punctuation", lambda text: bool(text.strip()) and all(_is_mark(c) for c in text.strip())),
    "bracket": ("a bracket", lambda text: bool(text.strip()) and text.strip()[-1] in "()[]{}<>"),
    "quotation mark": ("a quotation mark", lambda text: bool(text.strip()) and text.strip()[-1] in "\"'“”‘’«»`"),
    "white space": ("white space", lambda text: bool(text) and not text.strip()),
    "not ascii": ("letters outside of a to z", lambda text: any(ord(c) > 127 for c in text)),
}
"""The forms a token can have: how each is called in a description, and whether a text has it."""


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


AFFIXES = ("suffix", "prefix")
"""Forms that have a text."""


class Affixes(NamedTuple):
    """The suffixes, or prefixes, of one length that tokens have."""

    of: npt.NDArray[np.int64]
    """[tokens] the number of its affix; −1 if it has none"""
    texts: list[str]
    """by number"""
    number: dict[str, int]
    """by text"""


class Lexicon:
    """The tokens of a model, by id."""

    def __init__(self, pieces: Sequence[str], vectors: Floats | None = None) -> None:
        self.pieces = list(pieces)
        self._vectors = vectors
        self._tables: dict[str, Bools] = {}
        self._affixes: dict[tuple[str, int], Affixes] = {}

    @staticmethod
    def of(run: Run) -> Lexicon:
        vocabulary = run.vocabulary
        array = layout.PATTERN_VECTORS
        vectors = layout.load_array(run.path, array) if (run.path / f"{array}.npy").is_file() else None
        return Lexicon(pieces(vocabulary), vectors)

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def has_vectors(self) -> bool:
        return self._vectors is not None

    @property
    def vectors(self) -> Floats:
        """[tokens, dimensions], each of length 1"""
        if self._vectors is None:
            raise RunError(
                "This run holds no vectors of its tokens, which a rule needs. Find its patterns again: keyhole patterns RUN"
            )
        return self._vectors

    @cached_property
    def padded(self) -> Floats:
        """`vectors`, and a last row of zeros for no token"""
        return np.vstack([self.vectors, np.zeros((1, self.vectors.shape[1]), np.float32)])

    @cached_property
    def bare(self) -> list[str]:
        """The tokens without white space around them."""
        return [piece.strip() for piece in self.pieces]

    @cached_property
    def is_word(self) -> Bools:
        """[tokens] whether a token is a word, or the beginning of one, of at least three letters"""
        starts = [piece[:1].isspace() or not self.marks_words for piece in self.pieces]
        found = [start and len(bare) > 2 and bare.isalpha() for start, bare in zip(starts, self.bare, strict=True)]
        return np.array(found, bool)

    @cached_property
    def marks_words(self) -> bool:
        """Whether a token that starts a word has a space before it, so that others go on with one."""
        return any(piece[:1] == " " and piece[1:].isalpha() for piece in self.pieces)

    def form(self, form: str, text: str = "") -> Bools:
        """[tokens + 1] whether each token has a form; `suffix` and `prefix` have a text. The last entry is for no token."""
        if form in AFFIXES:
            affixes = self.affixes(form, len(text))
            return np.append(affixes.of == affixes.number.get(text, len(affixes.texts)), False)
        if form not in self._tables:
            has = FORMS[form][1]
            self._tables[form] = np.array([*(has(piece) for piece in self.pieces), False], bool)
        return self._tables[form]

    def affixes(self, form: str, length: int) -> Affixes:
        """The suffixes or prefixes of that length. A token that is no longer than that has none."""
        if (form, length) not in self._affixes:
            number: dict[str, int] = {}
            part = slice(-length, None) if form == "suffix" else slice(length)
            of = [number.setdefault(bare[part], len(number)) if len(bare) > length else -1 for bare in self.bare]
            self._affixes[form, length] = Affixes(np.array(of, np.int64), list(number), number)
        return self._affixes[form, length]


def pieces(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.piece(token) for token in range(len(vocabulary))]


def vectors(embedding: torch.Tensor, tokens: int) -> Floats:
    """The first principal components of the input embeddings [tokens, model], rounded to 16 bits, each row of length 1."""
    import torch

    weight = embedding.detach().float()[:tokens]
    weight = weight - weight.mean(0)
    kept = min(DIMENSIONS, *weight.shape)
    _, directions = torch.linalg.eigh(weight.T @ weight)
    directions = directions.flip(1)[:, :kept]
    largest = directions.abs().argmax(0)
    directions = (
        directions * directions.gather(0, largest[None]).sign()
    )  # either sign is one: this one is on every machine
    reduced = weight @ directions
    reduced = reduced / reduced.norm(dim=1, keepdim=True).clamp_min(1e-12)
    found = np.zeros((tokens, kept), np.float32)
    found[: len(reduced)] = reduced.half().float().cpu().numpy()
    return found
