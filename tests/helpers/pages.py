"""A page of HTML, taken apart."""

from __future__ import annotations

import re
from html.parser import HTMLParser

SAFE = {
    "div",
    "style",
    "h4",
    "h5",
    "span",
    "b",
    "bdi",
    "code",
    "mark",
    "ol",
    "li",
    "p",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}


class Page(HTMLParser):
    """What a page loads, runs, and says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.said: list[str] = []
        self._at = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._at = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._at = ""

    def handle_data(self, data: str) -> None:
        if self._at in self.inside:
            self.inside[self._at][-1] += data
        else:
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.said).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


class Fragment(HTMLParser):
    """What a piece of HTML says, and what it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.said, self.attributes, self.open = "", dict[str, set[str]](), list[str]()
        self.feed(text)
        self.close()
        assert self.open == [], "an element is left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SAFE, f"<{tag}>"
        self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.said += data


def read(html: str) -> str:
    """The text, after a look at every tag and attribute."""
    page = Fragment(html)
    assert set(page.attributes) <= {"class", "style"}
    for style in page.attributes.get("style", ()):
        assert re.fullmatch(r"background:rgba\([\d,.]+\)|width:[\d.]+em", style)
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", html)
    assert "url(" not in html
    assert "http" not in html
    return page.said
