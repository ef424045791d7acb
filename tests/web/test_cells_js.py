"""The page's axis of cells (cells.js) against Python's (cells.py), on random axes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from browsing import Site, opened

from keyhole.cells import Cells, Layer
from keyhole.errors import UsageError

ASK = """
async ([layers, addresses]) => {
  const { Cells, parse, link } = await import(new URL("static/cells.js", document.baseURI));
  const cells = new Cells(layers);
  const places = Array.from({ length: cells.length }, (_, place) => {
    const { layer, cell } = cells.split(place);
    const next = cells.step({ layer, cell }, 1);
    return [layer, cell, cells.place(layer, cell), cells.address(layer, cell), cells.href(layer, cell), next];
  });
  const found = addresses.map((address) => {
    const parsed = parse(address);
    return parsed && [cells.locate(parsed), cells.locate(parsed) ? null : cells.missing(parsed), link(parsed)];
  });
  const spans = layers.map((_, layer) => [cells.span(layer), cells.size(layer), cells.label(layer), cells.href(layer)]);
  return { length: cells.length, depth: cells.depth, widest: cells.widest, places, found, spans };
}
"""


@pytest.fixture(scope="module")
def page(browser: Any, live: Site) -> Any:
    with opened(browser, live.url) as page:
        yield page


def axes() -> list[Cells]:
    """One stack and two, layers with experts and without, of one width and of several."""
    chance, made = random.Random(5), []
    for number in range(24):
        stacks = ["enc", "dec"] if number % 3 == 2 else [""]
        width, experts = chance.randint(1, 9), chance.choice([0, 0, 1, 3])
        layers = []
        for stack in stacks:
            for layer in range(chance.randint(1, 5)):
                if number % 2:
                    width, experts = chance.randint(1, 12), chance.choice([0, 0, 0, 1, 4])
                layers.append(Layer(width, experts, stack, layer))
        made.append(Cells(layers))
    return made


def nowhere(cells: Cells) -> list[str]:
    """Addresses around the axis, of which many lead nowhere."""
    stacks = sorted({layer.stack for layer in cells.layers} | {"", "dec"})
    names = [f"{stack}.L{layer}" if stack else f"L{layer}" for stack in stacks for layer in (0, 2, 6)]
    return [f"{name}{expert}.{cell}" for name in names for expert in ("", ".E0", ".E3") for cell in (0, 4, 12)]


def looked_up(cells: Cells, address: str) -> tuple[dict[str, int] | None, str | None]:
    """What Python says of an address: where it leads, or why nowhere."""
    try:
        return dict(zip(("layer", "cell"), cells.split(cells.find(address)), strict=True)), None
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize("cells", axes(), ids=repr)
def test_the_page_and_python_have_one_axis(page: Any, cells: Cells) -> None:
    addresses = [cells.address(place) for place in range(len(cells))] + nowhere(cells)
    told = page.evaluate(ASK, [cells.as_json(), addresses])
    sizes = [cells.size(layer) for layer in range(len(cells.layers))]
    assert (told["length"], told["depth"], told["widest"]) == (len(cells), len(sizes), max(sizes))
    for layer, (span, size, label, href) in enumerate(told["spans"]):
        assert span == [cells.span(layer).start, cells.span(layer).stop]
        assert size == cells.size(layer)
        assert label == cells.layers[layer].name.replace("L", "")
        assert href == f"#/{cells.layers[layer].name}"
    for place, (layer, cell, back, address, href, following) in enumerate(told["places"]):
        assert (layer, cell) == cells.split(place)
        assert back == place
        assert address == cells.address(place)
        assert href == f"#/{'/'.join(address.rsplit('.', 1))}"
        assert (following["layer"], following["cell"]) == cells.split((place + 1) % len(cells))
    for address, (found, why, href) in zip(addresses, told["found"], strict=True):
        assert href == f"#/{'/'.join(address.rsplit('.', 1))}"
        at, problem = looked_up(cells, address)
        assert found == at
        assert why == problem


@pytest.mark.parametrize(
    ("typed", "where"),
    [
        ("L1.3", [1, 3]),
        (" l1/3 ", [1, 3]),
        ("1.3", [1, 3]),
        ("L1", [1, -1]),
        ("1", None),
        ("enc.L1.3", None),
        ("L1.E0.3", None),
        ("L1.99", None),
        ("L7", None),
        ("L1.", None),
        ("x L1.3", None),
    ],
)
def test_what_a_reader_types(page: Any, typed: str, where: list[int] | None) -> None:
    cells = Cells.of_widths([4, 6])
    ask = """async ([layers, typed]) => {
      const { Cells, parse } = await import(new URL("static/cells.js", document.baseURI));
      return new Cells(layers).locate(parse(typed));
    }"""
    found = page.evaluate(ask, [cells.as_json(), typed])
    assert found == (where and {"layer": where[0], "cell": where[1]})


def test_a_layer_that_is_not_there_is_told_as_python_tells_it(page: Any) -> None:
    for cells, name in (
        (Cells.of_widths([4, 4]), 9),
        (Cells([Layer(3, stack="enc"), Layer(5, stack="dec")]), "dec.L4"),
    ):
        ask = """async ([layers, typed]) => {
          const { Cells, parse } = await import(new URL("static/cells.js", document.baseURI));
          return new Cells(layers).missing(parse(typed));
        }"""
        with pytest.raises(UsageError) as error:
            cells.find_layer(name)
        assert page.evaluate(ask, [cells.as_json(), str(name) if "." in str(name) else f"L{name}"]) == str(error.value)
