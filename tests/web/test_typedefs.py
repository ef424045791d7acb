"""The page's types are those of the contract."""

from __future__ import annotations

from keyhole.web import addresses, typedefs


def test_the_types_of_the_page_are_up_to_date() -> None:
    stale = "types.d.ts is not what schema/ says. Make it again: python -m keyhole.web.typedefs"
    assert typedefs.FILE.read_text(encoding="utf-8") == typedefs.typedefs(), stale


def test_records_rows_and_fields_that_may_be_left_out() -> None:
    made = typedefs.typedefs()
    assert "export interface Measure {\n  name: string;\n" in made
    assert '  side: "key" | "people" | "value";\n  format: "number" | "percent";\n' in made
    assert "  kinds?: string[];\n" in made
    assert "export type Held = [end: number, gaps: number[]];\n" in made
    assert "  promoted: Record<string, Speaker[]>;\n" in made
    assert "  promoted: [string, number | null][];\n" in made
    for each in addresses.TYPES:
        assert f" {each.__name__} " in made
