"""The table of all cells in a real browser: what it shows, filters, sorts and downloads is what SQL says of the same run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from browsing import CELLS, LAYERS, Site, go, opened, until

import keyhole
from keyhole.analyses import relations
from keyhole.store import collections, tables

pytestmark = pytest.mark.slow(seconds=2)
ALL = LAYERS * CELLS
CHOSEN = "columns=address,layer,kinds,dead,active,max,trigger,last_token,next_token,promoted,agreement,rank,entropy"


def ask(run: keyhole.Run, sql: str) -> list[dict[str, Any]]:
    return tables.query(run.path, sql, relations.of(run))


def stands(page: Any, count: int | None = None) -> None:
    """Wait until the table is there, and says how many cells it has."""
    page.wait_for_selector("table.all")
    until(page, "() => !document.querySelector('.alltable').hasAttribute('aria-busy')")
    if count is not None:
        said = f"{ALL} cells" if count == ALL else f"{count} of {ALL} cells"
        until(page, "said => document.querySelector('.controls p[role=status]').textContent === said", said)


def addresses(page: Any) -> list[str]:
    return page.locator("table.all tbody a.address").all_inner_texts()  # type: ignore[no-any-return]


def shown_sql(page: Any) -> str:
    if not page.locator(".takeaway").evaluate("each => each.open"):
        page.locator(".takeaway summary").click()
    return str(page.locator(".sql").inner_text())


def saved(page: Any, name: str) -> bytes:
    shown_sql(page)
    with page.expect_download() as download:
        page.locator(".takeaway button", has_text=name).click()
    return Path(download.value.path()).read_bytes()


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and found is not None:
        return bool(found == pytest.approx(wanted, rel=1e-5))
    return bool(found == wanted)


def test_rows_and_downloads_are_what_sql_says(page: Any, site: Site) -> None:
    go(page, site, f"#/cells?{CHOSEN}&sort=max&order=down&layer=0..1&dead=0&entropy=0..")
    stands(page)
    rows = ask(site.run, shown_sql(page))
    assert rows
    stands(page, len(rows))
    assert addresses(page) == [row["address"] for row in rows][: len(addresses(page))]
    assert len(addresses(page)) < 60, "more rows in the page than are in view"
    found = json.loads(saved(page, "JSON"))
    assert len(found) == len(rows)
    for one, other in zip(found, rows, strict=True):
        assert list(one) == list(other)
        assert all(same(one[name], other[name]) for name in one), (one, other)
    read = list(csv.DictReader(io.StringIO(saved(page, "CSV").decode(), newline="")))
    for one, other in zip(read, rows, strict=True):
        for name, value in other.items():
            text = one[name][1:] if one[name].startswith("'") else one[name]
            assert not one[name].startswith(("=", "+", "@", "\t", "\r")), one[name]
            if value is None:
                assert text == ""
            elif isinstance(value, list):
                assert json.loads(text) == value
            elif isinstance(value, float):
                assert float(text) == pytest.approx(value, rel=1e-5)
            else:
                assert text == str(value)


def test_filters_of_every_form(page: Any, site: Site) -> None:
    some = ask(site.run, "select last_token, promoted, kinds from cells where len(kinds) > 0 and not dead")[0]
    piece, said, kind = some["last_token"].strip().upper(), some["promoted"][1], some["kinds"][0]
    go(page, site, "#/cells")
    stands(page, ALL)

    def add(name: str) -> None:
        page.select_option("#add-filter", name)

    add("last_token")
    page.fill("#filter-last_token", piece)
    first = ask(site.run, shown_sql(page))
    until(page, "text => document.querySelector('.sql').textContent.includes(text)", piece.replace("'", "''"))
    first = ask(site.run, shown_sql(page))
    stands(page, len(first))
    page.locator("[data-filter=last_token] button").click()
    stands(page, ALL)
    add("kinds")
    page.select_option("#filter-kinds", kind)
    add("promoted")
    page.fill("#filter-promoted", f'"{said}"')
    page.fill("#filter-layer", "0")
    page.fill("#filter-layer-to", "0")
    until(page, "() => document.querySelector('.sql').textContent.includes('t in promoted')")
    until(page, "() => document.querySelector('.sql').textContent.includes('layer <= 0')")
    rows = ask(site.run, shown_sql(page))
    stands(page, len(rows))
    assert addresses(page) == [row["address"] for row in rows][:60][: len(addresses(page))]
    assert all(kind in row["kinds"] and said in row["promoted"] for row in rows)
    before = page.url
    page.reload()
    stands(page, len(rows))
    assert page.url == before
    assert page.input_value("#filter-promoted") == f'"{said}"'
    page.fill("#filter-layer", "nonsense")
    until(page, "() => document.querySelector('#filter-layer').getAttribute('aria-invalid') === 'true'")
    page.fill("#filter-layer", "")
    page.locator("[data-filter=promoted] button").click()
    page.locator("[data-filter=kinds] button").click()
    add("trigger")
    page.fill("#filter-trigger", "cat")
    until(page, "() => document.querySelector('.sql').textContent.includes('(trigger)')")
    stands(page, len(ask(site.run, shown_sql(page))))


def test_columns_order_and_keyboard(page: Any, site: Site) -> None:
    go(page, site, "#/cells")
    stands(page, ALL)
    page.locator(".choose summary").click()
    page.get_by_label("Norm", exact=True).check()
    page.locator("th.of-norm button").click()
    until(page, "() => document.querySelector('th.of-norm').getAttribute('aria-sort') === 'descending'")
    stands(page)
    wanted = ask(site.run, "select address from cells order by norm desc nulls last, place limit 20")
    assert addresses(page)[:20] == [row["address"] for row in wanted]
    page.locator("th.of-next_token button").click()
    until(page, "() => document.querySelector('th.of-next_token').getAttribute('aria-sort') === 'ascending'")
    stands(page)
    assert addresses(page)[:20] == [row["address"] for row in ask(site.run, shown_sql(page))][:20]
    assert "columns=" in page.url
    assert "sort=next_token" in page.url
    page.locator("table.all tbody a.address").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    third = addresses(page)[2]
    assert page.evaluate("document.activeElement.textContent") == third
    page.keyboard.press("Enter")
    until(page, "address => document.querySelector('main h1').textContent.includes(address)", third)
    page.go_back()
    stands(page, ALL)
    assert page.locator("th.of-norm").count() == 1


def test_parquet_is_written_by_the_server(live_page: Any, live: Site, tmp_path: Path) -> None:
    go(live_page, live, f"#/cells?{CHOSEN}&sort=trigger&order=up&last_token=a&rank=1..200")
    stands(live_page)
    rows = ask(live.run, shown_sql(live_page))
    assert rows
    file = tmp_path / "cells.parquet"
    file.write_bytes(saved(live_page, "Parquet"))
    with duckdb.connect() as db:
        read = db.execute(f"select * from '{file}'")
        names = [each[0] for each in read.description]
        found = [dict(zip(names, row, strict=True)) for row in read.fetchall()]
    assert found == rows


def test_an_export_says_how_to_make_parquet(browser: Any, exported: Site) -> None:
    with opened(browser, exported.url + "#/cells") as page:
        stands(page, ALL)
        shown_sql(page)
        assert page.locator(".takeaway button", has_text="Parquet").count() == 0
        assert "keyhole sql RUN --parquet" in page.locator(".takeaway").inner_text()


def test_stars_are_a_filter(live_page: Any, live: Site) -> None:
    collections.save(live.run, live.run.cells.place(1, 7), {"starred": True, "tags": ["cats"], "note": "=1+1"})
    go(live_page, live, "#/cells?columns=address,starred,tags,note&starred=1")
    stands(live_page, 1)
    row = live_page.locator("table.all tbody tr", has_text="L1.7").inner_text()
    assert "cats" in row
    assert "=1+1" in row
    assert b'"\'=1+1"' in saved(live_page, "CSV")


def test_on_a_phone_only_the_table_scrolls_sideways(browser: Any, live: Site) -> None:
    with opened(browser, live.url + "#/cells", viewport={"width": 360, "height": 740}) as page:
        stands(page, ALL)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        box = page.locator(".cellbox")
        assert box.evaluate("each => each.scrollWidth > each.clientWidth")
        box.evaluate("each => (each.scrollLeft = 400)")
        until(
            page, "() => document.querySelector('tbody a.address').getBoundingClientRect().x < 100"
        )  # it stays in view


def test_what_of_an_address_cannot_be_used_is_named(page: Any, site: Site) -> None:
    go(page, site, "#/cells?max_prob=abc..def&nope=1&sort=nothing&layer=1..&dead=2")
    stands(page, CELLS)
    said = page.locator("main [role=alert]").inner_text()
    for wrong in (
        "“abc..def” is no filter of Max p",
        "no column “nope”",
        "no column “nothing”",
        "“2” is no filter of Dead",
    ):
        assert wrong in said
    assert "layer=1.." in page.evaluate("location.hash"), "the rest holds"
    assert "abc" not in page.evaluate("location.hash")


def test_a_share_in_an_address_may_be_in_percent(page: Any, site: Site) -> None:
    (count,) = ask(site.run, "select count(*) as n from cells where agreement >= 0.1")
    go(page, site, "#/cells?agreement=10%25..")
    stands(page, count["n"])
    assert page.locator("main [role=alert]").count() == 0


def test_the_column_it_is_sorted_by_is_in_view(page: Any, site: Site) -> None:
    page.set_viewport_size({"width": 700, "height": 700})
    go(page, site, "#/cells?sort=max_prob&order=down")
    stands(page, ALL)
    until(
        page,
        "() => { const box = document.querySelector('.cellbox').getBoundingClientRect();"
        " const head = document.querySelector('th[aria-sort=descending]').getBoundingClientRect();"
        " return head.right <= box.right + 1 && head.left >= box.left; }",
    )
