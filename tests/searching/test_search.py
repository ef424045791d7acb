"""Searches against every trigger and every value of a run, looked at one by one."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import explored
import numpy as np
import pytest
from commands import call
from commands import run as command

import keyhole
from keyhole.searching import find, phrases, query, ranking, relations
from keyhole.searching.query import Term
from keyhole.searching.texts import Texts
from keyhole.store import collections, values

Side = tuple[int, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("searched"))


def triggers(run: keyhole.Run) -> list[tuple[int, int, Any]]:
    """Every trigger, with the place of its cell and its side."""
    return [
        (cell.place, side, trigger)
        for layer in range(run.layers)
        for cell in run.layer(layer)
        for side, list_ in ((1, cell.triggers), (-1, cell.triggers_negative))
        for trigger in list_
    ]


def related(trigger: Any, relation: str, token: int) -> bool:
    return {
        "ends": trigger.ids[-1] == token,
        "contains": token in trigger.ids,
        "next": trigger.next_id == token,
    }[relation]


def best(
    run: keyhole.Run, hits: Counter[Side], total: int, filled: Counter[Side]
) -> list[tuple[Fraction, float, Side]]:
    """The sides of cells that have a relation, by the share after five triggers of the average are added, then by how far the
    strongest coefficient stands out."""
    base = Fraction(sum(hits.values()), total)
    found = []
    for (place, side), count in hits.items():
        cell = run.cell(*run.cells.split(place))
        strongest = abs((cell.triggers if side > 0 else cell.triggers_negative)[0].coefficient)
        score = (count + 5 * base) / (filled[place, side] + 5)
        found.append((score, strongest / float(cell.stats.rms), (place, side)))
    return sorted(found, key=lambda each: (-each[0], -each[1], each[2][0], -each[2][1]))


@pytest.mark.parametrize(("most", "block"), [(100, 1 << 21), (4, 30)])
def test_relations_of_every_token(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch, most: int, block: int) -> None:
    """In one block and in many, all rows and the best four."""
    monkeypatch.setattr(relations, "MOST", most)
    monkeypatch.setattr(relations, "BLOCK", block)
    monkeypatch.setattr(relations, "DENSE", 0.1)
    every = triggers(run)
    filled = Counter((place, side) for place, side, _ in every)
    index = relations.Relations(run)
    assert index.triggers == len(every)
    both = 0
    for relation in relations.RELATIONS:
        found = index.of(relation, range(len(run.vocabulary)))
        for token in range(len(run.vocabulary)):
            hits = Counter((place, side) for place, side, each in every if related(each, relation, token))
            if not hits:
                assert token not in found
                continue
            firing, expected = found[token], best(run, hits, len(every), filled)
            assert firing.cells == len({place for place, _ in hits})
            both += len(hits) - firing.cells
            assert firing.hits == sum(hits.values())
            assert len(firing.rows) == min(most, len(expected))
            for row, (score, _, _) in zip(firing.rows, expected, strict=False):
                side = 1 if row.hits > 0 else -1
                assert (abs(row.hits), row.of) == (hits[row.place, side], filled[row.place, side])
                assert ranking.score(abs(row.hits), row.of, firing.hits / len(every)) == pytest.approx(float(score))
            shown = [(row.place, 1 if row.hits > 0 else -1) for row in firing.rows]
            if len({strength for _, strength, _ in expected}) == len(expected):
                assert shown == [at for *_, at in expected[:most]]
            assert index.one(relation, token) == firing
    assert both > 0, "no cell has a relation on both sides"


def in_text(run: keyhole.Run, trigger: Any, relation: str, wanted: str, exact: bool) -> bool:
    """Whether the words of a trigger's own text stand in the relation to the words that are wanted."""
    after = run.vocabulary.text(run.unit_tokens(trigger.unit)[trigger.position + 1 :].tolist())
    before = trigger.prefix
    if not exact:
        before, after, wanted = before.lower(), after.lower(), wanted.lower()
    letter = r"[^\W_'’]|['’]"
    begins, ends = rf"(?<!{letter.replace('|', ')(?<!')})", rf"(?!{letter})"
    spelled = re.escape(wanted)
    pattern = {"ends": rf"{begins}{spelled}\Z", "contains": rf"{begins}{spelled}(?:{ends}|\Z)"}
    if relation == "next":
        return re.match(rf"\s*{spelled}{ends}", after) is not None
    return re.search(pattern[relation], before) is not None


PHRASES = ["cat number 3", "the dog", "The cat", '"The cat"', '"the cat"', "l’été", "straßenkätzchen", "was said"]


def test_phrases_are_found(run: keyhole.Run) -> None:
    """Which triggers a random model has depends on the machine's rounding: what must be found is looked at over all phrases."""
    found = {
        asked: phrases.find(Texts(run), term, 99).firing["contains"].hits
        for asked in PHRASES
        for term in query.terms(asked)
    }
    assert found['"the cat"'] == 0 < found["The cat"]
    assert sum(count > 0 for count in found.values()) > len(PHRASES) / 2


@pytest.mark.parametrize("asked", PHRASES)
def test_relations_of_a_phrase(run: keyhole.Run, asked: str) -> None:
    (term,) = query.terms(asked)
    every = triggers(run)
    found = phrases.find(Texts(run), term, len(every))
    for relation in relations.RELATIONS:
        hits = Counter(
            (place, side) for place, side, each in every if in_text(run, each, relation, term.text, term.exact)
        )
        # a window that has only part of a character begins nowhere in the text: it counts as the end of the window before
        torn = Counter((place, side) for place, side, each in every if each.prefix == "\ufffd")
        firing = found.firing[relation]
        assert firing.cells == len({place for place, _ in hits}), relation
        assert 0 <= firing.hits - sum(hits.values()) <= torn.total()
        for row in firing.rows:
            at = (row.place, 1 if row.hits > 0 else -1)
            assert 0 <= abs(row.hits) - hits[at] <= torn[at]
        scores = [ranking.score(abs(row.hits), row.of, firing.hits / len(every)) for row in firing.rows]
        assert scores == sorted(scores, reverse=True)


def test_cells_of_equal_score_do_not_come_layer_by_layer() -> None:
    places = sorted(range(900), key=ranking.mixed)
    layers = [place // 300 for place in places]
    for first in range(0, 900, 90):
        assert min(Counter(layers[first : first + 90]).get(layer, 0) for layer in range(3)) > 15


def test_several_terms_add_up() -> None:
    a = ranking.Firing(3, 9, [ranking.Row(1, 6, 10), ranking.Row(2, -2, 10), ranking.Row(3, 1, 1)])
    b = ranking.Firing(2, 5, [ranking.Row(2, -4, 10), ranking.Row(1, -1, 10)])
    first, second, third = ranking.keys([a, b], 100, disjoint=True)
    assert (first.place, first.side, first.hits, first.matched) == (1, 1, 6, [(0, 6)])
    assert (second.place, second.side, second.hits, second.matched) == (2, -1, 6, [(0, 2), (1, 4)])
    assert (third.place, third.hits) == (3, 1), "one of one does not win"
    assert first.share == second.share == 0.6
    assert first.lift == pytest.approx(0.6 / 0.14)
    assert ranking.keys([a, b], 100, disjoint=False)[1].hits == 4
    contains = ranking.keys([a, b], 100, disjoint=False)
    assert [(each.place, each.hits, each.least) for each in contains] == [(1, 6, False), (2, 4, True), (3, 1, False)]
    assert contains[0].lift == pytest.approx(0.6 / 0.09), "the lift is that of the term whose hits are shown"
    assert contains[1].lift == pytest.approx(0.4 / 0.05)
    more = ranking.Firing(9, 50, b.rows)  # a list that goes on: what place 3 has in it is not known
    assert {each.place: each.least for each in ranking.keys([a, more], 100, disjoint=True)} == {
        1: True,
        2: False,
        3: True,
    }
    found = ranking.values([[(5, 3.0, 1), (6, 2.0, 4)], [(6, 1.5, 2)]])
    assert [(each.place, each.logit) for each in found] == [(6, 3.5), (5, 3.0)]
    assert found[0].matched == [(0, 2.0, 4), (1, 1.5, 2)]


# Queries

QUERIES = {
    "not": [("not", False)],
    " not": [(" not", True)],
    '" not"': [(" not", True)],
    "money or dollar OR  funds": [("money", False), ("dollar", False), ("funds", False)],
    "a|b | c": [("a", False), ("b", False), ("c", False)],
    '"a | b" or " or "': [("a | b", True), (" or ", True)],
    "United States": [("United States", False)],
    "or": [("or", False)],
    "order or": [("order or", False)],
    "|": [("|", False)],
    '"""': [('"', True)],
    'say "no" now': [('say "no" now', False)],
    "": [],
    "  ": [],
}


def test_queries() -> None:
    assert {asked: query.terms(asked) for asked in QUERIES} == {
        asked: [Term(*term) for term in terms] for asked, terms in QUERIES.items()
    }
    assert [query.like(asked) for asked in ("like L3.17", 'like "a b"', "LIKE 3/17", "like a bird", "likeL3.1")] == [
        *("L3.17", '"a b"', "3/17", None, None)
    ]


def test_the_token_that_people_mean() -> None:
    pieces = ["not", " nothing", "Not", " not", " NOT", " Not", "knot", "no"]

    def tokens(asked: str) -> list[str]:
        return [pieces[each.token] for each in query.meant(pieces, query.terms(asked)[0])]

    assert tokens("not") == [" not", "not", " Not", " NOT", "Not", "knot", " nothing"] or tokens("not")[:2] == [
        " not",
        "not",
    ]
    assert tokens("not")[0] == " not"
    assert tokens('"not"')[0] == "not"
    assert tokens(" not")[0] == " not"
    assert tokens("Not")[0] == " Not"
    assert [each.is_it for each in query.meant(pieces, Term("not", False))] == [True] * 5 + [False] * 2


# All of it


def test_a_search_finds_values_and_labels(run: keyhole.Run) -> None:
    said = values.Values(run, "norm")
    pieces = [run.vocabulary.piece(token) for token in range(len(run.vocabulary))]
    tokens = [t for t in np.unique(said.top_tokens).tolist() if t < len(pieces) and pieces[t].isalpha()][:2]
    collections.save(run, 7, {"tags": ["weather"], "note": f"about {pieces[tokens[0]]} and more"})
    found = find.search(run, " or ".join(f'"{pieces[token]}"' for token in tokens))
    assert [each.token for each in found.sought] == tokens
    sums: Counter[int] = Counter()
    for token in tokens:
        for each in said.promoting(token):
            sums[run.cells.place(each.layer, each.cell)] += each.logit
    assert {each.place: each.logit for each in found.promote} == pytest.approx(dict(sums), rel=0.01)
    assert [each.logit for each in found.promote] == sorted((each.logit for each in found.promote), reverse=True)
    assert found.people[7] == [f"about {pieces[tokens[0]]} and more"]
    assert find.search(run, "WEATHER").people == {7: ["weather"]}
    assert find.search(run, "like L1.3").like == "L1.3"


def test_the_command_prints_the_same_lists(run: keyhole.Run) -> None:
    found = json.loads(command("search", run.path, "cat number 3 or the", "--json", "--limit", "3"))
    assert found == json.loads(json.dumps(find.search(run, "cat number 3 or the").to_json(3)))
    contains = found["keys"]["contains"]["listed"]
    assert len(contains) == 3
    assert all(each["share"] == each["hits"] / each["of"] and each["matched"] for each in contains)
    printed = command("search", run.path, "cat number 3", "--limit", "2")
    assert contains[0]["address"] == f"L{contains[0]['layer']}.{contains[0]['cell']}"
    assert "keys whose triggers contain ‘cat number 3’" in printed
    near = json.loads(command("search", run.path, "like L1.3", "--json"))
    shared = Counter()
    own = {(t.unit, t.position) for t in run["L1.3"].triggers}
    for place, side, each in triggers(run):
        if side > 0 and (each.unit, each.position) in own:
            shared[run.cells.address(place)] += 1
    del shared["L1.3"]
    assert {each["address"]: each["shared"] for each in near["keys"]}.items() <= shared.items()
    assert [each["shared"] for each in near["keys"]] == sorted(shared.values(), reverse=True)[: len(near["keys"])]


def test_terms_beyond_the_most_are_named(run: keyhole.Run) -> None:
    many = " or ".join("abcdefghijklmnopqr")
    found = json.loads(command("search", run.path, many, "--json"))
    assert found["ignored"] == ["q", "r"]
    assert "Only the first 16 terms are searched, not q, r." in " ".join(command("search", run.path, many).split())


def test_an_empty_query_is_an_error(run: keyhole.Run) -> None:
    done = call("search", run.path, " ")
    assert done.code == 2
    assert "The query is empty." in done.err


@pytest.mark.parametrize("address", ["L1.3", "1.3", "1/3"])
def test_a_cell_is_not_searched_for(run: keyhole.Run, address: str) -> None:
    done = call("search", run.path, address)
    assert done.code == 2
    assert "L1.3 is a cell. Show it: keyhole show RUN L1.3." in " ".join(done.err.split())
    assert call("search", run.path, f'"{address}"').code == 0


def test_a_number_that_is_no_cell_is_a_text(run: keyhole.Run) -> None:
    assert "99.75" in command("search", run.path, "99.75")


def test_a_run_of_someone_else_with_odd_names(tmp_path: Path) -> None:
    """What is asked for and what is found may hold anything; it is printed as text."""
    run = explored.write(tmp_path)
    collections.save(run, 3, {"note": "\x1b[31m red"})
    printed = command("search", run.path, "red")
    assert "\x1b[31m" not in printed


@pytest.mark.parametrize(
    "asked", ["the or the", "the | The", "number | number 3 | number", "dog or sat or mat", '"on" or "sat on"']
)
def test_no_share_of_several_terms_is_above_one(run: keyhole.Run, asked: str) -> None:
    """A trigger counts once, whatever terms it matches: shares against every trigger's own tokens and text."""
    found = find.search(run, asked)
    assert len({(each.token, each.piece.lower()) for each in found.sought}) == len(found.sought)
    every = triggers(run)
    for relation, keys in found.keys.items():
        for key in keys:
            own = [each for place, side, each in every if (place, side) == (key.place, key.side)]
            truth = sum(
                any(
                    related(each, relation, term.token)
                    if term.token is not None
                    else in_text(run, each, relation, term.term.text, term.term.exact)
                    for term in found.sought
                )
                for each in own
            )
            assert key.hits <= truth <= key.of == len(own)
            assert key.least or key.hits == truth
