"""The packs of an export, read by the page in a real browser: what it gets is what the server answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Site, go, hosted, lively, opened, titled, until

import keyhole
from keyhole.export import packs, texts
from keyhole.export.site import export
from keyhole.web.contract import Explorer

pytestmark = pytest.mark.slow(seconds=2)

READ = """
async (paths) => {
  const { read, run } = await import(new URL("static/data.js", document.baseURI));
  await run();
  const found = await Promise.all(paths.map((path) => read(`data/${path}`)));
  // the tokens of triggers come joined from a server, as a list from a pack: unpack.js takes both
  const same = (value) =>
    Array.isArray(value)
      ? value.length > 6 && typeof value[6] === "string" && typeof value[3] === "number"
        ? value.with(6, value[6].split("|")).map(same)
        : value.map(same)
      : value && typeof value === "object"
        ? Object.fromEntries(Object.entries(value).map(([name, each]) => [name, same(each)]))
        : value;
  return found.map((each) => JSON.stringify(same(each), (_, value) => value === -0 ? 0 : value));
}
"""


def everything(browser: Any, url: str, paths: list[str]) -> dict[str, str]:
    with opened(browser, url) as page:
        page.wait_for_selector("main h1")
        return dict(zip(paths, page.evaluate(READ, paths), strict=True))


@pytest.mark.parametrize("shared", [True, False])
def test_the_page_reads_from_packs_what_the_server_answers(
    browser: Any, live: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """With one file of texts, and with many small packs that have their own."""
    monkeypatch.setattr(texts, "SHARED", texts.SHARED if shared else 0)
    monkeypatch.setattr(packs, "BYTES", packs.BYTES if shared else 20_000)
    export(live.run, tmp_path / "site")
    assert len(list((tmp_path / "site" / "data").glob("cells*.pack"))) > (0 if shared else 5)
    paths = [path for path in Explorer(live.run).paths() if path != "run.json"]
    with hosted(tmp_path) as url:
        found = everything(browser, url + "site/", paths)
    answered = everything(browser, live.url, paths)
    assert [path for path in paths if found[path] != answered[path]] == []


def test_few_files_and_a_pack_that_is_missing(browser: Any, browsed: keyhole.Run, tmp_path: Path) -> None:
    done = export(browsed, tmp_path / "site")
    assert done.files < 120  # of 320 cells
    with hosted(tmp_path) as url:
        site = Site(url + "site/", browsed, live=False)
        with opened(browser, site.url) as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            go(page, site, "#/L1/9")
            page.wait_for_selector(".triggerlist li")
            before = len([each for each in asked if ".pack" in each])
            go(page, site, "#/L1/10")
            assert len([each for each in asked if "/cells-" in each]) <= before  # its neighbour is in the same pack
    for pack in (tmp_path / "site" / "data").glob("cells*.pack"):
        pack.unlink()
    stamp = json.loads((tmp_path / "site" / "data" / "run.json").read_bytes())["export"]["stamp"]
    with hosted(tmp_path) as url, opened(browser, url + "site/#/L1/9", refused=[f"?{stamp}"]) as page:
        page.wait_for_selector("main .missing")
        assert "Is the export complete?" in page.locator("main .missing").inner_text()


@pytest.fixture(scope="module")
def part(browsed: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Layer 1 and one cell of layer 0."""
    folder = tmp_path_factory.mktemp("part")
    export(browsed, folder / "site", layers="1", cells=[f"L0.{lively(browsed, 0)}"])
    with hosted(folder) as url:
        yield Site(url + "site/", browsed, live=False)


@pytest.mark.parametrize("width", [1280, 360])
def test_a_part_says_what_is_not_in_it(browser: Any, part: Site, width: int) -> None:
    alone = lively(part.run, 0)
    with opened(browser, part.url, viewport={"width": width, "height": 800}) as page:
        page.wait_for_selector(".cards .lines")
        assert all(each.startswith(("L1.", f"L0.{alone}")) for each in page.locator(".cardhead b").all_inner_texts())
        go(page, part, f"#/L0/{alone + 1}")
        said = page.locator("main .missing").inner_text()
        assert said == f"L0.{alone + 1} is not in this export, which has layer 1; L0.{alone} (161 of 320 cells)."
        page.get_by_role("link", name=f"Go to L0.{alone}").click()
        page.wait_for_selector(".triggerlist li")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("j")  # the next cell that there is
        titled(page, "L1.0 ")
        page.keyboard.press("k")
        titled(page, f"L0.{alone} ")
        go(page, part, "#/L0")
        assert page.locator("tbody tr:not(.space)").count() == 1
        assert "1 of 160 cells" in page.locator("[role=status]").first.inner_text()


def test_a_part_finds_only_its_own_cells(browser: Any, part: Site, live: Site) -> None:
    found = {}
    for site in (part, live):
        with opened(browser, site.url) as page:
            go(page, site, "#/search?q=cat")
            page.wait_for_selector(".results .hit")
            until(page, "!document.body.textContent.includes('texts read …')")
            found[site.live] = set(page.locator(".results .hit .address").all_inner_texts())
    assert found[False]
    allowed = f"L0.{lively(part.run, 0)}"
    assert all(each.startswith("L1.") or each == allowed for each in found[False])
    assert any(each.startswith("L0.") and each != allowed for each in found[True])
    with opened(browser, part.url) as page:  # similar cells that are left out say so
        cell = next(i for i in range(160) if any(a.startswith("L0.") for a, _ in similar(part.run, i)))
        go(page, part, f"#/L1/{cell}")
        page.wait_for_selector(".alike .absent, .others .absent")
        page.locator(".absent").first.click()
        page.wait_for_selector("main .missing")
        assert "is not in this export" in page.locator("main .missing").inner_text()


def similar(run: keyhole.Run, cell: int) -> list[tuple[str, int]]:
    return Explorer(run).cell(1, cell).similar_keys
