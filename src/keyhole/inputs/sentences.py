"""Lines of text split into sentences, by the rules of their language (the package `sentencex`)."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterator

from ..errors import CorpusError, UsageError

LANGUAGES = {
    "am": "Amharic",
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fi": "Finnish",
    "fr": "French",
    "gu": "Gujarati",
    "hi": "Hindi",
    "hy": "Armenian",
    "it": "Italian",
    "ja": "Japanese",
    "kk": "Kazakh",
    "kn": "Kannada",
    "ml": "Malayalam",
    "mr": "Marathi",
    "my": "Burmese",
    "nl": "Dutch",
    "pa": "Punjabi",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "sk": "Slovak",
    "ta": "Tamil",
    "te": "Telugu",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "zh": "Chinese",
}
"""The languages that sentencex has rules or tests for. It treats any other code as English or as a related
language, without an error, so a misspelt one would not be noticed."""
STRETCH_CHARACTERS = 1 << 20
"""The longest text that is split at once, and so the longest sentence: a longer one is cut at white space."""
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\s*\.)")
"""White space of more than one byte before a full stop. The splitter may fail there, so it is given a plain space instead."""


def check_language(code: str) -> None:
    """Refuse a code that is not in `LANGUAGES`."""
    if not isinstance(code, str) or code not in LANGUAGES:
        some = ", ".join(
            f"{each} ({LANGUAGES[each]})" for each in ("ar", "de", "en", "es", "fr", "hi", "ja", "ru", "zh")
        )
        raise UsageError(
            f"The language is {code!r:.40}; there are rules for {', '.join(LANGUAGES)}, as in {some}. For another language "
            "give the one whose punctuation and abbreviations are most alike, or use --unit line."
        )


def sentence_splitter(language: str) -> Callable[[str], Iterator[tuple[int, str]]]:
    """A function that splits a line: for each sentence, where it starts, and its text without white space at both ends."""
    check_language(language)
    try:
        from sentencex import segment
    except ImportError:
        raise CorpusError(
            "Splitting text into sentences needs the package 'sentencex' (pip install sentencex). "
            "If it cannot be installed, use --unit line."
        ) from None

    def split(line: str) -> Iterator[tuple[int, str]]:
        at = 0
        while at < len(line):
            stretch = _stretch(line, at)
            if not stretch.strip():
                at += len(stretch)
                continue
            parts = segment(language, stretch if stretch.isascii() else WIDE_SPACE.sub(" ", stretch))
            if at + len(stretch) < len(line):
                parts = _settled(parts)
            for part in parts:
                sentence = line[at : at + len(part)]
                if text := sentence.strip():
                    yield at + sentence.index(text[0]), text
                at += len(part)

    return split


def _stretch(line: str, at: int) -> str:
    """The part of a line that is split at once: all of it from `at` on, or as many words as `STRETCH_CHARACTERS` hold."""
    stretch = line[at : at + STRETCH_CHARACTERS]
    if at + len(stretch) == len(line) or line[at + len(stretch)].isspace():
        return stretch
    words = stretch.rsplit(None, 1)
    return stretch[: stretch.rindex(words[1])] if len(words) == 2 else stretch


def _settled(parts: list[str]) -> list[str]:
    """The sentences of a stretch that the text after it cannot change, at least one; the next stretch starts after them. A
    quotation holds its sentences together, so sentences near the end of the stretch may still turn out to be one."""
    ends = list(itertools.accumulate(map(len, parts)))
    settled = bisect.bisect_right(ends, ends[-1] - STRETCH_CHARACTERS // 8)
    return parts[: settled or max(1, len(parts) - 1)]
