"""Sets of cells by name, against every label and every trigger looked at one by one."""

from __future__ import annotations

from pathlib import Path

import explored
import numpy as np
import pytest
from families import tiny

import keyhole
from keyhole.errors import UsageError
from keyhole.searching import sets
from keyhole.store import collections, kinds, leaks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    found = explored.write(tmp_path_factory.mktemp("sets"))
    return keyhole.analyze(found, only=["kinds"], model=tiny("gpt2"))


def test_a_kind_is_every_cell_with_the_label(run: keyhole.Run) -> None:
    known = kinds.of(run)
    assert known is not None
    there = [
        kind.name
        for kind in kinds.KINDS
        if any(each.has and each.kind is kind for place in range(72) for each in known.of(place))
    ]
    assert there
    for name in there:
        expected = [
            place for place in range(72) if any(each.has and each.kind.name == name for each in known.of(place))
        ]
        assert sets.cells_of(run, f"kind:{name}") == expected
        assert sets.cells_of(run, f" Kind: {name} ") == expected
    for name in set(kinds.NAMES) - set(there):
        with pytest.raises(UsageError, match=rf"has no cell of the kind '{name}'. It has: \w+ \(\d+\)"):
            sets.cells_of(run, f"kind:{name}")
    with pytest.raises(UsageError, match="There is no kind 'lazy'. The kinds are: promoting"):
        sets.cells_of(run, "kind:lazy")


def test_a_collection_is_the_cells_with_the_tag(run: keyhole.Run) -> None:
    collections.save(run, 40, {"tags": ["mine"], "starred": True})
    collections.save(run, 3, {"tags": ["mine"]})
    assert sets.cells_of(run, "collection:mine") == [3, 40]
    assert sets.cells_of(run, "collection:starred") == [40]
    assert sets.cells_of(run, "collection:all") == [3, 40]
    with pytest.raises(
        UsageError, match="No cell of this run has the tag 'yours'. The collections are: starred, all, mine"
    ):
        sets.cells_of(run, "collection:yours")
    offered = {each.name: each.cells for each in sets.offered(run)}
    assert (offered["collection:mine"], offered["collection:starred"]) == (2, 1)
    assert all(offered[name] == len(sets.cells_of(run, name)) for name in offered)


def test_a_search_is_the_keys_with_half_of_their_triggers(run: keyhole.Run) -> None:
    token = run.vocabulary.find("4")
    expected = []
    for layer in range(run.layers):
        for cell in run.layer(layer):
            sides = [side for side in (cell.triggers, cell.triggers_negative) if side]
            if any(2 * sum(token in trigger.ids for trigger in side) >= len(side) for side in sides):
                expected.append(cell.place)
    assert expected
    assert sets.cells_of(run, "search:4") == expected
    with pytest.raises(UsageError, match="is in half of the triggers of no cell"):
        sets.cells_of(run, 'search:"zebra"')
    with pytest.raises(UsageError, match="name the cells that you mean instead"):
        sets.cells_of(run, "search:like L1.3")


def test_what_is_not_there_is_told(run: keyhole.Run, tmp_path: Path) -> None:
    for name in ("dead", "kind:", "kinds:dead", "", ":"):
        with pytest.raises(UsageError, match=r"is no set of cells. A set is written as one of: kind:NAME"):
            sets.cells_of(run, name)
    with pytest.raises(UsageError, match=r"patterns of .* are not known yet: keyhole patterns"):
        sets.cells_of(run, "pattern:cat")
    bare = explored.write(tmp_path)
    with pytest.raises(UsageError, match=r"kinds of .*cells are not known yet: keyhole analyze .* --only kinds"):
        sets.cells_of(bare, "kind:dead")
    assert sets.offered(bare) == []
    with pytest.raises(UsageError, match=r"No leaks are stored in .*: keyhole leak"):
        sets.cells_of(bare, "leak:1")


def test_a_leak_is_the_cells_that_forget_it(tmp_path: Path) -> None:
    run = explored.write(tmp_path)
    said = [leaks.Leak("text", "a", text, 3, 3, 1, -1.0) for text in (" the cat", " a dog")]
    tested = leaks.Tested(1, "effect", [2], [0.0], 1.0, [40, 3, 7], n90=2)
    leaks.save(run, leaks.Leaks(said, [tested], [], {}), {})
    assert sets.cells_of(run, "leak:1") == [3, 40]
    assert [each for each in sets.offered(run) if each.name.startswith("leak")] == [("leak:1", "leak 1: “the cat”", 2)]
    for name, says in (
        ("leak:2", "Leak 2 has no cells"),
        ("leak:3", "There is no leak 3"),
        ("leak:x", "named by its rank"),
    ):
        with pytest.raises(UsageError, match=says):
            sets.cells_of(run, name)


def test_sets_of_edits_meet(run: keyhole.Run) -> None:
    """Two sets that share cells switch each of them off once."""
    collections.save(run, 40, {"tags": ["mine"]})
    collections.save(run, 41, {"tags": ["mine", "more"]})
    value = [{"set": "collection:mine", "scale": 0}, {"set": "collection:more", "scale": 0}]
    edits = keyhole.intervene.read_edits(value, tiny("gpt2"), lambda name: sets.cells_of(run, name))
    places = [run.cells.place(edit.layer, edit.cell) for edit in edits]
    assert sorted(places) == sorted(np.unique(places).tolist()) == sets.cells_of(run, "collection:mine")
    with pytest.raises(UsageError, match=r"L1.17 is edited twice. Keep one"):
        keyhole.intervene.read_edits(
            [*value[1:], {"cell": "L1.17", "scale": 2}], tiny("gpt2"), lambda name: sets.cells_of(run, name)
        )
