"""How often a key fires, and examples below the top, against one bare forward pass per unit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import tiny
from flipping import flipped
from reference import forward
from small import scanned

import keyhole
from keyhole.analyses import below as keeping
from keyhole.analyses import shading as filling
from keyhole.analyses.stats import wilson
from keyhole.analyses.targets import held_out_units
from keyhole.commands import look
from keyhole.errors import RunError
from keyhole.models.model import Model
from keyhole.store import below, layout, shading
from keyhole.views import firing

Places = dict[tuple[int, int], np.ndarray]


def every(run: keyhole.Run, model: Model) -> Places:
    """Unit and position → [cells] coefficients as the cells are read; units that were held out are left out."""
    held, found = set(held_out_units(run).tolist()), {}
    for unit in range(run.manifest["corpus"]["units"]):
        ids = [int(i) for i in run.unit_tokens(unit)]
        for begin in range(0, 0 if unit in held else len(ids), run.room):
            rows = forward(model, ids[begin : begin + run.room], bool(run.manifest["config"]["bos"]))
            found |= {(unit, begin + i): row * run.orientation for i, row in enumerate(rows)}
    return found


@pytest.fixture(params=["llama", "opt", "gpt2"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[keyhole.Run, Model]:
    """A gated model, one with ReLU (dead cells), one with GELU; some units are longer than a window."""
    model = tiny(request.param)
    run = scanned(model, tmp_path, context=12)
    return run, model


def test_how_often_a_key_fires(made: tuple[keyhole.Run, Model]) -> None:
    run, model = made
    assert shading.firing(run) is None
    filling.fill(run, model)
    truth = np.stack(list(every(run, model).values()))  # the sample is all of it
    shares, found = shading.firing(run), shading.of(run)
    assert found is not None
    assert shares is not None
    assert found.prefixes == found.of == len(truth)
    said = firing.of(run.cell(*run.cells.split(int(np.nanargmax(shares)))))
    assert said is not None
    assert said["lo"] == said["share"] == said["hi"], "all were looked at: nothing was sampled"
    largest = run.stats.max
    for place, share in enumerate(shares):
        if largest[place] <= 0:
            assert np.isnan(share)
            continue
        slack = 1e-5 * largest[place]  # another batch may round differently
        low, high = ((truth[:, place] > largest[place] / 10 + each).sum() for each in (slack, -slack))
        assert low <= round(share * len(truth)) <= high
    assert 0 < np.nanmean(shares) < 1
    np.testing.assert_array_equal(shading.firing(run, run.cells.span(1)), shares[run.cells.span(1)])


def test_the_interval_of_a_sample_covers_the_share_of_the_whole_text(
    made: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many seeds, and for a sample of most of the text: the interval is narrow, and still holds the truth often enough."""
    run, model = made
    truth = np.stack(list(every(run, model).values()))
    place = int(np.nanargmin(np.abs((truth > run.stats.max / 10).mean(0) - 0.3)))
    whole = (truth[:, place] > run.stats.max[place] / 10).mean()
    monkeypatch.setattr(filling, "SAMPLE", int(0.8 * len(truth)))
    held, widths = 0, []
    for seed in range(20):
        filling.fill(run, model, seed=seed)
        said = firing.of(keyhole.open(run.path).cell(*run.cells.split(place)))
        assert said is not None
        assert 0.8 * len(truth) <= said["n"] < said["of"] == len(truth)
        held += said["lo"] <= whole <= said["hi"]
        widths.append(said["hi"] - said["lo"])
    plain = np.subtract(*reversed(wilson(whole * said["n"], said["n"])))
    assert held >= 15
    assert max(widths) < 0.7 * plain, "most of the text was looked at"


@pytest.mark.parametrize("kept", [60, 2048])
def test_examples_are_of_their_band(
    made: tuple[keyhole.Run, Model], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "KEPT", kept)
    run, model = made
    filling.fill(run, model, seed=3)
    truth, found = every(run, model), shading.of(run)
    assert found is not None
    examples, places = found.below, [tuple(place) for place in found.below.places.tolist()]
    inputs = [run.unit_tokens(unit)[run.window_start(at) : at + 1].tobytes() for unit, at in every(run, model)]
    assert len(set(inputs)) < len(inputs), "some prefixes are repeated in the text"
    assert len(set(places)) == len(places) == min(kept, len(set(inputs)))
    assert len({run.unit_tokens(unit)[run.window_start(at) : at + 1].tobytes() for unit, at in places}) == len(places)
    m = np.stack([truth[place] for place in places])  # [prefixes, cells]
    n, slack = len(places), 1e-5 * float(np.abs(m).max())
    seen = set()
    for at in range(len(run.cells)):
        here, column = examples.of(at), np.sort(m[:, at])[::-1]
        for each in [each for group in (*here.bands, here.random) for each in group]:
            assert each.coefficient == pytest.approx(m[each.prefix, at], abs=slack)
        for number, (band, (low, high)) in enumerate(zip(here.bands, below.BANDS, strict=True)):
            begin, end = round((1 - high) * n), round((1 - low) * n)
            assert len({each.prefix for each in band}) == len(band) == min(4, end - begin)
            for each in band:
                assert column[end - 1] - slack <= each.coefficient <= column[begin] + slack
            if number < 3 and band:
                assert here.edges[number] == pytest.approx(column[end - 1], abs=slack)
        assert len({each.prefix for each in here.random}) == 4
        seen |= {each.prefix for each in here.random}
    assert len(seen) > 0.5 * n  # random ones are any of them


def test_the_same_seed_gives_the_same_and_another_others(made: tuple[keyhole.Run, Model], tmp_path: Path) -> None:
    run, model = made
    stored = []
    for seed in (5, 5, 6):
        layout.drop_shading(run.path)
        filling.fill(run, model, seed=seed)
        stored.append([layout.load_array(run.path, name).copy() for name in layout.BELOW])
    for one, same in zip(stored[0], stored[1], strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(stored[0][1], stored[2][1])


def test_on_disk_as_in_memory(made: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = made
    filling.fill(run, model)
    before = [layout.load_array(run.path, name).copy() for name in layout.BELOW]
    names = sorted(path.name for path in run.path.iterdir())
    layout.drop_shading(run.path)
    monkeypatch.setattr(keeping, "IN_MEMORY", 0)
    filling.fill(run, model)
    assert sorted(path.name for path in run.path.iterdir()) == names
    for name, array in zip(layout.BELOW, before, strict=True):
        np.testing.assert_array_equal(layout.load_array(run.path, name), array)
    layout.drop_shading(run.path)
    monkeypatch.setattr(keeping, "ON_DISK", 4 * len(run.cells) * 7)
    filling.fill(run, model)
    assert len(layout.load_array(run.path, layout.BELOW[0])) == 7


def test_flipped_signs_change_nothing(tmp_path: Path) -> None:
    model = tiny("llama")
    other, _ = flipped(model)
    found = []
    for name, each in (("one", model), ("two", other)):
        (tmp_path / name).mkdir()
        run = scanned(each, tmp_path / name)
        filling.fill(run, each)
        found.append([(run.path / f"{name}.npy").read_bytes() for name in ("firing", *layout.BELOW)])
    assert found[0] == found[1]


def test_older_shading_counts_as_absent(made: tuple[keyhole.Run, Model]) -> None:
    run, model = made
    filling.fill(run, model)
    settings = layout.read_shading(run.path)
    assert settings is not None
    del settings["examples"]
    layout.save_group(run.path, "shading", settings, ["shading.npy", "shading_offsets.npy", "histograms.npy"])
    assert shading.of(keyhole.open(run.path)) is None
    keyhole.analyze(run.path, model=model, only=["shading"])
    assert shading.of(keyhole.open(run.path)) is not None


def test_show_prints_them(made: tuple[keyhole.Run, Model], capsys: pytest.CaptureFixture[str]) -> None:
    run, model = made
    cell = str(run.cell(1, int(np.argmax(run.layer(1).stats.max))).address)
    with pytest.raises(RunError, match="--only shading"):
        look.show(run.path, cell, below=True)
    assert capsys.readouterr().out == ""
    filling.fill(run, model)
    look.show(run.path, cell, below=True, as_json=True)
    said = json.loads(capsys.readouterr().out)
    found = shading.of(keyhole.open(run.path))
    assert found is not None
    here = found.below.of(run.cells.find(cell))
    assert [len(each["triggers"]) for each in said["below"]] == [len(each) for each in (*here.bands, here.random)]
    assert said["below"][1]["band"] == [0.9, 0.99]
    share = said["stats"]["firing"]
    assert share["lo"] <= share["share"] <= share["hi"]
    look.show(run.path, cell, below=True)
    shown = capsys.readouterr().out
    assert "90 to 99 %" in shown
    assert f"of the text's prefixes (all {share['n']:,})" in shown
