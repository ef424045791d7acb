"""English stop words: frequent in any text, with little meaning of their own."""

from __future__ import annotations

_WORDS = """
    a about above after again against all also am an and any are aren as at be because been before being below between both
    but by can could couldn did didn do does doesn doing don down during each few for from further had hadn has hasn have
    haven having he her here hers herself him himself his how i if in into is isn it its itself just ll may me might more
    most must my myself no nor not now of off on once only or other our ours ourselves out over own re s same shall she
    should shouldn so some such t than that the their theirs them themselves then there these they this those through to
    too under until up upon ve very was wasn we were weren what when where which while who whom why will with won would
    wouldn you your yours yourself yourselves
    """
STOP_WORDS = frozenset(_WORDS.split())


def is_stop_word(piece: str) -> bool:
    """Whether a token is a stop word, whatever the case and the space before it."""
    return piece.strip().lower() in STOP_WORDS
