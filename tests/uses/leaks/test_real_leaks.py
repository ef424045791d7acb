"""Leaks of a real model whose training text is known: planted sentences, repeated 1 to 128 times, and others it never saw."""

from __future__ import annotations

import json
import lzma
import random
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared import SHARED

import keyhole
from keyhole.models.model import Model
from keyhole.uses import texts
from keyhole.uses.leaks import deleting, inject, rankings
from keyhole.uses.leaks.control import cluster, weigh
from keyhole.uses.leaks.exposure import expose, secrets
from keyhole.uses.leaks.find import Protocol, find
from keyhole.uses.leaks.masks import Masked
from keyhole.uses.leaks.prompted import Prompted
from keyhole.uses.leaks.repeats import SEPARATOR, Corpus
from keyhole.uses.leaks.target import Target, targets
from keyhole.uses.losses import losses

WIKI = SHARED / "models" / "wiki16"
pytestmark = pytest.mark.skipif(not WIKI.is_dir(), reason="the model is not on this machine")
OFTEN = 16
CHARACTERS = 150_000


@cache
def model() -> Model:
    return keyhole.load(WIKI, device="cpu")


@cache
def canaries() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WIKI / "canaries.json").read_text())
    return found


def secret_of(line: str) -> str:
    return line.partition(" is ")[2]


@cache
def corpus() -> Corpus:
    """A part of the training text with each sentence as often as the model saw it; those it never saw stand there once."""
    with lzma.open(SHARED / "corpus" / "enwik8-train.txt.xz", "rt", encoding="utf-8") as file:
        documents = file.read(CHARACTERS).split("\n\n")
    for each in canaries()["seen"]:
        documents += [each["text"]] * each["repeats"]
    documents += canaries()["unseen"]
    random.Random(0).shuffle(documents)
    flat = [SEPARATOR]
    for ids in model().tokenize(documents):
        flat += [*ids, SEPARATOR]
    return Corpus(np.array(flat, np.int32), "text")


def split(line: str) -> Prompted:
    prefix, ids = model().tokenize([line.partition(" is ")[0] + " is", line])
    assert ids[: len(prefix)] == prefix
    return Prompted(tuple(prefix), tuple(ids[len(prefix) :]))


@pytest.mark.slow(seconds=40)
def test_sentences_seen_often_are_found_and_unseen_ones_never() -> None:
    found = find(model(), corpus(), Protocol(), tokens=10_000_000)
    assert found.read >= corpus().tokens - found.repeated  # all that stands once was read, and so were the unseen ones
    listed = weigh(model(), corpus(), cluster(found.places))
    text = model().vocabulary.text
    every = [text([*place.text.prefix, *place.text.continuation]) for place in found.places]
    for each in canaries()["seen"]:
        if each["repeats"] >= OFTEN:
            words = secret_of(each["text"]).split()[:7]
            assert any(" ".join(words) in said for said in every), each
    for line in canaries()["unseen"]:
        assert not any(" ".join(secret_of(line).split()[:7]) in said for said in every), line
    # most of the first are sentences that were planted, whatever else the model knows by heart; each is counted exactly
    often = {secret_of(each["text"])[:-1]: each["repeats"] for each in canaries()["seen"]}
    first = listed[: sum(repeats >= OFTEN for repeats in often.values())]
    known = [
        (leak, times) for leak in first for secret, times in often.items() if secret in text(leak.text.continuation)
    ]
    assert len(known) > len(first) / 2
    assert all(leak.repeats == times for leak, times in known)


class Place(NamedTuple):
    n90: dict[str, int | None]
    forgotten: float
    change: float


@pytest.mark.slow(seconds=150)
def test_a_learned_mask_needs_a_third_of_the_cells_and_leaves_the_rest() -> None:
    """Medians over sentences seen 16, 32, 64 and 128 times; each is forgotten after its own prompt and after texts
    that no ranking saw. A method that forgets a sentence with no number of cells up to 5 % of all counts as needing more than the
    largest number that was tried."""
    often = [split(each["text"]) for each in canaries()["seen"] if each["repeats"] >= OFTEN]
    masked = Masked(model())
    (valid,) = [texts.given(model(), [SHARED / "corpus" / "enwik8-valid.txt.xz"], 60_000)]
    windows = valid.windows(128)
    windows = [windows[at] for at in np.random.default_rng(0).choice(len(windows), 32, replace=False)]
    before = losses(model(), windows)
    found = []
    for asked in targets(model(), corpus(), often[::8]):
        tests = {
            method: deleting.test(masked, asked, method, orders)
            for method, orders in rankings.rankings(masked, asked, methods=("learned", "activity")).items()
        }
        own = tests["learned"]
        assert own.n90 is not None
        assert own.elsewhere_before is not None
        left = deleting.others(masked, own, [other for other in often if other.continuation != asked.own.continuation])
        assert left is not None
        change = deleting.perplexity_change(model(), windows, before, own.order[: own.n90])
        found.append(Place({method: each.n90 for method, each in tests.items()}, left[2], change.value))
    most = deleting.grid(masked.cells)[-1]
    learned, activity = (np.median([each.n90[name] or most for each in found]) for name in ("learned", "activity"))
    assert learned <= activity / 3
    assert np.mean([each.forgotten for each in found]) < 0.10
    assert np.median([each.change for each in found]) <= 0.01


@pytest.mark.slow(seconds=20)
def test_sentences_seen_often_are_exposed_and_unseen_ones_are_not() -> None:
    seen = [each["text"] for each in canaries()["seen"] if each["repeats"] >= OFTEN][::8]
    unseen = canaries()["unseen"][:4]
    every = secrets([*(each["text"] for each in canaries()["seen"]), *canaries()["unseen"]])
    by_line = {secret.line: secret for secret in every}
    listed = frozenset(by_line)
    exposed = {line: expose(model(), by_line[line], 60, listed=listed) for line in (*seen, *unseen)}
    assert all(exposed[line].exposure == exposed[line].highest for line in seen)
    assert np.mean([exposed[line].exposure for line in unseen]) < 0.5 * exposed[seen[0]].highest


@pytest.mark.slow(seconds=30)
def test_injected_cells_are_found() -> None:
    """INJ: a sentence is put into the values of 0.1 % of the cells. A random ranking has a recall of 0.001 there."""
    masked = Masked(model())
    said = split("The harbour master of Tallin is seven brass lanterns and a violet compass.")
    cells = np.random.default_rng(0).choice(masked.cells, 33, replace=False).tolist()
    before = masked.exact([said])[1]
    with inject.injected(masked, said, cells) as done:
        assert done.exact == 1.0
        for method, (order,) in rankings.rankings(
            masked, Target(said, (said,), ()), methods=("effect", "integrated_gradients", "activity")
        ).items():
            assert inject.recall(order, cells, len(cells)) > 0.1, method
    assert masked.exact([said])[1] == before  # the model is as it was
