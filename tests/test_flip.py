"""Flipping the signs of random (up, value) pairs of a gated model changes nothing that is found, said or shown, except the
orientation that is stored. In float32 on a CPU negation commutes with every rounding, so all is compared exactly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import tiny
from flipping import flipped
from small import scanned

import keyhole
from keyhole.analyses import registry
from keyhole.models.model import Model
from keyhole.store import layout
from keyhole.uses import prompt
from keyhole.views import notebook, terminal
from keyhole.views.report import write as report
from keyhole.web.contract import Explorer
from keyhole.web.pack import compact

pytestmark = pytest.mark.slow(seconds=2)

Pair = tuple[tuple[keyhole.Run, Model], tuple[keyhole.Run, Model], np.ndarray]


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A gated model and its flipped twin, both scanned and analyzed."""
    model = tiny(request.param)
    other, signs = flipped(model)
    found = []
    for name, each in (("one", model), ("two", other)):
        (folder := tmp_path_factory.mktemp("flip") / name).mkdir()
        run = scanned(each, folder, batch_tokens=300)
        found.append((keyhole.analyze(run, model=each, lens=["raw", "norm"], cells=5), each))
    return found[0], found[1], signs


def test_the_run_differs_in_the_signs_stored_only(pair: Pair) -> None:
    (one, _), (two, _), signs = pair
    assert (one.orientation < 0).any()
    assert (one.orientation > 0).any()
    np.testing.assert_array_equal(two.orientation, one.orientation * signs)
    apart = {"orientation.npy", "active.npy", "sums.npy"}
    for name in set(one.manifest["files"]) - apart:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name
    # A batch's Σm is cut to a multiple of 2⁻⁵², always downwards: half of the cells are cut towards the other side.
    whole, fraction = (one.array("sums") - two.array("sums")).reshape(-1, 2).T
    most = 2 * one.manifest["corpus"]["tokens"] // 300 + 2
    assert (np.abs(whole * 2**52 + fraction) <= most).all()
    np.testing.assert_array_equal(one.array("sums")[:, 1], two.array("sums")[:, 1])


@pytest.mark.parametrize("family", ["phi3", "qwen3", "olmo2"])
def test_other_families_are_scanned_to_the_same_bytes(family: str, tmp_path: Path) -> None:
    """phi3 keeps gate and up in one matrix."""
    model = tiny(family)
    other, signs = flipped(model, seed=3)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = scanned(model, tmp_path / "one", per="prefix"), scanned(other, tmp_path / "two", per="prefix")
    np.testing.assert_array_equal(two.orientation, one.orientation * signs)
    for name in set(one.manifest["files"]) - {"orientation.npy", "active.npy", "sums.npy"}:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name


def test_no_table_and_no_verdict_changes(pair: Pair) -> None:
    """The report is drawn from these, and from the cells that the explorer answers with."""
    (one, _), (two, _), _ = pair
    found = []
    for run in (one, two):
        told = report.data(run)
        told["run"].pop("path")
        told["run"]["corpus"].pop("sources")
        found.append(told)
    assert {each.name for each in registry.analyses() if each.rows} == set(found[0]["tables"])
    assert found[0] == found[1]


def test_nothing_else_that_the_analyses_store_changes(pair: Pair) -> None:
    (one, _), (two, _), _ = pair
    names = sorted(file.name for file in one.path.glob("*.npy") if file.name not in one.manifest["files"])
    assert {"similar_cells.npy", "shading.npy", "histograms.npy", "values_raw_top_tokens.npy"} <= set(names)
    for name in names:
        arrays = [layout.load_array(run.path, name.removesuffix(".npy")) for run in (one, two)]
        np.testing.assert_array_equal(*arrays, err_msg=name)


def test_the_explorer_changes_in_the_sign_of_a_cell_only(pair: Pair) -> None:
    (one, _), (two, _), _ = pair
    explorers = [Explorer(run) for run in (one, two)]
    paths = [list(explorer.paths()) for explorer in explorers]
    assert paths[0] == paths[1]
    listed = [column.name for column in explorers[0].table.columns().columns]
    own = f"columns/{listed.index('orientation')}/"  # the column of the table that says the sign
    signs: list[list[int]] = [[], []]
    for path in paths[0]:
        answers = [json.loads(compact(explorer.answer(path))) for explorer in explorers]
        for number, answer in enumerate(answers):
            if path == "run.json":
                answer.pop("checksum")
            if path == "collections.json":
                answer["model"].pop("fingerprint")
            if path.startswith("cells/"):
                signs[number].append(answer.pop("sign"))
        if not path.startswith(own):
            assert answers[0] == answers[1], path
    assert signs == [one.orientation.tolist(), two.orientation.tolist()]


def test_a_prompt_and_its_edits_do_not_change(pair: Pair) -> None:
    (one, model), (two, other), _ = pair
    edits = [{"layer": 1, "cell": 5, "scale": 0.0}, {"layer": 2, "cell": 7, "scale": -2.0}]
    views = [
        prompt.read(each, "The cat sat", edits=keyhole.intervene.parse(edits), run=run).to_json()
        for run, each in ((one, model), (two, other))
    ]
    assert views[0] == views[1]
    bare = [prompt.read(each, "The cat sat").to_json() for each in (model, other)]
    assert bare[0] != bare[1]  # without the run, the model's own signs


def test_pages_of_a_cell_do_not_change(pair: Pair) -> None:
    (one, _), (two, _), _ = pair
    console = terminal.console()
    for layer, index in one.cells:
        shown = []
        for run in (one, two):
            with console.capture() as captured:
                console.print(terminal.cell(run.cell(layer, index)))
            page, cell = captured.get(), run.cell(layer, index)
            texts = [(page, "read with the sign −: the value shown is −v of the weights, a coefficient −m\n")]
            texts += [(notebook.cell(cell), " Read with the sign −: the value is −v of the weights, a coefficient −m.")]
            assert [said in text for text, said in texts] == [cell.orientation < 0] * 2
            shown.append([text.replace(said, "") for text, said in texts])
        assert shown[0] == shown[1]
    pages = [notebook.layer(run.layer(1)) for run in (one, two)]
    assert pages[0] == pages[1]
