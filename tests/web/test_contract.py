"""The explorer's data against the run itself: read back cell by cell, word by word."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path
from typing import Any

import explored
import msgspec
import numpy as np
import pytest
from families import CELLS

import keyhole
from keyhole.searching import words as spelled
from keyhole.store import annotations, collections, shading, values
from keyhole.web import addresses, schema, search
from keyhole.web.contract import Explorer, NotThere
from keyhole.web.pack import SHADES, compact, joined, shades, short


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="module")
def explorer(run: keyhole.Run) -> Explorer:
    return Explorer(run)


def data(explorer: Explorer, path: str) -> Any:
    """An answer, after it was checked against its type."""
    body = explorer.body(path)
    msgspec.json.decode(body, type=addresses.DATA[re.split("[./]", path)[0]].answer)
    return json.loads(body)


def opened(explorer: Explorer, cell: keyhole.Cell) -> Any:
    """A cell's answer, its triggers with names, as the page unpacks them."""
    found = data(explorer, f"cells/{cell.layer}/{cell.index}.json")
    names = schema.PackedTrigger.__struct_fields__
    for side in ("triggers", "negative"):
        found[side] = [dict(zip(names, row, strict=True)) for row in found[side]]
        for trigger in found[side]:
            if isinstance(trigger["tokens"], str):
                trigger["tokens"] = trigger["tokens"].split("|")
            trigger["at"] = trigger["position"] - trigger["before"]
    return found


def every_cell(run: keyhole.Run) -> list[keyhole.Cell]:
    return [run.cell(layer, cell) for layer, cell in run.cells]


def test_every_address_answers_with_strict_json(explorer: Explorer) -> None:
    paths = list(explorer.paths())
    assert len(set(paths)) == len(paths)
    for path in paths:
        data(explorer, path)
        json.loads(explorer.body(path), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "run",
        "run.json/",
        "cells/0.json",
        "cells/00/1.json",
        "cells/0/24.json",
        "cells/-1/0.json",
        "layers/3.json",
        "../manifest.json",
        "cells/0/1.json\n",
        "cells/٣/1.json",
        "words/64.json",
        "layers/1/1.json",
        "units/1000.json",
        "map/0.json",
        "maps/4.json",
        "mapcells/0/0.json",
        "run.json?x",
        "tokens/99999999999999999999.json",
        "%2e%2e/manifest.json",
    ],
)
def test_what_is_no_address_is_not_there(explorer: Explorer, path: str) -> None:
    with pytest.raises(NotThere):
        explorer.answer(path)


def test_about(explorer: Explorer, run: keyhole.Run) -> None:
    about = data(explorer, "run.json")
    assert about["model"] == {"name": "tiny-gpt2", "family": "gpt2", "signed": True, "gated": False}
    assert about["layers"] == [{"layer": f"L{i}", "offset": 24 * i, "width": 24} for i in range(3)]
    assert about["corpus"]["sources"] == ["te<x>t.txt"]
    assert about["lens"] == "norm"
    assert about["lenses"] == ["norm", "raw"]
    assert about["dead"] == len(run.dead)
    assert about["worth"]
    assert all(run[address].triggers for address in about["worth"])
    assert about["live"] is False
    assert str(run.path.parent) not in json.dumps(about)


def test_cells_are_what_the_run_says(explorer: Explorer, run: keyhole.Run) -> None:
    cut = 0
    for cell in every_cell(run):
        said = opened(explorer, cell)
        assert said["address"] == cell.address
        assert said["dead"] == cell.dead
        for name in ("mean", "std", "max", "min"):
            assert said["stats"][name] == pytest.approx(getattr(cell.stats, name), rel=1e-4, abs=1e-30)
        for shown, triggers in ((said["triggers"], cell.triggers), (said["negative"], cell.triggers_negative)):
            assert len(shown) == len(triggers)
            for one, truth in zip(shown, triggers, strict=True):
                assert one["c"] == pytest.approx(truth.coefficient, rel=1e-3)
                assert (one["unit"], one["position"], one["count"]) == (truth.unit, truth.position, truth.count)
                before, after = one["tokens"][: one["at"] + 1], one["tokens"][one["at"] + 1 :]
                assert before == truth.tokens[-41:]
                assert (after[0] if after else None) == truth.next_token
                assert len(after) <= 8
                left_out = one["before"] + one["after"]
                assert left_out + len(one["tokens"]) == len(run.unit_tokens(truth.unit))
                cut += one["before"] > 0
        for value in said["values"]:
            told = values.Values(run, value["lens"])
            for name in ("promoted", "demoted"):
                truth = [[s.piece, s.logit] for s in getattr(told, name)(cell.layer, cell.index)]
                assert [piece for piece, _ in value[name]] == [piece for piece, _ in truth]
                assert [x for _, x in value[name]] == pytest.approx([x for _, x in truth], rel=1e-3)
            for name, triggers, tokens in (
                ("agreement", cell.triggers, told.top_tokens),
                ("negative_agreement", cell.triggers_negative, told.bottom_tokens),
            ):
                known = [t.next_id for t in triggers if t.next_id is not None]
                top = int(tokens[cell.place, 0])
                hits = {"token": run.vocabulary.piece(top), "hits": known.count(top), "of": len(known)}
                assert value[name] == (hits if known else None)
        near = values.similar(run, cell.layer, cell.index)
        assert [address for address, _ in said["similar_values"]] == [other.address for other in near][:10]
    assert cut > 0


def test_a_bar_in_the_text_stays_a_bar() -> None:
    for tokens in (["a", "|", "b"], ["a|b"], ["a", " b"], [""], ["x"]):
        said = joined(tokens)
        assert (said.split("|") if isinstance(said, str) else said) == tokens
    assert isinstance(joined(["a", " b"]), str)


def test_shades_are_letters_that_json_keeps_short() -> None:
    every = np.arange(-128, 128, dtype=np.int16).astype(np.int8)
    said = shades(every)
    assert len(json.dumps(said)) == len(every) + 2
    back = np.array([(SHADES.index(letter) - 45) * 127 / 45 for letter in said])
    assert np.abs(back - np.maximum(every, -127)).max() <= 127 / 90 + 1e-9
    assert shades(np.zeros(3, np.int8)) == SHADES[45] * 3
    assert len(set(SHADES)) == 91


def test_shading_and_histogram_where_they_are_filled(run: keyhole.Run, tmp_path: Path) -> None:
    shaded = keyhole.open(shutil.copytree(run.path, tmp_path / "run"))
    keyhole.analyze(shaded, only=["shading"], model=explored.model())
    explorer, truth = Explorer(shaded), shading.of(shaded)
    assert data(explorer, "run.json")["shading"] is True
    assert truth is not None
    drawn = 0
    for cell in every_cell(shaded):
        said = opened(explorer, cell)
        for negative, side in enumerate((said["triggers"], said["negative"])):
            for slot, trigger in enumerate(side):
                row = truth.row(cell.layer, cell.index, slot, bool(negative))
                assert len(trigger["shades"]) == len(trigger["tokens"]) == len(row)
                assert trigger["shades"] == shades(row)
        if said["histogram"]:
            edges, counts, n = truth.histogram(cell.layer, cell.index)
            assert said["histogram"]["counts"] == counts.tolist()
            assert said["histogram"]["edges"] == pytest.approx([edges[0], edges[-1]], rel=1e-4)
            assert said["histogram"]["n"] == n == sum(said["histogram"]["counts"])
            drawn += 1
    assert drawn > 60


def test_similar_keys_share_triggers(explorer: Explorer, run: keyhole.Run) -> None:
    mine = {cell.address: {(t.unit, t.position) for t in cell.triggers} for cell in every_cell(run)}
    for cell in every_cell(run):
        shared = {other: len(mine[cell.address] & theirs) for other, theirs in mine.items() if other != cell.address}
        said = data(explorer, f"cells/{cell.layer}/{cell.index}.json")["similar_keys"]
        assert [count for _, count in said] == sorted((n for n in shared.values() if n), reverse=True)[:10]
        assert all(shared[other] == count for other, count in said)


def test_layers(explorer: Explorer, run: keyhole.Run) -> None:
    told = values.Values(run, "norm")
    for layer in range(run.layers):
        columns = data(explorer, f"layers/{layer}.json")["columns"]
        assert {len(column) for column in columns.values()} == {CELLS}
        for index in range(CELLS):
            cell = run.cell(layer, index)
            row = {name: column[index] for name, column in columns.items()}
            assert row["dead"] == int(cell.dead)
            assert row["active"] == pytest.approx(cell.stats.active_fraction, rel=1e-3)
            rms = np.sqrt(cell.stats.mean**2 + cell.stats.std**2)
            assert row["peak"] == pytest.approx(max(cell.stats.max, -cell.stats.min) / rms, rel=1e-3)
            assert row["promotes"] == [said.piece for said in told.promoted(layer, index, 3)]
            if not cell.triggers:
                assert row["trigger"] is row["last"] is row["next"] is row["agreement"] is None
                continue
            top = cell.triggers[0]
            assert (row["last"], row["next"]) == (top.tokens[-1], top.next_token)
            assert row["trigger"]
            assert top.prefix.endswith(row["trigger"].lstrip("\ufffd"))
            assert len(row["trigger"]) <= 40
            known = [t.next_id for t in cell.triggers if t.next_id is not None]
            hits = known.count(int(told.top_tokens[run.cells.place(layer, index), 0]))
            assert row["agreement"] == (pytest.approx(hits / len(known), rel=1e-3) if known else None)


def test_map(explorer: Explorer, run: keyhole.Run) -> None:
    said = data(explorer, "map.json")
    by = {measure["name"]: measure for measure in said["measures"]}
    assert set(by) == {"activity", "peak", "agreement", "max_prob"}
    for name, truth in (("activity", run.stats.active_fraction), ("max_prob", values.Values(run, "norm").max_prob)):
        measure = by[name]
        found = data(explorer, f"maps/{said['measures'].index(measure)}.json")
        assert found["name"] == name
        placed = np.frombuffer(base64.b64decode(found["data"]), np.uint8) / 254
        lo, hi = found["lo"], found["hi"]
        back = lo * (hi / lo) ** placed if measure["scale"] == "log" else lo + placed * (hi - lo)
        known = ~np.isnan(truth)
        assert ((placed <= 1) == known).all()
        assert np.allclose(back[known], truth[known], rtol=0.02, atol=(hi - lo) / 250)
    found = data(explorer, f"maps/{said['measures'].index(by['agreement'])}.json")
    shares = np.frombuffer(base64.b64decode(found["data"]), np.uint8)
    for cell in every_cell(run):
        known = [t for t in cell.triggers if t.next_id is not None]
        assert (shares[cell.place] == 255) == (not known)


def test_figures(explorer: Explorer) -> None:
    figures = data(explorer, "figures.json")["figures"]
    assert [figure["name"] for figure in figures] == [
        *("activity", "agreement", "agreement_words", "auc", "rank", "confidence", "confidence_layers")
    ]
    assert all(figure["spec"]["width"] == "container" for figure in figures)
    assert all(figure["paper"]["finding"] for figure in figures if not figure["label"].endswith("b"))
    assert any(figure["verdicts"] for figure in figures)


def test_tokens_lead_to_values(explorer: Explorer, run: keyhole.Run) -> None:
    told = values.Values(run, "norm")
    pieces = data(explorer, "vocabulary.json")["pieces"]
    assert pieces == [run.vocabulary.piece(token) for token in range(len(run.vocabulary))]
    pages = [data(explorer, f"tokens/{page}.json") for page in range(explorer.search.token_pages)]
    assert sum(len(page["promoted"]) for page in pages) > 0
    for token in range(len(pieces)):
        for name, truth in (("promoted", told.promoting(token)), ("demoted", told.demoting(token))):
            found = pages[token // 64][name].get(str(token), [])
            assert [row[0] for row in found] == [run.cells.place(s.layer, s.cell) for s in truth]
            assert [row[2] for row in found] == [s.rank for s in truth]
            assert [row[1] for row in found] == pytest.approx([s.logit for s in truth], rel=1e-2)


# Words and phrases


def test_words_and_units_find_every_phrase(explorer: Explorer, run: keyhole.Run) -> None:
    """Search as the page does, against a look at every trigger."""
    triggers = [
        (cell.layer, cell.index, sign, t)
        for cell in every_cell(run)
        for sign, side in ((1, cell.triggers), (-1, cell.triggers_negative))
        for t in side
    ]
    texts = {t.unit: explorer.search.texts.text(t.unit) for *_, t in triggers}
    for phrase in ("cat", "number 3", "the dog", "script", "straßenkätzchen", "l’été", "ΟΔΟΣ", "日本語", "nowhere"):
        units: set[int] | None = None
        for word in search.words(phrase):
            bucket = data(explorer, f"words/{search.bucket(word, 64)}.json")["words"]
            units = set(bucket.get(word, [])) if units is None else units & set(bucket.get(word, []))
        found: dict[tuple[int, int], int] = {}
        for unit in units or ():
            held = data(explorer, f"units/{unit // 64}.json")["units"][str(unit)]
            assert held["text"] == texts[unit]
            for end, gaps in held["cells"] + held["negative"]:
                if phrase.lower() in held["text"][:end].lower():
                    for place in itertools.accumulate(gaps):
                        at = run.cells.split(place)
                        found[at] = found.get(at, 0) + 1
        truth: dict[tuple[int, int], int] = {}
        for layer, cell, _, t in triggers:
            whole = run.vocabulary.text(run.unit_tokens(t.unit)[: t.position + 1])
            inside = set(search.words(phrase)) <= set(search.words(texts[t.unit]))
            if inside and phrase.lower() in whole.lower():
                truth[layer, cell] = truth.get((layer, cell), 0) + 1
        assert found == truth
        assert bool(found) == (phrase != "nowhere")


def test_words_are_letters_marks_digits_and_apostrophes() -> None:
    text = "Don't l’été x_y 3½ Ⅷ naïve e\u0301a 日本 ΟΔΟΣ! \u202e٣ İ"
    assert search.words(text) == ["don't", "l’été", "x", "y", "3½", "ⅷ", "naïve", "e\u0301a", "日本", "οδος", "٣", "i̇"]
    every = "".join(map(chr, range(0x3000))) + "".join(map(chr, range(0x1F000, 0x1F700)))
    truth = {c for c in every if unicodedata.category(c)[0] in "LMN" or c in "'’"}
    assert {c for c in every if spelled.word().fullmatch(c)} == truth


def test_the_bucket_is_fnv_1a() -> None:
    for text, value in (("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)):
        assert search.bucket(text, 1 << 32) == value


# Once, small, light


def test_an_index_is_made_once_however_many_ask() -> None:
    once, made, ready = search.Once(), [], threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        once.get("x", lambda: made.append(1))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert made == [1]


@pytest.mark.slow(seconds=2)
def test_what_is_kept_is_bounded(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Explorer(explorer.run)
    monkeypatch.setattr("keyhole.web.contract.KEPT_BYTES", 20_000)
    for _ in range(2):
        for path in explorer.paths():
            assert other.body(path) == explorer.body(path)
            assert other._kept_bytes == sum(map(len, other._kept.values())) <= 20_000


def test_numbers_are_short_and_strict() -> None:
    assert short(0.123456789) == 0.12346
    assert short(float("nan")) is None
    assert short(float("-inf")) is None
    assert compact({"a": ["é", None, 1.5]}) == '{"a":["é",null,1.5]}'.encode()


def test_a_run_without_analysis_has_cells_all_the_same(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one line\nanother line\n")
    bare = Explorer(keyhole.scan(explored.model(), [text], out=tmp_path / "run", top=3, unit="line", context=64))
    about = data(bare, "run.json")
    assert about["lens"] is None
    assert about["lenses"] == []
    assert data(bare, "figures.json")["figures"] == []
    assert [m["name"] for m in data(bare, "map.json")["measures"]] == ["peak", "activity"]
    cell = data(bare, "cells/0/0.json")
    assert cell["values"] == []
    assert cell["similar_values"] is None
    assert data(bare, "tokens/0.json")["promoted"] == {}
    for path in bare.paths():
        bare.body(path)


def test_annotations_colour_the_map(tmp_path: Path) -> None:
    run = explored.write(tmp_path)
    explorer = Explorer(run)
    live = next(cell for cell in every_cell(run) if len(cell.triggers) >= 3)
    pattern = {"triggers": [0, 1, 2], "description": "cats", "kind": "semantic"}
    annotation = {"annotator": "ann", "layer": live.layer, "cell": live.index, "patterns": [pattern], "skipped": False}
    annotations.save(run, annotation)
    collections.save_note(run, {"layer": 0, "cell": 1, "text": "<b>odd</b>"})
    assert data(explorer, "annotations.json") == {"annotations": [annotation], "notes": {"L0.1": "<b>odd</b>"}}
    measures = data(explorer, "map.json")["measures"]
    measure = measures[-1]
    found = data(explorer, f"maps/{len(measures) - 1}.json")
    assert f"maps/{len(measures) - 1}.json" in set(explorer.paths())
    placed = np.frombuffer(base64.b64decode(found["data"]), np.uint8)
    assert measure["kinds"][placed[live.place]] == "semantic"
    assert np.count_nonzero(placed != 255) == 1


def test_the_explorer_loads_no_model_library(run: keyhole.Run) -> None:
    code = (
        "import sys, keyhole\nfrom keyhole.web.routes import create\nfrom keyhole.web import serve\n"
        "from keyhole.web.contract import Explorer\n"
        "run = keyhole.open(sys.argv[1]); create(run); explorer = Explorer(run)\n"
        "for path in explorer.paths(): explorer.body(path)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True)
