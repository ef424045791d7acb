"""What cells, layers and prompts look like in a notebook: all there, and nothing in it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import explored
import pytest
import vl_convert
from pages import read

import keyhole
from keyhole.errors import RunError, UsageError
from keyhole.store import shading, values
from keyhole.uses import prompt
from keyhole.views import figures, notebook, palette
from keyhole.views import text as show


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("notebook"))
    return keyhole.analyze(run, only=["shading"], model=explored.model())


def test_cells(run: keyhole.Run) -> None:
    hostile = 0
    for layer in range(run.layers):
        for cell in run.layer(layer):
            said = read(cell._repr_html_())
            assert cell.address in said
            assert f"{cell.stats.max:.3g}" in said
            for lens in ("norm", "raw"):
                assert f"lens {lens}" in said
                piece = values.Values(run, lens).promoted(layer, cell.index)[0].piece
                assert show.printable(piece[1:] if piece.startswith(" ") and piece.strip() else piece.strip()) in said
            if not cell.triggers:
                assert "Dead" in said
                continue
            for trigger in cell.triggers:
                assert f"{trigger.coefficient:.3g}" in said
                *before, last = trigger.tokens[-41:]
                assert show.printable("".join(before)) + (last if last.strip() else show.blank(last)) in said
            hostile += "<script>" in said or "<img src=x" in said
    assert hostile > 0


def test_a_trigger_is_shaded_by_its_coefficients(run: keyhole.Run) -> None:
    cell = next(cell for cell in run.layer(1) if cell.triggers)
    shades = shading.of(run)
    assert shades is not None
    row = shades.row(cell.layer, cell.index, 0)
    html = notebook.html("trigger", notebook._trigger(cell, 0, cell.triggers[0], False))
    assert html.count("200,104,28") == sum(row >= 4)
    assert html.count("59,119,173") == sum(row <= -4)
    assert html.count("<mark>") == 1


def test_colours_are_those_of_the_explorer() -> None:
    style = (resources.files("keyhole.web") / "static" / "style.css").read_text("utf-8")
    light = style[: style.index("prefers-color-scheme: dark")]
    for name, code in palette.HUES.items():
        assert f"--{name}: {code};" in light


def test_promoted_and_demoted_tokens_have_one_scale_and_visible_spaces(run: keyhole.Run) -> None:
    for cell in run.layer(1):
        html = cell._repr_html_()
        said = values.Values(run, "norm")
        logits = [abs(t.logit) for t in said.promoted(1, cell.index, 10) + said.demoted(1, cell.index, 10)]
        widths = [float(w) for w in re.findall(r'class="bar \w+" style="width:([\d.]+)em"', html)][: len(logits)]
        assert widths == pytest.approx([5 * logit / max(logits) for logit in logits], abs=0.006)
        assert html.count('class="bar say"') == html.count('class="bar unsay"') == 20
    for piece, shown in ((" cat", "<i>␣</i>cat"), ("cat", "<bdi>cat"), ("  ", "␣␣"), ("", "(empty)")):
        assert shown in notebook.html("token", piece)


def test_a_run(run: keyhole.Run, tmp_path: Path) -> None:
    said = read(run._repr_html_())
    for part in ("3 layers × 24 cells", f"{run.manifest['corpus']['tokens']:,} tokens", "te<x>t.txt", "keyhole serve"):
        assert part in said
    assert "mutation" in said[said.index("Not analyzed yet") :]
    assert [each.index for each in run] == [0, 1, 2]
    assert run[1].index == 1
    assert run[1][5] == run[1, 5] == run["L1.5"] == run["1/5"]
    for wrong in (3, -1, None, 1.5, (1, 2, 3)):
        with pytest.raises(UsageError):
            run[wrong]  # type: ignore[call-overload]


def test_what_a_cell_says(run: keyhole.Run) -> None:
    said, cell = values.Values(run, "norm"), run["L2.7"]
    assert [(each.token, each.logit) for each in cell.promoted] == list(
        zip(said.top_tokens[cell.place].tolist(), said.top_logits[cell.place].tolist(), strict=True)
    )
    assert cell.demoted[0].logit == said.bottom_logits[cell.place, 0]
    nearest = cell.similar[0]
    assert nearest.address != cell.address
    assert nearest.cosine == max(each.cosine for each in cell.similar)


def test_layers(run: keyhole.Run) -> None:
    for number in range(run.layers):
        layer = run.layer(number)
        assert len(layer) == run.cells.size(number)
        assert [cell.address for cell in layer] == [f"L{number}.{i}" for i in range(run.cells.size(number))]
        said = read(layer._repr_html_())
        strongest = max(layer, key=lambda cell: cell.stats.max)
        assert strongest.address in said
        assert f"{len(layer):,} cells" in said
    for bad in (-1, 3):
        with pytest.raises(UsageError, match="layers 0 to 2"):
            run.layer(bad)


def test_prompts(run: keyhole.Run) -> None:
    text = "The <b>cat</b> sat"
    view = prompt.read(explored.model(), text)
    said = read(view._repr_html_())
    assert show.printable(text) in said
    assert "without the edits" not in said
    edited = prompt.read(explored.model(), text, edits=[keyhole.intervene.Edit(0, 1, 5.0)])
    said = read(edited._repr_html_())
    assert "without the edits" in said
    for layer in edited.layers:
        assert f"L{layer.layer}.{layer.effective[0].cell}" in said
    hostile = view.to_json()
    hostile["chosen"]["piece"] = hostile["tokens"][0] = "<img src=x onerror=alert(1)>"
    for pairs in (hostile["prediction"], hostile["layers"][0]["before"], hostile["layers"][0]["after"]):
        pairs[0][:] = ["</style><script>alert(1)</script>", None]
    assert "<img src=x" in read(notebook.prompt(hostile))


def drawn(chart: Any) -> list[dict[str, Any]]:
    """The rows of a chart that Vega draws."""
    spec = figures.spec(chart)
    assert "<svg" in vl_convert.vegalite_to_svg(spec, vl_version=figures.vega_lite())
    rows: list[dict[str, Any]] = spec["datasets"][spec["data"]["name"]]
    return rows


def test_charts(run: keyhole.Run) -> None:
    cell = next(cell for cell in run.layer(1) if cell.triggers)
    found = shading.histogram(run, 1, cell.index)
    assert found is not None
    rows = drawn(cell.chart())
    assert [row["prefixes"] for row in rows] == found[1].tolist()
    assert rows[0]["from"] == pytest.approx(cell.stats.min)
    rows = drawn(run.layer(2).chart())
    assert [row["largest"] for row in rows] == pytest.approx([cell.stats.max for cell in run.layer(2)])


def test_a_run_without_analysis(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one line\nanother line\n")
    bare = keyhole.scan(explored.model(), [text], out=tmp_path / "run", top=3, unit="line", context=64)
    assert "L0.0" in read(bare["L0.0"]._repr_html_())
    assert "Layer 1" in read(bare.layer(1)._repr_html_())
    assert "Not analyzed yet" in read(bare._repr_html_())
    for name in ("promoted", "demoted", "similar"):
        with pytest.raises(RunError, match="keyhole analyze"):
            getattr(bare["L0.0"], name)
    with pytest.raises(RunError, match="--only shading"):
        bare["L0.0"].chart()


def test_showing_a_cell_loads_no_model_library(run: keyhole.Run) -> None:
    code = (
        "import sys, keyhole\nrun = keyhole.open(sys.argv[1])\n"
        "run['L1.2']._repr_html_(), run.layer(1)._repr_html_(), run._repr_html_()\n"
        "assert not {'torch', 'transformers', 'altair'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True)
