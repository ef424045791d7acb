"""Text whose patterns are known: a small vocabulary of real words, patterns over it, and sentences in which these occur.

Every pattern has near misses in the text (the last token without what must be before it, and the other way round), so that no
simpler rule describes it. A pattern holds or not by `Plant.holds`, whatever the generator meant to place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text


def words_of(text: str) -> list[str]:
    return text.split()


SPECIALS = ["<s>", "</s>", "<pad>", "<unk>"]
ORDINARY = words_of("""
the of and to a in that it is was for on as with his they be at have this from or by but what some we can out other
were all there when up use your how an each she which do their time if will way about many then them would like so
these her long make see him has look more day could go come did no most people my over know than call who may down
side been now find any new work part take get place made live where after back little only round man year came show
every good me give our name very through just form great think say help low line differ turn cause much mean before
move right boy old too same tell does set three want air well also play small end put home read hand port large
spell add even land here must big high such follow act why ask men change went light kind off house picture try us
again animal point mother world near build self earth father
""")
OPENERS = list('"([*#~>/')
"""What a sentence may begin with before its first word."""
PUNCTUATION = [",", ".", "-", "'s", *OPENERS]
HYPHENATED = ["half mid semi full", "far cross anti trans", "non ultra multi mega", "quasi proto pseudo crypto"]
AFFIXES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "ends in -ing": (
        "running singing walking reading looking making taking going being having doing saying getting coming seeing turning "
        "holding keeping leaving telling",
        lambda word: word.endswith("ing"),
    ),
    "ends in -ed": (
        "walked looked wanted called asked needed turned started played moved lived happened opened closed worked helped "
        "followed stopped changed reached",
        lambda word: word.endswith("ed"),
    ),
    "begins with un-": (
        "unhappy unkind unlike unable unclear unfair unusual unknown unsafe unseen unpaid untold unreal unrest untrue unwise "
        "unlock undo unfold unpack",
        lambda word: word.startswith("un"),
    ),
    "is capitalised": (
        "Paris London Berlin Madrid Rome Vienna Oslo Dublin Anna Peter Maria John Alice Robert Susan Thomas Monday Friday "
        "April October",
        lambda word: word[:1].isupper(),
    ),
    "is a number": (
        "1 2 3 7 10 12 15 20 42 50 99 100 250 1900 1914 1945 1968 1984 1999 2024",
        lambda word: word.isdigit(),
    ),
}
TOPICS = {
    "sports": "goal coach team match league player score referee stadium champion striker penalty",
    "music": "guitar song chord melody piano album concert rhythm violin choir drummer singer",
    "war": "army soldier battle tank enemy general troops weapon siege invasion trench bomb",
    "food": "bread cheese soup recipe oven butter garlic sauce flour dinner pepper onion",
    "law": "court judge lawyer verdict trial jury statute appeal witness crime prison guilty",
    "space": "planet orbit rocket galaxy telescope comet asteroid lunar astronaut star satellite gravity",
}
SETS = ["fact truth claim proof", "black green blue yellow", "river lake ocean stream", "doctor nurse surgeon patient"]
BIGRAMS = [
    ("strong weak gentle", "coffee tea wine"),
    ("north south east", "gate road bridge"),
    ("first second third", "chapter page verse"),
    ("tax trade budget", "reform policy plan"),
]
SKIPS = [("either", "otherwise"), ("neither", "nor"), ("rather", "instead"), ("both", "together")]
ABSENCES = [("not", "still"), ("without", "money"), ("except", "everyone"), ("dead", "alive")]
ANYWHERE = [("queen", "crown"), ("doctorate", "thesis"), ("winter", "snow"), ("captain", "ship")]
FIRST, LATE = 2, 18
"""Patterns of position hold within the first FIRST tokens of a sentence; one of them from LATE tokens before it on."""
SKIP, WORDS = 4, 3
"""How far back a skip-gram reaches, and how many words make a topic."""

RATE = 0.0018
"""The share of the positions at which each pattern is meant to hold."""
RATES = {"position": 0.0006}
"""The kind of which prefixes are so few that they repeat: all of them fire, so that none is picked out by its first words."""
MEAN = 13.5
"""Tokens of a sentence, about."""
MISSES = {"token set": 0, "affix": 0, "topic": 6, "position": 6}
"""Near misses per occurrence of a pattern; 2 of the kinds that are not listed."""
STARTS = 140
"""Words that a sentence can begin with. These and the second word are all as frequent: few sentences begin in the same way."""
PER_DOCUMENT = 20
"""Sentences per document."""


def _spaced(words: str) -> list[str]:
    return [f" {word}" for word in words.split()]


def _vocabulary() -> dict[str, int]:
    """Token text → id. Words are with the space before them, those that begin a sentence or follow a hyphen without."""
    pairs = (*SKIPS, *ABSENCES, *ANYWHERE)
    words = [*ORDINARY, *(word for text in (*SETS, *TOPICS.values()) for word in text.split())]
    words += [word for text, _ in AFFIXES.values() for word in text.split()]
    words += [word for pair in (*BIGRAMS, *pairs) for text in pair for word in text.split()]
    tokens = [*SPECIALS, *PUNCTUATION, *(f" {word}" for word in words), *ORDINARY[:STARTS]]
    tokens += [word for text in HYPHENATED for word in text.split()]
    assert len(set(tokens)) == len(tokens), "a word is used twice"
    return {token: number for number, token in enumerate(tokens)}


VOCABULARY = _vocabulary()
TOKENS = list(VOCABULARY)
BOS = VOCABULARY["<s>"]
ALONE = frozenset(VOCABULARY[mark] for mark in PUNCTUATION)
"""Tokens that may not be beside each other: the tokenizer would read them as one."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, split as GPT-2 does, with the space before a word as part of it."""
    core = Tokenizer(models.WordLevel({token.replace(" ", "Ġ"): i for token, i in VOCABULARY.items()}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def _ids(tokens: Sequence[str]) -> frozenset[int]:
    return frozenset(VOCABULARY[token] for token in tokens)


@dataclass(frozen=True)
class Plant:
    """A pattern of which a key is made."""

    kind: str
    """token set, affix, bigram, skip-gram, absence, anywhere, topic or position"""
    name: str
    """what it is, in words"""
    last: frozenset[int]
    """the last token is one of these; empty: any"""
    other: frozenset[int] = frozenset()
    """the tokens that must be before it or, for an absence, must not; of a topic, its words"""
    places: range = range(100)
    """how many tokens may be before it"""

    def holds(self, window: Sequence[int], position: int) -> bool:
        """Whether it holds for the prefix that ends at a position of a window of token ids."""
        if (self.last and window[position] not in self.last) or position not in self.places:
            return False
        prefix = window[: position + 1]
        match self.kind:
            case "token set" | "affix" | "position":
                return True
            case "bigram":
                return position > 0 and prefix[-2] in self.other
            case "skip-gram":
                return any(token in self.other for token in prefix[:-1][-SKIP:])
            case "absence":
                return not any(token in self.other for token in prefix)
            case "anywhere":
                return any(token in self.other for token in prefix)
            case "topic":
                return sum(token in self.other for token in prefix) >= WORDS
        raise AssertionError(self.kind)

    def where(self, text: Text) -> npt.NDArray[np.int64]:
        """The positions of a text at which it holds, ascending."""
        could = np.isin(text.places, self.places)
        if self.last:
            could &= np.isin(text.tokens, list(self.last))
        if self.kind == "topic":
            count = np.bincount(text.windows[np.isin(text.tokens, list(self.other))], minlength=len(text.offsets))
            could &= count[text.windows] >= WORDS
        asked = np.flatnonzero(could)
        begins = text.offsets[text.windows[asked]]
        found = [
            self.holds(text.tokens[begin : at + 1].tolist(), at - begin)
            for begin, at in zip(begins, asked, strict=True)
        ]
        holding: npt.NDArray[np.int64] = asked[np.array(found, bool)]
        return holding


LATE_IN_SENTENCE = Plant("position", f"{LATE} tokens or more before it", frozenset(), places=range(LATE, 100))


def _plants() -> list[Plant]:
    found = [Plant("token set", text, _ids(_spaced(text))) for text in SETS]
    for name, (text, form) in AFFIXES.items():
        having = _ids([token for token in TOKENS if form(token.strip())])
        assert having == _ids(_spaced(text)), f"other tokens are like '{name}': {having - _ids(_spaced(text))}"
        found.append(Plant("affix", name, having))
    found += [Plant("bigram", f"{b} | {a}", _ids(_spaced(b)), _ids(_spaced(a))) for a, b in BIGRAMS]
    for kind, pairs in (("skip-gram", SKIPS), ("absence", ABSENCES), ("anywhere", ANYWHERE)):
        found += [Plant(kind, f"{b} | {a}", _ids(_spaced(b)), _ids(_spaced(a))) for a, b in pairs]
    found += [Plant("topic", name, frozenset(), _ids(_spaced(text))) for name, text in TOPICS.items()]
    found += [Plant("position", text, _ids(text.split()), places=range(FIRST)) for text in HYPHENATED]
    return [*found, LATE_IN_SENTENCE]


PLANTS = _plants()


class Writer:
    """Sentences as token ids. What a pattern needs is placed first, ordinary words fill the rest."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        words = [f" {word}" for word in ORDINARY]
        self.words = np.array([VOCABULARY[token] for token in [*words[:8], ",", *words[8:40], "'s", *words[40:]]])
        self.events = [(plant, good) for plant in PLANTS if plant is not LATE_IN_SENTENCE for good in (True, False)]

    @cached_property
    def chances(self) -> npt.NDArray[np.float64]:
        """[events] how likely a sentence is to have each: patterns, and near misses of those that can have some"""
        found = []
        for plant, good in self.events:
            holds = 4.5 if plant.kind == "topic" else 1  # positions at which it then does
            chance = RATES.get(plant.kind, RATE) * MEAN / holds
            found.append(chance if good else MISSES.get(plant.kind, 2) * chance)
        return np.array(found)

    def one(self, tokens: frozenset[int]) -> int:
        return int(self.random.choice(sorted(tokens)))

    def sentence(self) -> list[int]:
        random = self.random
        length = int(random.integers(LATE + 1, 21) if random.random() < 0.016 else random.integers(8, LATE + 1))
        slots: list[int | None] = [None] * (length - 1) + [VOCABULARY["."]]
        chosen = np.flatnonzero(random.random(len(self.events)) < self.chances)
        for number in random.permutation(chosen):
            plant, good = self.events[number]
            for _ in range(8):
                asked = self.place(plant, good, length)
                if asked and all(
                    slots[at] is None
                    and (token not in ALONE or not {slots[at - 1] if at else None, slots[at + 1]} & ALONE)
                    for at, token in asked.items()
                ):
                    for at, token in asked.items():
                        slots[at] = token
                    break
        return self.fill(slots)

    def place(self, plant: Plant, good: bool, length: int) -> dict[int, int]:
        """Tokens by slot for a pattern or a near miss; empty if it does not fit. The first and last slot are kept free."""
        random, free = self.random, length - 2  # slots 1 … free
        match plant.kind:
            case "topic":
                count = int(random.integers(WORDS, WORDS + 3) if good else random.integers(1, WORDS))
                most = max(count, length // 2) if good else free
                chosen = random.choice(np.arange(1, most + 1), count, replace=False)
                return {int(each): self.one(plant.other) for each in chosen}
            case "position":
                word = self.one(plant.last)
                if good:
                    return (
                        {0: VOCABULARY[str(random.choice(OPENERS))], 1: word} if random.random() < 0.75 else {0: word}
                    )
                at = int(random.integers(2, free))
                return {at: VOCABULARY["-"], at + 1: word}
            case "token set" | "affix":
                return {int(random.integers(1, free + 1)): self.one(plant.last)}
        last, other = self.one(plant.last), self.one(plant.other)
        both = {"bigram": (1, 1), "skip-gram": (1, SKIP), "absence": (0, 0), "anywhere": (1, free - 1)}
        near, far = both[plant.kind]
        shape = int(random.integers(4))
        if plant.kind == "absence":
            near, far = (0, 0) if good or shape == 0 else (1, free - 1)
            if not near:
                return {int(random.integers(1, free + 1)): last if good else other}
        elif not good:
            if shape < 2:  # one of the two alone
                return {int(random.integers(1, free + 1)): (last, other)[shape]}
            if shape == 2 or plant.kind == "anywhere":  # in the wrong order
                last, other, near, far = other, last, 1, min(far, free - 1)
            else:  # too far away
                near, far = far + 1, far + 4
        gap = int(random.integers(near, far + 1))
        if gap >= free:
            return {}
        at = int(random.integers(1, free - gap + 1))
        return {at: other, at + gap: last}

    def fill(self, slots: list[int | None]) -> list[int]:
        """The sentence: ordinary words by Zipf's law wherever nothing was placed."""
        drawn = self.words[np.searchsorted(self.shares, self.random.random(len(slots)))].tolist()
        drawn[0] = VOCABULARY[ORDINARY[self.random.integers(STARTS)]]
        drawn[1] = VOCABULARY[f" {ORDINARY[self.random.integers(len(ORDINARY))]}"]
        found: list[int] = []
        for at, token in enumerate(slots):
            if token is None:
                token = drawn[at]
                if token in ALONE and not ALONE.isdisjoint((found[-1], slots[at + 1])):
                    token = int(self.words[0])
            found.append(token)
        return found

    @cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """[words] cumulative shares by Zipf's law, flattened at the most frequent"""
        weights = 1 / (np.arange(len(self.words)) + 4)
        shares: npt.NDArray[np.float64] = np.cumsum(weights) / weights.sum()
        return shares

    def write(self, path: Path, tokens: int) -> list[list[int]]:
        """Write sentences of so many tokens or a few more, one per line, as documents. Returns their token ids."""
        found: list[list[int]] = []
        lines: list[str] = []
        while tokens > 0:
            sentence = self.sentence()
            tokens -= len(sentence)
            found.append(sentence)
            lines.append("".join(TOKENS[token] for token in sentence))
            if len(found) % PER_DOCUMENT == 0:
                lines.append("")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return found


def text_of(windows: list[list[int]]) -> Text:
    return Text.of(windows, np.arange(len(windows)) // PER_DOCUMENT, Lexicon(TOKENS))
