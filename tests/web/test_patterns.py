"""Patterns in the explorer's answers, against the patterns of the run read one by one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import explored
import labelled
import msgspec
import numpy as np
import packed
import pytest
from starlette.testclient import TestClient

import keyhole
from keyhole.analyses import registry
from keyhole.analyses.record import CellMeasure
from keyhole.export import site
from keyhole.searching import labels
from keyhole.store import layout, patterns
from keyhole.store.patterns import Key, Pattern, Patterns
from keyhole.web import addresses, found, routes
from keyhole.web.contract import Explorer, NotThere
from keyhole.web.openapi import describe
from keyhole.web.pack import UNKNOWN
from keyhole.web.search import PAGE, bucket, words

LOOKED_AT = 17


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("patterned"))
    labelled.write(run, LOOKED_AT)
    return run


@pytest.fixture(scope="module")
def stored(run: keyhole.Run) -> Patterns:
    found = patterns.of(run)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def explorer(run: keyhole.Run) -> Explorer:
    return Explorer(run)


def data(explorer: Explorer, path: str) -> Any:
    """An answer, after it was checked against its type."""
    body = explorer.body(path)
    msgspec.json.decode(body, type=addresses.DATA[re.split("[./]", path)[0]].answer)
    return json.loads(body)


def every(stored: Patterns) -> list[tuple[int, Key, int, Pattern]]:
    """All patterns, by definition of their rank: AUPRC × the share of triggers, then that share, then the place."""
    rows = [(place, key, number, one) for place, key in stored for number, one in enumerate(key.patterns)]

    def rank(row: tuple[int, Key, int, Pattern]) -> tuple[float, ...]:
        place, key, number, one = row
        share = len(one.triggers) / key.read
        return (-(one.auprc or 0) * share, -share, place, -key.side, number)

    return sorted(rows, key=rank)


def test_labels_are_the_first_patterns(explorer: Explorer, run: keyhole.Run, stored: Patterns) -> None:
    said = {}
    for layer in range(run.layers):
        for cell, label in data(explorer, f"labels/{layer}.json")["labels"].items():
            said[run.cells.place(layer, int(cell))] = label
    assert said == stored.labels
    assert said[1].startswith("only below zero")  # its triggers have none, the other side has
    assert 2 not in said
    assert LOOKED_AT not in said


def test_a_cell_has_its_sides(explorer: Explorer, run: keyhole.Run, stored: Patterns) -> None:
    for layer, cell in run.cells:
        place = run.cells.place(layer, cell)
        said = data(explorer, f"cells/{layer}/{cell}.json")["patterns"]
        keys = [key for side in (1, -1) if (key := stored.key(place, side)) is not None]
        assert [each["side"] for each in said] == [key.side for key in keys]
        for each, key in zip(said, keys, strict=True):
            assert (each["kind"], each["read"]) == (key.kind, key.read)
            assert each["needs"] == pytest.approx(list(key.needs))
            assert list(each["scores"]) == [method for method in patterns.METHODS if method in key.scores]
            for method, score in each["scores"].items():
                for name, number in score.items():
                    assert number == pytest.approx(getattr(key.scores[method], name), rel=1e-2)
            assert len(each["patterns"]) == len(key.patterns)
            for shown, one in zip(each["patterns"], key.patterns, strict=True):
                assert (shown["description"], shown["kind"]) == (one.description, one.kind)
                assert shown["triggers"] == list(one.triggers)
                for name in ("matches", "hits", "lift", "q_value", "auprc", "f1", "pearson", "promoted", "removed"):
                    known = getattr(one, name)
                    assert shown[name] == (known if known is None else pytest.approx(known, rel=1e-2)), name
        if not keys:
            assert cell >= LOOKED_AT


def test_patterns_are_ranked(explorer: Explorer, stored: Patterns) -> None:
    expected, pages = every(stored), [path for path in explorer.paths() if path.startswith("patterns/")]
    rows = [row for path in pages for row in data(explorer, path)["patterns"]]
    assert len(pages) == -(-len(expected) // PAGE) == 2
    assert [row[:5] for row in rows] == [
        [place, key.side, number, one.kind, one.description] for place, key, number, one in expected
    ]
    for row, (_, key, _, one) in zip(rows, expected, strict=True):
        assert row[5] == (one.auprc if one.auprc is None else pytest.approx(one.auprc, rel=1e-2))
        assert row[6:] == [len(one.triggers), key.read]


def test_words_and_tokens_lead_to_patterns(explorer: Explorer, run: keyhole.Run, stored: Patterns) -> None:
    expected = every(stored)
    by_word: dict[str, list[list[int]]] = {}
    by_token: dict[int, list[list[int]]] = {}
    for rank, (place, _, _, one) in enumerate(expected):
        for word in set(words(one.description)):
            by_word.setdefault(word, []).append([rank, place])
        for token in set(one.rule["all"][0]["ids"]):
            by_token.setdefault(token, []).append([rank, place])
    said = {}
    for number in range(explorer.search.buckets):
        there = data(explorer, f"words/{number}.json")["patterns"]
        assert all(bucket(word, explorer.search.buckets) == number for word in there)
        said |= there
    assert said == by_word
    assert "cats" in said
    named = {}
    for page in range(explorer.search.token_pages):
        named |= data(explorer, f"tokens/{page}.json")["rules"]
    assert {int(token): rows for token, rows in named.items()} == by_token


def test_only_conditions_name_tokens() -> None:
    rule = {
        "all": [
            {"if": "token", "back": 0, "ids": [5, 7]},
            {"if": "form", "back": 1, "form": "number"},
            {"if": "absent", "ids": [9]},
        ],
        "more": [{"back": 1, "ids": [11], "weights": [0.5]}],
    }
    assert list(labels.tokens(rule)) == [5, 7, 9]


def test_a_word_of_many_patterns_lists_the_best(
    run: keyhole.Run, stored: Patterns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "MOST", 3)
    explorer = Explorer(run)
    assert data(explorer, "run.json")["patterns"]["most"] == 3
    cats = [rank for rank, (_, _, _, one) in enumerate(every(stored)) if "cats" in one.description]
    listed = data(explorer, f"words/{bucket('cats', explorer.search.buckets)}.json")["patterns"]["cats"]
    assert [rank for rank, _ in listed] == cats[:3]
    assert len(cats) > 3


def test_what_the_page_is_told_of_the_text(explorer: Explorer) -> None:
    said = data(explorer, "run.json")["patterns"]
    assert said == {
        "cells": 8,
        "most": found.MOST,
        "held_out": {"source": "valid", "tokens": 12_345, "documents": 67},
    }
    assert "/somewhere" not in explorer.body("run.json").decode()


def test_a_run_without_patterns_is_as_before(plain: keyhole.Run) -> None:
    explorer = Explorer(plain)
    assert data(explorer, "run.json")["patterns"] is None
    assert not [path for path in explorer.paths() if path.startswith(("labels", "patterns"))]
    for path in ("labels/0.json", "patterns/0.json"):
        with pytest.raises(NotThere):
            explorer.answer(path)
    assert "patterns" not in data(explorer, "cells/0/0.json")
    assert "patterns" not in data(explorer, "words/0.json")
    assert "rules" not in data(explorer, "tokens/0.json")
    assert not {path for path in describe(explorer)["paths"] if "labels" in path or "patterns" in path}


def test_addresses_are_described(explorer: Explorer) -> None:
    paths = describe(explorer)["paths"]
    assert {"/data/labels/{layer}.json", "/data/patterns/{page}.json"} <= set(paths)
    for path in ("labels/3.json", "patterns/99.json", "labels.json", "patterns/0/0.json"):
        with pytest.raises(NotThere):
            explorer.answer(path)


def test_a_run_in_which_nothing_was_found(tmp_path: Path) -> None:
    run = explored.write(tmp_path)
    for layer in range(run.layers):
        patterns.write_keys(run, layer, [Key(0, 1, "none", 0.5, (), 6)])
    patterns.save(run, {"cells": 1})
    explorer = Explorer(run)
    assert data(explorer, "patterns/0.json") == {"patterns": []}
    assert data(explorer, "labels/0.json") == {"labels": {}}
    assert data(explorer, "run.json")["patterns"]["held_out"] is None
    assert all(data(explorer, path) is not None for path in explorer.paths())


def test_patterns_that_are_found_later_are_served(tmp_path: Path) -> None:
    run = explored.write(tmp_path)
    with TestClient(routes.create(run), base_url="http://localhost") as client:
        assert client.get("/data/labels/0.json").status_code == 404
        labelled.write(keyhole.Run(run.path), LOOKED_AT)
        assert client.get("/data/labels/0.json").json()["labels"]["3"].endswith("of number 3")
        file = layout.pattern_files(run.path, 1)[0]
        file.write_bytes(file.read_bytes()[:-30])
        damaged = client.get("/data/labels/1.json")
        assert damaged.status_code == 503
        assert "keyhole patterns" in damaged.json()["error"]["message"]


@pytest.mark.slow(seconds=3)
def test_the_export_has_the_same_answers(run: keyhole.Run, explorer: Explorer, tmp_path: Path) -> None:
    for force in (False, True):
        site.export(run, tmp_path / "site", force=force)
    written = packed.answers(tmp_path / "site")
    assert set(written) == set(explorer.paths())
    assert {"labels/2.json", "patterns/0.json"} <= set(written)
    for path in set(written) - {"run.json"}:
        assert written[path] == json.loads(explorer.body(path)), path


def test_the_map_marks_cells_without_a_number(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measure of sampled cells has no number for most of them, named or not."""
    numbers = np.full(len(run.cells), np.nan)
    numbers[[3, 30, 50]] = 0, 1, 3
    measures = [
        CellMeasure("auprc", "AUPRC of the patterns", "key", lambda run, values: numbers),
        CellMeasure(
            "found", "kinds", "key", lambda run, values: numbers, kinds=("none", "shallow", "semantic", "both")
        ),
    ]
    monkeypatch.setattr(registry, "offered_measures", lambda run, values: measures)
    explorer = Explorer(run)
    for number, shown in enumerate(data(explorer, "map.json")["measures"]):
        found = data(explorer, f"maps/{number}.json")
        levels = np.frombuffer(base64.b64decode(found["data"]), np.uint8)
        assert np.flatnonzero(levels != UNKNOWN).tolist() == [3, 30, 50]
        assert (found["lo"], shown.get("kinds")) == (0, None if shown["name"] == "auprc" else list(measures[1].kinds))
