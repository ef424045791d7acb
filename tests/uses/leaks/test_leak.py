"""`keyhole leak` on a tiny model whose own greedy decoding is planted in its text: found, localised, stored, shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families import save, tiny
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import leak_cells
from keyhole.analyses import leak_repeats as analysis
from keyhole.analyses.record import Measurement, Shape
from keyhole.cli import app
from keyhole.common import files
from keyhole.errors import CorpusError, RunDamaged, RunError, UsageError
from keyhole.models.model import Model
from keyhole.store import layout
from keyhole.store import leaks as stored
from keyhole.uses.leaks import rates
from keyhole.uses.leaks.control import cluster
from keyhole.uses.leaks.find import Place, Protocol, find, verify
from keyhole.uses.leaks.leak import leak
from keyhole.uses.leaks.prompted import Prompted
from keyhole.uses.leaks.repeats import SEPARATOR, Corpus
from keyhole.views import leaks as views

PROTOCOL = Protocol(prefix=6, least=2, length=5)


def greedy(model: Model, prefix: list[int], count: int) -> list[int]:
    """What real greedy generation says."""
    special = [] if model.bos_id is None else [model.bos_id]
    ids = [*special, *prefix]
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model.lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(special) + len(prefix) :]


def corpus(documents: list[list[int]]) -> Corpus:
    flat = [SEPARATOR]
    for document in documents:
        flat += [*document, SEPARATOR]
    return Corpus(np.array(flat, np.int32), "text")


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny("gpt2")


def planted(model: Model, count: int = 6) -> list[list[int]]:
    """Documents whose end the model says by heart."""
    random = np.random.default_rng(4)
    prefixes = [random.integers(3, 290, PROTOCOL.prefix).tolist() for _ in range(count)]
    return [[*prefix, *greedy(model, prefix, 9)] for prefix in prefixes]


def test_what_greedy_decoding_gives_is_found_and_nothing_else(model: Model) -> None:
    random = np.random.default_rng(5)
    secret = planted(model)
    noise = [random.integers(3, 290, 15).tolist() for _ in range(40)]
    text = corpus([*noise[:20], *secret[:3], *noise[20:], *secret, *secret])
    found = find(model, text, PROTOCOL, tokens=10_000)
    said = {(place.text.prefix, place.text.continuation) for place in found.places}
    for prefix, continuation in said:  # by the exact protocol
        assert greedy(model, list(prefix), len(continuation)) == list(continuation)
        assert PROTOCOL.least <= len(prefix) <= PROTOCOL.prefix
        assert len(continuation) >= PROTOCOL.length
    for document in secret:
        assert any(set(document[-5:]) <= set(continuation) for _, continuation in said)
    inside = {tuple(document) for document in secret}
    for place in found.places:
        document = tuple(text.ids(text.begins(place.begin), text.ends(place.begin)))
        assert document in inside or greedy(model, list(place.text.prefix), 5) == list(place.text.continuation[:5])


def test_verification_gives_the_longest_exact_continuation(model: Model) -> None:
    (document,) = planted(model, 1)
    wrong = (document[-3] + 1) % 290
    text = corpus([[*document[:-3], wrong, *document[-2:]]])
    (place,) = verify(model, text, [(1 + PROTOCOL.prefix, 1 + PROTOCOL.prefix + 6)], PROTOCOL)
    assert list(place.text.continuation) == document[PROTOCOL.prefix : -3]


def test_a_long_leak_is_followed_to_its_end(model: Model) -> None:
    """Also beyond what is asked for at first, and where a window of the sieve ends."""
    small = tiny("gpt2", n_positions=256)
    random = np.random.default_rng(9)
    prefix = random.integers(3, 290, PROTOCOL.prefix).tolist()
    document = [*prefix, *greedy(small, prefix, 170), 5, 6, 7]
    found = find(small, corpus([document, document]), PROTOCOL, tokens=10_000)
    longest = max(found.places, key=lambda place: len(place.text.continuation))
    assert len(longest.text.continuation) >= 170
    often = [each for each in found.rates if each.times >= 2]
    assert sum(each.leaked for each in often) > 0.9 * sum(each.tokens for each in often)


def test_a_short_context_is_no_limit_of_the_text(model: Model) -> None:
    """The model has 64 places; documents are longer, and windows are cut to what fits."""
    assert model.max_context == 64
    random = np.random.default_rng(10)
    documents = [random.integers(3, 290, 150).tolist() for _ in range(4)]
    found = find(model, corpus([*documents, *documents]), PROTOCOL, tokens=10_000)
    assert found.read == sum(map(len, documents)) or found.read > 0
    for place in found.places:
        assert len(place.text.prefix) + len(place.text.continuation) <= 63


def test_every_token_that_is_read_counts_once(model: Model) -> None:
    random = np.random.default_rng(11)
    documents = [random.integers(3, 290, 90).tolist() for _ in range(6)]
    text = corpus([*documents, *documents])
    assert find(model, text, PROTOCOL, tokens=100_000).read <= text.tokens


def test_a_common_end_does_not_make_two_leaks_one() -> None:
    tail = tuple(range(200, 208))
    secret = [Place(10 * n, Prompted((1,), (*range(20 * n, 20 * n + 12), *tail)), -1.0) for n in range(1, 6)]
    part = Place(99, Prompted((1,), (*range(24, 32), *tail)), -1.0)
    found = cluster([*secret, part])
    assert [(place.begin, copies) for place, copies in found] == [(10, 2), *((10 * n, 1) for n in range(2, 6))]


def test_text_that_stands_more_than_once_is_read_first(model: Model) -> None:
    random = np.random.default_rng(6)
    noise = [random.integers(3, 290, 60).tolist() for _ in range(30)]
    (secret,) = planted(model, 1)
    found = find(model, corpus([*noise, secret, secret]), PROTOCOL, tokens=40)
    assert found.read <= 40
    assert any(list(place.text.continuation)[-4:] == secret[-4:] for place in found.places)


def test_how_much_leaks_by_how_often_it_stands(model: Model) -> None:
    random = np.random.default_rng(7)
    noise = [random.integers(3, 290, 20).tolist() for _ in range(30)]
    once, *twice = planted(model, 3)
    text = corpus([*noise, once, *twice, *twice])
    found = find(model, text, PROTOCOL, tokens=100_000)
    inside = np.zeros(len(text.flat), bool)
    for place in found.places:
        inside[place.begin : place.begin + len(place.text.continuation)] = True
    # by hand, token by token: sequences of 7 tokens, and at least 2 tokens before
    ids = text.flat.tolist()
    places: dict[tuple[int, ...], list[int]] = {}
    for at in range(len(ids) - 6):
        if SEPARATOR not in ids[at : at + 7]:
            places.setdefault(tuple(ids[at : at + 7]), []).append(at)
    expected: dict[int, list[bool]] = {}
    for at, token in enumerate(ids):
        around = {a: places[own] for a in range(max(0, at - 6), at + 1) if (own := tuple(ids[a : a + 7])) in places}
        times = max(map(len, around.values()), default=1)
        first = any(len(own) > 1 and own[0] == a for a, own in around.items())
        if token != SEPARATOR and at - text.begins(at) >= PROTOCOL.least and (times == 1 or first):
            expected.setdefault(1 << (times.bit_length() - 1), []).append(bool(inside[at]))
    assert {each.times: (each.tokens, each.leaked) for each in found.rates} == {
        times: (len(own), sum(own)) for times, own in expected.items()
    }
    assert found.rates[1].rate.value > 0.5 > found.rates[0].rate.value  # what was planted twice leaks, noise does not
    for each in found.rates:
        assert each.rate.lo is not None
        assert each.rate.hi is not None
        assert each.rate.lo <= each.rate.value <= each.rate.hi


def test_one_passage_that_leaks_is_not_enough_to_say_so() -> None:
    """Fifty documents once, none of which leaks, and one passage that stands often and does: of one document, nothing is sure."""
    times = np.repeat([1] * 50 + [32], 20)
    documents = np.repeat(np.arange(51), 20)
    found = rates.more(rates.Counts(times, times > 1, documents))
    assert found.value == 1.0
    assert found.lo is None
    many = np.repeat([1] * 50 + [32] * 30, 20)
    sure = rates.more(rates.Counts(many, many > 1, np.repeat(np.arange(80), 20)))
    assert sure.lo is not None
    assert 0.5 < sure.lo < sure.value == 1.0


def ranked(rank: int, method: str, n90: int | None, **more: float) -> stored.Tested:
    return stored.Tested(rank, method, [1, 2, 64], [1.0, 0.5, 0.0], 1.0, list(range(64)), n90=n90, **more)  # type: ignore[arg-type]


def facts_of(every: list[stored.Tested]) -> dict[str, float]:
    found = leak_cells._effects(stored.Leaks([], every, [], {}), 1000)
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def test_leaks_that_the_learned_ranking_does_not_forget_count_against_it() -> None:
    wins = [each for n in range(6) for each in (ranked(n, "learned", 1), ranked(n, "activity", None))]
    fails = [each for n in range(6, 20) for each in (ranked(n, "learned", None), ranked(n, "activity", 2))]
    found = facts_of([*wins, *fails])
    assert found["fewer"] == -5.0  # log2(2 ÷ 64): most of them need the whole grid
    assert found["small"] == pytest.approx(6 / 20)
    assert found["forgotten"] == 6
    both = facts_of([each for n in range(8) for each in (ranked(n, "learned", None), ranked(n, "activity", None))])
    assert both["fewer"] == 0.0


def test_few_leaks_say_little_of_the_others() -> None:
    two = facts_of([ranked(n, "learned", 2, others_forgotten=0.0, change=0.001) for n in range(2)])
    assert two["kept"] == 1.0
    assert two["kept_lo"] < 0.9
    many = facts_of([ranked(n, "learned", 2, others_forgotten=0.0, change=0.001 * (n % 3)) for n in range(60)])
    assert many["kept_lo"] > 0.9
    assert many["cost_hi"] < 0.01
    shape = Shape(tiny("gpt2").cells, 300, False)
    for cost, outcome in ((0.001, "holds"), (0.05, "does not hold"), (0.01, "unclear")):
        facts = {"cost": cost, "cost_lo": cost - 0.003, "cost_hi": cost + 0.003}
        assert leak_cells.little_cost(Measurement([], facts, shape)).outcome == outcome


def test_cells_that_hold_much_else_too_are_not_those_of_a_leak(run: Path, tmp_path: Path) -> None:
    import shutil

    opened = keyhole.open(shutil.copytree(run, tmp_path / "run"))
    known = stored.of(opened)
    assert known is not None
    harmful = [ranked(1, "learned", 2, others_forgotten=0.9, change=0.5)]
    stored.save(opened, stored.Leaks(known.leaks, harmful, [], {}), {})
    found = stored.of(opened)
    assert found is not None
    assert found.best(1) is None
    with pytest.raises(UsageError, match="hold much else too"):
        stored.cells_of(opened, 1)


def test_medians_count_leaks_that_were_not_forgotten() -> None:
    assert views._median([1, 2, 3, 4, 5, 6], 10) == "6"
    assert views._median([1, 2, 3, 4, 5, 6], 11) == "6"
    assert views._median([1, 2, 3, 4, 5], 10) == "in no small set"
    assert views._median([3], 1) == "3"


def test_how_often_text_must_stand_to_leak() -> None:
    def rows(*found: tuple[int, float, float]) -> list[dict[str, float]]:
        return [{"times": times, "rate": (lo + hi) / 2, "lo": lo, "hi": hi} for times, lo, hi in found]

    assert analysis.from_times(rows((1, 0.5, 0.7), (2, 0.1, 0.2), (4, 0.6, 0.8), (8, 0.7, 0.9))) == 4
    assert analysis.from_times(rows((1, 0.1, 0.2), (2, 0.3, 0.8))) is None
    assert analysis.from_times(rows((1, 0.6, 0.9))) == 1
    # a last row of which little is known does not hide the others
    assert analysis.from_times(rows((1, 0.0, 0.1), (16, 0.8, 0.9), (128, 0.1, 0.9))) == 16
    shape = Shape(tiny("gpt2").cells, 300, False)
    for value, outcome in ((0.3, "holds"), (0.0, "does not hold"), (0.1, "unclear")):
        facts = {"more": value, "more_lo": value - 0.05, "more_hi": value + 0.05}
        assert analysis.repeats_matter(Measurement([], facts, shape)).outcome == outcome


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    folder = tmp_path_factory.mktemp("leaks")
    random = np.random.default_rng(8)
    words = [f"w{number}" for number in range(200)]
    lines = [" ".join(random.choice(words, 12)) for _ in range(60)]
    text = model.vocabulary.text
    secret = [text(document) for document in planted(model)]
    (folder / "text.txt").write_text("\n\n".join([*lines, *secret, *secret]) + "\n", encoding="utf-8")
    (folder / "secrets.txt").write_text("\n".join([lines[0], lines[1], "w1 w2 never w3"]) + "\n")
    path = keyhole.scan(
        save(model, folder / "model"), [folder / "text.txt"], out=folder / "run", device="cpu", top=3, unit="document"
    ).path
    leak(
        path,
        prefix=6,
        least_prefix=2,
        length=5,
        localise=2,
        candidates=20,
        secret_list=folder / "secrets.txt",
    )
    keyhole.analyze(path, only=["leaks", "leak_cells", "leak_repeats"])
    return path


def test_tables_hold_what_was_found(run: Path) -> None:
    opened = keyhole.open(run)
    rows, cells = opened.table("leaks"), opened.table("leak_cells")
    own = [row for row in rows if row["source"] == "text"]
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    assert own
    surprises = [row["surprise"] for row in own]
    assert surprises == sorted(surprises, reverse=True)
    assert len([row for row in rows if row["source"] == "secrets"]) == 3
    assert [row["times"] for row in opened.table("leak_repeats")][:2] == [1, 2]
    assert {row["rank"] for row in cells} == set(range(1, min(2, len(own)) + 1))
    assert {"learned", "effect", "ablation", "integrated_gradients", "activity", "random"} <= {
        row["method"] for row in cells
    }
    for row in cells:
        if row["n90"]:
            assert row["exact_after"] <= 0.1 * row["exact_before"] + 1e-9
            assert row["left"] <= 0.1 + 1e-9


def test_the_cells_of_a_leak_are_those_that_make_it_forgotten(run: Path) -> None:
    opened = keyhole.open(run)
    found = stored.of(opened)
    assert found is not None
    for rank in {each.rank for each in found.tested}:
        best = found.best(rank)
        if best is None:
            with pytest.raises(UsageError, match="in no small set of cells|hold much else too"):
                stored.cells_of(opened, rank)
        else:
            assert stored.cells_of(opened, rank) == best.order[: best.n90]
    with pytest.raises(UsageError, match="There is no leak 900"):
        stored.cells_of(opened, 900)


def test_the_report_tells_of_leaks(run: Path) -> None:
    done = CliRunner().invoke(app, ["table", str(run), "leaks"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 0, done.output
    page = layout.report_file(run).read_text()
    assert "What the model says by heart" in page
    assert "How many cells hold what the model says by heart" in page


@pytest.mark.slow(seconds=3)
def test_the_command_prints_and_gives_json(run: Path) -> None:
    options = ["--prefix", "6", "--least-prefix", "2", "--length", "5", "--localise", "1"]
    done = CliRunner().invoke(app, ["leak", str(run), *options])
    assert done.exit_code == 0, done.output
    assert "said by heart" in done.output
    done = CliRunner().invoke(app, ["leak", str(run), *options, "--json"])
    assert json.loads(done.stdout)["leaks"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"length": 3}, UsageError, "length is 3; it must be a whole number of at least 4"),
        ({"prefix": 2, "least_prefix": 4}, UsageError, "--least-prefix is 4 and --prefix 2"),
        ({"tokens": 0}, UsageError, "tokens is 0"),
        ({"localise": -1}, UsageError, "localise is -1"),
        ({"secret_list": "nowhere.txt"}, UsageError, "nowhere.txt cannot be read"),
        ({"text": ["nowhere.txt"]}, CorpusError, "There is no corpus .*nowhere"),
        ({"valid": ["nowhere.txt"], "localise": 0}, CorpusError, "There is no corpus .*nowhere"),
        ({"prefix": 60, "length": 8}, UsageError, "are 68 tokens, and a text of this model has at most 63"),
    ],
)
def test_what_cannot_be_is_refused(run: Path, options: dict[str, object], error: type[Exception], said: str) -> None:
    before = (run / stored.FILE).read_bytes()
    with pytest.raises(error, match=said):
        leak(run, **options)  # type: ignore[arg-type]
    assert (run / stored.FILE).read_bytes() == before


def test_text_shorter_than_a_leak_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("w1 w2\n")
    with pytest.raises(CorpusError, match=r"short\.txt has \d+ tokens, at most \d+ in a document, and a leak needs"):
        leak(run, text=[tmp_path / "short.txt"], length=40)


def test_secrets_that_cannot_be_asked_for(run: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 100)
    with pytest.raises(UsageError, match=r"The secret 'word .*tokens, and a text of this model has at most 63"):
        leak(run, secret_list=tmp_path / "long.txt")


def test_a_secret_is_counted_wherever_it_stands(run: Path, tmp_path: Path) -> None:
    """At the beginning of a line and inside of a sentence, where its first token has a space."""
    import shutil

    other = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "text.txt").write_text("\n\n".join(["w1 w2 w3 w4 w5 w6 w7", "say w1 w2 w3 w4 w5 w6 w7"] * 3))
    (tmp_path / "list.txt").write_text("w1 w2 w3 w4 w5 w6 w7\n")
    options = {"prefix": 6, "least_prefix": 2, "length": 5, "localise": 0, "candidates": 5}
    found = stored.of(leak(other, text=[tmp_path / "text.txt"], secret_list=tmp_path / "list.txt", **options))  # type: ignore[arg-type]
    assert found is not None
    (secret,) = [each for each in found.leaks if each.source == "secrets"]
    assert secret.repeats == 6


def test_other_weights_are_refused(run: Path) -> None:
    with pytest.raises(RunError, match="is not the model that was scanned"):
        leak(run, model=tiny("llama"))


def test_a_stored_file_from_elsewhere_is_checked(run: Path, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "run"
    shutil.copytree(run, other)
    content = json.loads((other / stored.FILE).read_bytes())
    content["tested"][0]["order"] = [10**9]
    for wrong in (json.dumps(content).encode(), b"{", b'{"leaks": 3}'):
        (other / stored.FILE).write_bytes(wrong)
        layout.save_group(other, stored.GROUP, {}, [stored.FILE])
        with pytest.raises(RunDamaged, match="keyhole leak"):
            stored.of(keyhole.open(other))
    assert files.is_plain_name(stored.FILE)
    assert layout.foreign(other) is None
