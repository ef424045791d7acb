"""Layers of different widths, from loading to the export: two models whose layers were cut to 11, 24 and 17 cells by hand."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import packed
import paper
import pytest
import torch
from families import CONTEXT
from narrowed import WIDTHS, narrowed
from reference import assert_equals_reference
from small import scanned
from stopping import stop_after

import keyhole
from keyhole.analyses import heldout, mutation
from keyhole.analyses.strength import at_triggers
from keyhole.cells import Cells
from keyhole.errors import Interrupted, UsageError
from keyhole.export import site as export
from keyhole.lens.head import Head
from keyhole.models import intervene
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.models.proof import prove
from keyhole.store import collections, shading, values
from keyhole.uses import prompt
from keyhole.views import notebook, terminal
from keyhole.views.report import write as report
from keyhole.web.contract import Explorer, NotThere

FAMILIES = ("opt", "gpt2", "llama")
"""ReLU, GELU, and a gate."""
PLACES = [(layer, cell) for layer, width in enumerate(WIDTHS) for cell in range(width)]
"""The axis, written out: the layer and number of every place."""


@pytest.fixture(scope="module", params=FAMILIES)
def analysed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, Model]:
    """A run with every table, both lenses and the shading."""
    model = narrowed(request.param)
    run = scanned(model, tmp_path_factory.mktemp(request.param))
    return keyhole.analyze(run, model=model, lens=["norm", "raw"], cells=5), model


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


def same_bytes(one: keyhole.Run, other: keyhole.Run) -> None:
    names = sorted(path.name for path in one.path.glob("*.npy"))
    assert len(names) >= 12
    for name in names:
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes(), name


# The model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_proof_holds(family: str) -> None:
    model = narrowed(family)
    assert model.cells == Cells.of_widths(WIDTHS)
    assert [model.values(layer).shape[0] for layer in range(model.layers)] == list(WIDTHS)
    prove(model)
    assert "11 to 24 cells" in repr(model)
    seen = paper.look(model, model.tokenize(["The cat sat"])[0])
    np.testing.assert_allclose(model.coefficients("The cat sat")[-1], np.concatenate(seen.m), rtol=1e-4, atol=1e-5)


# The scan


@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_scan_equals_brute_force(family: str, per: str, text: Path, tmp_path: Path) -> None:
    model = narrowed(family)
    options: dict[str, Any] = {"top": 4, "unit": "line", "per": per, "batch_tokens": 1, "context": CONTEXT}
    run = keyhole.scan(model, [text], tmp_path / "run", **options)
    assert run.coefficients.shape == (sum(WIDTHS), 4)
    assert_equals_reference(run, model, lines(text), room=CONTEXT - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_shards_and_a_resumed_scan_give_the_same_bytes(
    family: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = narrowed(family)
    options: dict[str, Any] = {"top": 4, "unit": "line", "batch_tokens": 60, "context": 20}
    whole = keyhole.scan(model, [text], tmp_path / "whole", **options)
    parts = [keyhole.scan(model, [text], tmp_path / f"{i}", shard=(i, 3), **options).path for i in (1, 2, 3)]
    same_bytes(whole, keyhole.merge(tmp_path / "merged", parts))
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(model, [text], tmp_path / "resumed", **options)
    same_bytes(whole, keyhole.scan(model, [text], tmp_path / "resumed", resume=True, **options))


def test_verify_finds_what_is_wrong(analysed: tuple[keyhole.Run, Model]) -> None:
    run, model = analysed
    assert keyhole.verify(run, cells=10**6, model=model).ok
    changed = keyhole.open(run.path)
    cell = max(run.layer(2), key=lambda cell: len(cell.triggers))
    changed.coefficients = np.array(changed.coefficients)
    changed.coefficients[cell.place, 0] *= 1.01
    found = keyhole.verify(changed, cells=10**6, model=model)
    assert (found.ok, found.worst, found.cells) == (False, cell.address, sum(WIDTHS))


# The run


def test_cells_by_address_and_arrays_by_layer(analysed: tuple[keyhole.Run, Model]) -> None:
    run, _ = analysed
    assert list(run.cells) == PLACES
    assert run.manifest["model"]["cells"] == [
        {"layer": "L0", "offset": 0, "width": 11},
        {"layer": "L1", "offset": 11, "width": 24},
        {"layer": "L2", "offset": 35, "width": 17},
    ]
    for place, (layer, index) in enumerate(PLACES):
        cell = run[f"L{layer}.{index}"]
        assert cell == run[f"{layer}.{index}"] == run.cell(layer, index) == run.layer(f"L{layer}")[index]
        assert (cell.place, cell.address) == (place, f"L{layer}.{index}")
        filled = run.units[place] >= 0
        assert [t.coefficient for t in cell.triggers] == run.coefficients[place][filled].tolist()
        assert cell.stats.max == run.stats.max[place]
    for layer, width in enumerate(WIDTHS):
        here = run.layer(layer)
        assert len(here) == len(list(here)) == len(here.units) == len(here.stats.max) == width
        assert np.shares_memory(here.coefficients, run.coefficients)
    for address in ("L0.11", "L2.17", "L3.0"):
        with pytest.raises(UsageError, match=f"There is no cell {address}"):
            run[address]
    assert "3 layers × 11 to 24 cells" in repr(run)


# The analyses


def test_every_table_equals_the_papers_definition(analysed: tuple[keyhole.Run, Model]) -> None:
    run, model = analysed
    e = paper.unembedding(model)
    said = [
        [paper.value(model, layer, cell) * run.cell(layer, cell).orientation for cell in range(width)]
        for layer, width in enumerate(WIDTHS)
    ]
    for row in run.table("activity"):
        here = [run.cell(row["layer"], cell) for cell in range(WIDTHS[row["layer"]])]
        fraction = np.mean([cell.stats.active_fraction for cell in here])
        assert row["active_fraction"] == (None if run.gated else pytest.approx(fraction))
        assert row["dead"] == sum(cell.dead for cell in here)
    for row in (row for row in run.table("agreement") if row["target"] in ("next", "last")):
        n, hits, _ = paper.agreement(run, model, row["layer"], row["target"], row["lens"])
        assert (row["n"], round((row["rate"] or 0) * row["n"])) == (n, hits)
    for row in run.table("rank"):
        n, _, ranks = paper.agreement(run, model, row["layer"], "next", row["lens"])
        assert row["n"] == n
        got = [row[name] for name in ("p5", "p25", "median", "p75", "p95")]
        np.testing.assert_allclose(got, np.percentile(ranks, [5, 25, 50, 75, 95]))
    confident = run.table("confident")
    strengths = at_triggers(run, Head(model))[0]
    alive = {at for place, at in enumerate(PLACES) if run.units[place, 0] >= 0}
    assert {(row["layer"], row["cell"]) for row in confident} == alive
    for row in confident:
        logits = paper.folded(model, said[row["layer"]][row["cell"]]) @ e.T
        assert row["token"] == run.vocabulary.piece(int(logits.argmax()))
        strong = float(strengths[run.cells.place(row["layer"], row["cell"])])
        assert row["max_prob"] == pytest.approx(float(torch.softmax(logits * strong, 0).max()), rel=1e-3)
        known = [t.next_token for t in run.triggers(row["layer"], row["cell"]) if t.next_token is not None]
        assert row["share"] == (pytest.approx(known.count(row["token"]) / len(known)) if known else None)
    counted = sum(row["n"] for row in run.table("agreement") if (row["target"], row["lens"]) == ("next", "norm"))
    for part in (("bin",), ("surer half", "less sure half")):
        assert sum(row["n"] for row in run.table("confidence") if row["part"] in part) == counted
    keyhole.analyze(run, model=model, only=["composition", "refinement"], lens="raw")
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    seen = [paper.look(model, ids) for ids in prefixes.ids]
    for row in run.table("composition"):
        if (row["cells"], row["output"]) != ("active", "y"):
            continue
        layer = row["layer"]
        own = [paper.value(model, layer, cell) for cell in range(WIDTHS[layer])]  # with the model's own coefficients
        top, bottom = ([int((sign * v @ e.T).argmax()) for v in own] for sign in (1, -1))
        zero = [paper.zero_agreement(model, layer, one, top, bottom) for one in seen]
        assert row["zero_agreement"] == pytest.approx(np.mean(zero))
    for row in run.table("budget"):
        assert row["cells"] == WIDTHS[row["layer"]]
        assert 0 < row["effective"] <= 1
        assert 0 < row["kstar"] <= 1
        above = np.mean([one.m[row["layer"]] > 0 for one in seen])
        assert row["active_fraction"] == (None if run.gated else pytest.approx(above))
    for row in run.table("refinement"):
        r, y, o = (
            [int(paper.own_logits(model, getattr(one, name)[row["layer"]]).argmax()) for one in seen] for name in "ryo"
        )
        kinds = Counter(
            "agreement" if c == a == b else "residual" if c == a else "ffn" if c == b else "composition"
            for a, b, c in zip(r, y, o, strict=True)
        )
        for kind in ("residual", "ffn", "agreement", "composition"):
            assert row[kind] == pytest.approx(kinds[kind] / len(seen)), kind
    assert {row["layer"] for row in run.table("mutation")} == {0, 1, 2}
    assert run.table("cases") is not None


def test_mutation_asks_the_cells_it_picked(analysed: tuple[keyhole.Run, Model]) -> None:
    """The last token is dropped by looking one token earlier, so its numbers follow from one forward per trigger."""
    run, model = analysed
    picked = mutation.pick(run, 5, 0)
    assert all(cell < WIDTHS[layer] for layer, cell in zip(picked.layer, picked.cell, strict=True))
    for row in (row for row in run.table("mutation") if row["dropped"] == "last"):
        changes = []
        for i in np.flatnonzero(picked.layer == row["layer"]):
            ids = [int(t) for t in run.unit_tokens(int(picked.unit[i]))][: picked.length[i]]
            looked = [paper.look(model, part).m[row["layer"]][picked.cell[i]] for part in (ids, ids[:-1])]
            before, after = (m * run.orientation[picked.place[i]] for m in looked)
            assert before == pytest.approx(picked.coefficient[i], rel=1e-3)
            changes.append(after / picked.coefficient[i] - 1)
        by_cell = [
            np.mean(
                [
                    c
                    for c, i in zip(changes, np.flatnonzero(picked.layer == row["layer"]), strict=True)
                    if picked.cell[i] == cell
                ]
            )
            for cell in sorted(set(picked.cell[picked.layer == row["layer"]].tolist()))
        ]
        assert row["n"] == len(changes)
        assert row["lo"] is None or row["lo"] <= row["mean_change"] <= row["hi"]
        assert min(by_cell) - 1e-6 <= row["mean_change"] <= max(by_cell) + 1e-6


def test_what_values_say_and_who_says_a_token(analysed: tuple[keyhole.Run, Model]) -> None:
    run, model = analysed
    e = paper.unembedding(model)
    every = torch.stack([paper.value(model, *at) * run.cell(*at).orientation for at in PLACES])
    for lens in ("norm", "raw"):
        said = values.Values(run, lens)
        seen = every if lens == "raw" else torch.stack([paper.folded(model, v) for v in every])
        order = torch.argsort(seen @ e.T, dim=1, descending=True, stable=True)
        np.testing.assert_array_equal(said.top_tokens, order[:, :30])
        np.testing.assert_array_equal(said.bottom_tokens, order.flip(1)[:, :30])
        np.testing.assert_allclose(said.norms, every.norm(dim=1), rtol=1e-4)
        for token in (5, 40, 100, 299):
            for speakers, tokens in ((said.promoting(token), order[:, :30]), (said.demoting(token), order[:, -30:])):
                places = [place for place in range(len(PLACES)) if token in tokens[place].tolist()]
                assert sorted((s.layer, s.cell) for s in speakers) == [PLACES[place] for place in places]
                assert {s.address for s in speakers} == {"L{}.{}".format(*PLACES[place]) for place in places}
    for place, (layer, cell) in enumerate(PLACES):
        cosines = torch.cosine_similarity(every[place][None], every, dim=1)
        cosines[place] = -2
        near = values.similar(run, layer, cell)
        assert [other.cosine for other in near] == pytest.approx(cosines.topk(5).values.tolist(), abs=1e-4)
        for other in near:
            assert float(cosines[PLACES.index((other.layer, other.cell))]) == pytest.approx(other.cosine, abs=1e-4)


def test_shades_and_histograms(analysed: tuple[keyhole.Run, Model]) -> None:
    run, model = analysed
    found = shading.of(run)
    assert found is not None
    units = {
        unit: model.coefficients_of([int(i) for i in run.unit_tokens(unit)]).numpy() * run.orientation
        for unit in range(run.manifest["corpus"]["units"])
    }
    checked = 0
    for place, (layer, index) in enumerate(PLACES):
        sides = [run.triggers(layer, index), run.triggers(layer, index, negative=True)]
        largest = max([abs(t.coefficient) for side in sides for t in side], default=0.0)
        for negative, side in enumerate(sides):
            for slot, trigger in enumerate(side):
                begin, end = shading.shown(len(run.unit_tokens(trigger.unit)), trigger.position, run.room)
                expected = units[trigger.unit][begin:end, place] / largest * 127
                np.testing.assert_allclose(found.row(layer, index, slot, bool(negative)), expected, atol=0.6)
                checked += 1
        histogram = found.histogram(layer, index)
        if histogram is not None:
            edges, counts, n = histogram
            assert (edges[0], edges[-1]) == (run.stats.min[place], run.stats.max[place])
            assert counts.sum() == n
    assert checked == (run.units >= 0).sum() + (run.units_negative >= 0).sum() > 100


# A prompt and edits


def test_a_prompt_and_edits(analysed: tuple[keyhole.Run, Model]) -> None:
    _, model = analysed
    text = "The cat sat"
    (ids,) = model.tokenize([text])
    seen = paper.look(model, ids)
    for layer, view in enumerate(prompt.read(model, text).layers):
        strengths = [
            abs(float(seen.m[layer][cell])) * float(paper.value(model, layer, cell).norm())
            for cell in range(WIDTHS[layer])
        ]
        got = [one.strength for one in view.strongest]
        assert got == pytest.approx(sorted(strengths, reverse=True)[: len(got)], rel=1e-3, abs=1e-5)
        assert all(one.strength == pytest.approx(strengths[one.cell], rel=1e-3, abs=1e-5) for one in view.strongest)
    plain = model.coefficients(text)
    for layer, width in enumerate(WIDTHS):
        with applied(model, [Edit(layer, width - 1, -2.0)]):
            edited = model.coefficients(text)
        expected = plain[:, model.cells.span(layer)].clone()
        expected[:, -1] *= -2
        torch.testing.assert_close(edited[:, model.cells.span(layer)], expected)
        with pytest.raises(UsageError, match=f"no cell L{layer}.{width} to edit.*cells 0 to {width - 1}"):
            intervene.check([Edit(layer, width, 0.0)], model)
    assert intervene.dump([], model)["model"]["cells"] == list(WIDTHS)


def test_a_scan_of_the_edited_model(tmp_path: Path, text: Path) -> None:
    model = narrowed("opt")
    with applied(model, [Edit(2, 16, 0.0)]):
        run = keyhole.scan(model, [text], tmp_path / "run", top=3, unit="line")
    assert run["L2.16"].dead
    assert "L2.16" in run.dead
    assert run.stats.max[-1] == 0


# What people see


def test_terminal_notebook_and_report(analysed: tuple[keyhole.Run, Model], tmp_path: Path) -> None:
    run, _ = analysed
    console = terminal.console()
    with console.capture() as shown:
        console.print(terminal.info(run))
        console.print(terminal.cell(run["L1.23"]))
        console.print(terminal.token(values.Values(run, "raw"), 40, 10**6))
    said = shown.get()
    assert "3 layers × 11 to 24 cells = 52" in said
    assert "L1.23" in said
    for layer, width in enumerate(WIDTHS):
        page = notebook.layer(run.layer(layer))
        assert f"of {width} cells" in page
        (rows,) = notebook.layer_chart(run.layer(layer)).to_dict()["datasets"].values()
        assert [row["cell"] for row in rows] == [f"L{layer}.{cell}" for cell in range(width)]
    assert run["L2.16"].address in notebook.cell(run["L2.16"])
    page = report.write(keyhole.open(shutil.copytree(run.path, tmp_path / "run"))).read_text("utf-8")
    assert "3 layers × 11 to 24 = 52" in page


def test_the_explorers_answers(analysed: tuple[keyhole.Run, Model]) -> None:
    run, _ = analysed
    explorer = Explorer(run)
    found = {path: json.loads(explorer.body(path), parse_constant=pytest.fail) for path in explorer.paths()}
    asked = [path for path in found if path.startswith("cells/")]
    assert asked == [f"cells/{layer}/{cell}.json" for layer, cell in PLACES]
    for layer, cell in PLACES:
        said = found[f"cells/{layer}/{cell}.json"]
        assert said["address"] == f"L{layer}.{cell}"
        assert len(said["triggers"]) == len(run.triggers(layer, cell))
        near = [other.address for other in values.similar(run, layer, cell)]
        assert [address for address, _ in said["similar_values"]] == near
        assert all(run[address] for address, _ in said["similar_keys"])
    for layer, width in enumerate(WIDTHS):
        columns = found[f"layers/{layer}.json"]["columns"]
        assert {len(column) for column in columns.values()} == {width}
        assert columns["max"] == pytest.approx(run.layer(layer).stats.max.tolist(), rel=1e-3, abs=1e-30)
        with pytest.raises(NotThere):
            explorer.answer(f"cells/{layer}/{width}.json")
    assert found["run.json"]["layers"] == run.manifest["model"]["cells"]
    for number in range(len(found["map.json"]["measures"])):
        assert len(base64.b64decode(found[f"maps/{number}.json"]["data"])) == len(PLACES)
    held = Counter(
        (negative, unit, place)
        for path, page in found.items()
        if path.startswith("units/")
        for unit, text in page["units"].items()
        for negative, side in ((False, text["cells"]), (True, text["negative"]))
        for _, gaps in side
        for place in itertools.accumulate(gaps)
    )
    truth = Counter(
        (negative, str(trigger.unit), place)
        for place, at in enumerate(PLACES)
        for negative in (False, True)
        for trigger in run.triggers(*at, negative=negative)
    )
    assert held == truth
    for token, rows in found["tokens/0.json"]["promoted"].items():
        speakers = values.Values(run, "norm").promoting(int(token))
        assert [PLACES[place] for place, _, _ in rows] == [(s.layer, s.cell) for s in speakers]
    assert all(run[address].triggers for address in found["run.json"]["worth"])


def test_annotations_and_the_export(analysed: tuple[keyhole.Run, Model], tmp_path: Path) -> None:
    run = keyhole.open(shutil.copytree(analysed[0].path, tmp_path / "run"))
    collections.save_note(run, {"layer": 2, "cell": 16, "text": "the last one"})
    with pytest.raises(UsageError, match="There is no cell L2.17"):
        collections.save_note(run, {"layer": 2, "cell": 17, "text": "none"})
    assert collections.read_notes(run) == {"L2.16": "the last one"}
    export.export(run, tmp_path / "site")
    written = packed.answers(tmp_path / "site")
    assert {path for path in written if path.startswith("cells/")} == {f"cells/{a}/{b}.json" for a, b in PLACES}
