"""Kinds of cells in a real browser: a colour on the map, a filter in the layer table and in the search, labels on a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browsing import Site, opened, until

from keyhole.store import kinds

pytestmark = pytest.mark.slow
SIDEWAYS = "() => document.documentElement.scrollWidth - window.innerWidth"


def common(site: Site) -> tuple[str, np.ndarray]:
    """A kind that some cells have and others have not, and which."""
    found = kinds.of(site.run)
    assert found is not None
    counts = {name: int(found.has(name).sum()) for name in kinds.NAMES}
    name = max((n for n in counts if counts[n] < len(site.run.cells)), key=lambda n: counts[n])
    return name, found.has(name)


def test_layer_table_is_filtered_by_kind(page: Any, site: Site) -> None:
    name, has = common(site)
    layer = int(np.argmax([has[site.run.cells.span(each)].sum() for each in range(site.run.layers)]))
    expected = int(has[site.run.cells.span(layer)].sum())
    page.goto(f"{site.url}#/L{layer}")
    page.wait_for_selector("table.cells tbody a")
    page.select_option("#kind", name)
    until(page, f"document.querySelector('table.cells').getAttribute('aria-rowcount') === '{expected + 1}'")
    assert f"kind={name}" in page.url
    page.reload()
    page.wait_for_selector("table.cells tbody a")
    assert page.input_value("#kind") == name
    assert page.get_attribute("table.cells", "aria-rowcount") == str(expected + 1)


def test_a_cell_shows_its_labels_and_leads_to_others(page: Any, site: Site) -> None:
    name, has = common(site)
    place = int(np.flatnonzero(has)[0])
    layer, cell = site.run.cells.split(place)
    page.goto(f"{site.url}#/L{layer}/{cell}")
    found = kinds.of(site.run)
    assert found is not None
    titles = [shown.kind.title for shown in found.of(place) if shown.has]
    chips = page.locator(".chips.kinds .chip")
    chips.first.wait_for()
    assert chips.count() == len(titles)
    for at, title in enumerate(titles):
        assert chips.nth(at).inner_text().startswith(title)
    chips.nth(titles.index(next(k.title for k in kinds.KINDS if k.name == name))).click()
    page.wait_for_selector("table.cells tbody a")
    assert page.input_value("#kind") == name


COUNT = """() => {
  const said = document.querySelector("[aria-labelledby=keys-title] [role=status]")?.textContent ?? "…";
  return said.includes("…") || !said.includes("that contain") ? 0 : Number(/[0-9,]+/.exec(said)?.[0].replaceAll(",", "") ?? 0);
}"""
"""How many cells the list of keys names; 0 while they are searched for."""
COUNTED = f"before => {{ const count = ({COUNT})(); return count > 0 && count !== before; }}"


def test_search_is_filtered_by_kind(page: Any, site: Site) -> None:
    name, has = common(site)
    page.goto(f"{site.url}#/search")
    page.select_option("#kind", name)
    page.get_by_text(f"{int(has.sum()):,} cell").first.wait_for()
    page.goto(f"{site.url}#/search?q=cat&in=contains")
    page.wait_for_selector("#keys-title")
    until(page, COUNTED, 0)
    every = page.evaluate(COUNT)
    page.select_option("#kind", name)
    until(page, "() => location.hash.includes('kind=')")
    until(page, COUNTED, every)  # the old list may still be there
    assert 0 < page.evaluate(COUNT) < every


def test_map_names_the_kinds(browser: Any, site: Site) -> None:
    for width in (1200, 360):
        with opened(browser, site.url, viewport={"width": width, "height": 800}) as page:
            page.locator("#map-title").scroll_into_view_if_needed()
            page.wait_for_selector("#measure")
            page.select_option("#measure", "kind")
            page.wait_for_selector(".legend .kind")
            assert page.locator(".legend .kind").all_inner_texts() == ["none", *(kind.title for kind in kinds.KINDS)]
            assert page.evaluate(SIDEWAYS) <= 0
