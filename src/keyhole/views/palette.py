"""The colours of keys and values, the same in every view: a notebook draws them from here, the explorer from style.css."""

HUES = {
    "fire": "#c8681c",
    "chill": "#3b77ad",
    "say": "#3f7d58",
    "unsay": "#a04a55",
    "keytext": "#9c4d12",
    "agree": "#d5e8d6",
}
"""fire: a coefficient above zero; chill: one below. say: a token that a value promotes; unsay: one that it demotes. keytext: the box
around a trigger's last token. agree: a next token that the value promotes most."""


def rgb(hue: str) -> str:
    """`200,104,28`: for a colour with a share of transparency."""
    code = HUES[hue]
    return ",".join(str(int(code[at : at + 2], 16)) for at in (1, 3, 5))
