"""Held-out text for section 5 of the paper: a random prefix of each sentence, seeded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import CorpusError
from ..inputs import corpus
from ..store import layout
from ..store.run import Run
from . import targets
from .record import Column, Fact, Facts

if TYPE_CHECKING:
    from ..models.model import Model

FEWEST = 10
"""Fewest sentences for which a rate is meaningful."""
FEWEST_DOCUMENTS = 20
"""Fewest documents that can be resampled as a whole. Prefixes are, if there are fewer."""
FACTS = {
    "prefixes": Column("BIGINT", "prefixes it was measured on, one per unit of text"),
    "unit": Column("VARCHAR", "what a unit of text is: `sentence`, `line` or `document`"),
    "source": Column("VARCHAR", "where they come from: `valid` (given text), `held out` (by the scan) or `corpus`"),
    "files": Column("VARCHAR", "the names of the given files, if `source` is `valid`"),
    "hold_out": Column("DOUBLE", "the share of the corpus that the scan held out"),
    "drawn": Column(
        "VARCHAR",
        f"what intervals resample: `documents` if the prefixes are from at least {FEWEST_DOCUMENTS} documents (prefixes of one "
        "document are alike), else `prefixes`",
    ),
    "seed": Column("BIGINT", "the seed of the random choices"),
}
"""What a table that is measured on held-out text says about that text."""
T = TypeVar("T")


@dataclass(frozen=True)
class Prefixes:
    """What section 5 is measured on."""

    ids: list[list[int]]
    """the prefixes"""
    following: list[int]
    """the token after each"""
    documents: list[int]
    """the document that each is from"""
    facts: dict[str, Fact]
    """where they come from: a value per key of `FACTS`"""

    @property
    def clusters(self) -> npt.NDArray[np.int64] | None:
        """The document of each prefix if documents are what intervals resample; None if prefixes are."""
        return clustered(self.documents)


def prefixes(
    run: Run, model: Model, valid: Sequence[str | os.PathLike[str]] | None, *, samples: int, seed: int
) -> Prefixes:
    """From `valid`, else from what the scan held out, else from the corpus itself; the facts say which."""
    random = np.random.default_rng(seed)
    kind, room = str(run.manifest["config"]["unit"]), run.room
    held = targets.held_out_units(run)
    if valid:
        names = [str(name) for name in valid]
        kept = _reservoir(given_units(run, names), samples, random)
        sentences = model.tokenize([unit.text for unit in kept]) if kept else []
        documents = [unit.document for unit in kept]
        source, files, what = "valid", ", ".join(os.path.basename(name) for name in names), ", ".join(names)
    else:
        chosen = held if len(held) else np.arange(int(run.manifest["corpus"]["units"]))
        chosen = np.sort(random.permutation(chosen)[:samples])
        sentences = [[int(i) for i in run.unit_tokens(int(unit))] for unit in chosen]
        documents = [int(i) for i in layout.load_array(run.path, "unit_documents")[chosen]]
        source, files = "held out" if len(held) else "corpus", ""
        what = "what the scan held out" if len(held) else "the corpus"
    documents = [document for document, sentence in zip(documents, sentences, strict=True) if len(sentence) > 1]
    sentences = [sentence[:room] for sentence in sentences if len(sentence) > 1]
    if len(sentences) < FEWEST:
        raise CorpusError(
            f"Section 5 needs at least {FEWEST} {kind}s of two tokens or more, and {what} has {len(sentences)}. Give more "
            "held-out text (--valid FILE), or leave these tables out (--only)."
        )
    ids, following = cut(sentences, random)
    return Prefixes(
        ids,
        following,
        documents,
        {
            "prefixes": len(sentences),
            "unit": kind,
            "source": source,
            "files": files,
            "hold_out": float(run.manifest["config"].get("hold_out") or 0.0),
            "drawn": "prefixes" if clustered(documents) is None else "documents",
            "seed": seed,
        },
    )


def given_units(run: Run, names: Sequence[str]) -> Iterator[corpus.Unit]:
    """The units of given text, divided as the run's own corpus was."""
    config = run.manifest["config"]
    field = config["text_field"] if any(_has_fields(name) for name in names) else None
    return corpus.units(names, str(config["unit"]), text_field=field, language=config["language"])


def cut(sentences: Sequence[Sequence[int]], random: np.random.Generator) -> tuple[list[list[int]], list[int]]:
    """A random prefix of each sentence of two tokens or more, and the token after it."""
    lengths = [int(random.integers(1, len(sentence))) for sentence in sentences]
    pairs = list(zip(sentences, lengths, strict=True))
    return [list(sentence[:length]) for sentence, length in pairs], [sentence[length] for sentence, length in pairs]


def clustered(documents: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """Documents as clusters, if there are enough of them to resample, and some has more than one prefix."""
    found = np.asarray(documents, np.int64)
    return found if FEWEST_DOCUMENTS <= len(np.unique(found)) < len(found) else None


def note(facts: Facts) -> str:
    """The facts as a sentence."""
    where = {
        "valid": f"the held-out text {facts['files']}",
        "held out": f"what the scan held out of the corpus (--hold-out {facts['hold_out']:g})",
    }.get(str(facts["source"]), "a sample of the scanned corpus itself: no held-out text was given")
    count = f"{facts['prefixes']:,} {facts['unit']}s"
    return f"measured on a random prefix of each of {count} of {where} (seed {facts['seed']}), intervals over {facts['drawn']}"


def _has_fields(name: str) -> bool:
    return any(ending in os.path.basename(name).lower() for ending in corpus.RECORDS) or name.startswith("hf:")


def _reservoir(items: Iterable[T], most: int, random: np.random.Generator) -> list[T]:
    """At most `most` items of a stream, each with the same chance."""
    kept: list[T] = []
    for number, item in enumerate(items):
        if len(kept) < most:
            kept.append(item)
        elif (place := int(random.integers(0, number + 1))) < most:
            kept[place] = item
    return kept
