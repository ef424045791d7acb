"""The glossary: one click away from every page, and the same as in docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Site, go, titled

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs" / "glossary.md"
ASKED = {"cell", "key", "value", "trigger", "prefix", "coefficient", "lens", "max p"}


def test_the_glossary_is_one_click_away_and_that_of_the_docs(page: Any, site: Site) -> None:
    for route in ("", "#/L1/7", "#/search?q=cat", "#/nowhere"):
        go(page, site, route or "#/")
        page.get_by_role("banner").get_by_role("link", name="Glossary").click()
        titled(page, "Glossary")
    terms = page.locator(".glossary dt").all_inner_texts()
    shown = dict(zip(terms, page.locator(".glossary dd").all_inner_texts(), strict=True))
    assert set(shown) >= ASKED
    assert shown == dict(re.findall(r"^- \*\*(.+?)\*\*: (.+)$", DOCS.read_text("utf-8"), re.MULTILINE))
    paper = page.get_by_role("contentinfo").get_by_role("link", name="Key-Value Memories")
    assert paper.get_attribute("href") == "https://aclanthology.org/2021.emnlp-main.446/"
