"""The report with other runs beside: in every figure, in a table of claims, as JSON and as Markdown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM
from families import save, tiny
from pages import Page
from planted import PLANTED, STATEMENTS, listed, plant
from small import corpus
from typer.testing import CliRunner

import keyhole
from keyhole.analyses.record import Shape
from keyhole.cells import Cells
from keyhole.cli import app
from keyhole.errors import UsageError
from keyhole.views import figures, text
from keyhole.views.report import page
from keyhole.views.report import write as report

OPTIONS: dict[str, Any] = {"top": 4, "unit": "line", "device": "cpu"}
CONTROL = "tiny with random weights, seed 0"


@pytest.fixture(autouse=True)
def planted() -> Iterator[None]:
    with listed():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("beside")
    model = save(tiny("gpt2"), folder / "tiny")
    words = corpus(folder / "text.txt")
    run = keyhole.scan(model, [words], out=folder / "run", **OPTIONS)
    control = keyhole.scan(model, [words], out=folder / "control", control="random", **OPTIONS)
    return run.path, control.path


@pytest.fixture
def runs(made: tuple[Path, Path], tmp_path: Path) -> tuple[keyhole.Run, keyhole.Run]:
    run, control = (shutil.copytree(path, tmp_path / path.name) for path in made)
    plant(run, 3, 0.7, large=(0.5, 0.45, 0.55), small=(0.2, 0.1, 0.3), bare=(0.4, 0.3, 0.5))
    plant(control, 3, 0.2, large=(0.0, -0.05, 0.05), small=(0.15, 0.05, 0.25), bare=(0.1,))
    return keyhole.open(run), keyhole.open(control)


def specs(shown: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(code for code in shown.inside["script"] if code.startswith("{")))
    return found


def lines_of(spec: dict[str, Any], run: str) -> dict[str, list[tuple[float, float]]]:
    """The points that a chart draws for a run, by series."""
    found: dict[str, list[tuple[float, float]]] = {}
    for layer in spec["layer"]:
        if layer["mark"]["type"] == "line":
            data = layer["data"]  # equal data is stored once, by name
            for row in data["values"] if "values" in data else spec["datasets"][data["name"]]:
                if row.get("run") == run:
                    found.setdefault(row["series"], []).append((row["layer"], row["value"]))
    return found


def test_other_runs_are_in_every_figure_and_beside_every_claim(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    run, control = runs
    shown = Page(report.write(run, [control]).read_text("utf-8"))
    drawn = specs(shown)
    assert (
        set(shown.values("data-figure"))
        == set(drawn)
        == {
            "planted_lines",
            "planted_bins",
            "planted_stack",
            f"planted_bins of {CONTROL}",
            f"planted_stack of {CONTROL}",
        }
    )
    chart = drawn["planted_lines"]
    assert lines_of(chart, CONTROL) == {
        "up": [(0, 0.2), (1, 0.2), (2, 0.2)],
        "down": [(0, 0.8), (1, 0.8), (2, 0.8)],
    }
    assert lines_of(chart, figures.THIS)["up"] == [(0, 0.7), (1, 0.7), (2, 0.7)]
    assert CONTROL in shown.text
    assert f"keyhole report {run.path.name} --beside {control.path.name}" in shown.text
    for claim in STATEMENTS:  # the headline, beside the other, and by its figure
        assert shown.text.count(page._ours(claim)) == 3
    assert "0.500 (0.429 to 0.571)" in shown.text
    assert "cannot be compared: the effect has no interval on" in shown.text
    assert "Not measured on this run yet: activity" in shown.text  # of the built-in tables
    assert shown.text.count("70 %") == 3  # the listing of this run
    assert shown.text.count("20 %") >= 3  # and of the control


def test_a_run_of_another_depth_is_drawn_by_relative_depth() -> None:
    with_layers = {layers: Shape(Cells.of_widths([8] * layers), 100, signed=False) for layers in (3, 5)}
    rows = {
        layers: [{"layer": i, "n": 10, "up": i / 10, "down": 0.5, "begin": 0.0, "finish": 1.0} for i in range(layers)]
        for layers in with_layers
    }
    beside = [figures.Beside("deep", rows[5], with_layers[5])]
    chart = figures.draw(PLANTED.figures[0], rows[3], figures.Look(with_layers[3]), beside)
    assert chart is not None
    found = lines_of(chart.to_dict(), "deep")["up"]
    assert [at for at, _ in found] == [0, 0.5, 1, 1.5, 2]
    assert [value for _, value in found] == [0, 0.1, 0.2, 0.3, 0.4]


def test_the_headline_has_effects_smallest_effects_and_four_outcomes(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    run, _ = runs
    shown = Page(report.write(run).read_text("utf-8"))
    assert "Of 4 claims, 2 hold for this model, 0 do not, 2 are unclear, 0 do not apply to it." in shown.text
    assert "0.500 (0.450 to 0.550)" in shown.text
    plant(run.path, 3, 0.7, applies=False)
    shown = Page(report.write(keyhole.open(run.path)).read_text("utf-8"))
    assert "0 are unclear, 4 do not apply to it." in shown.text


def test_json_has_the_other_run_and_how_it_compares(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    run, control = runs
    done = CliRunner().invoke(app, ["report", str(run.path), "--beside", str(control.path), "--json"])
    assert done.exit_code == 0, done.output
    (other,) = json.loads(done.output)["beside"]
    assert other["name"] == CONTROL
    assert other["tables"]["planted"] == control.table("planted")
    claim = other["claims"]["planted_lines"][0]
    assert claim["result"] == "differs"
    assert claim["difference"]["value"] == 0.5
    assert claim["other"]["outcome"] == "does not hold"
    assert "activity" in other["missing"]
    assert "beside" not in report.data(run)


def test_markdown_is_a_table_with_a_line_per_claim(runs: tuple[keyhole.Run, keyhole.Run], tmp_path: Path) -> None:
    run, control = runs
    file = tmp_path / "docs" / "found.md"
    command = ["report", str(run.path), "--beside", str(control.path), "--markdown", str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    written = file.read_text("utf-8")
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(STATEMENTS)
    assert {line.replace(r"\|", "").count("|") for line in rows} == {10}
    large = next(line for line in rows if "'large'" in line)
    for said in ("0.3 \\| or so", "0.500 (0.450 to 0.550)", "**holds**", "0.000 (−0.050 to 0.050)", "does not hold"):
        assert f" {said} |" in large
    assert "yes, by 0.500 (0.429 to 0.571)" in large
    assert "4 claims: 2 holds, 0 does not hold, 2 unclear, 0 not applicable." in written
    assert keyhole.report.markdown(run, beside=[control]) == written
    assert len(report.markdown(run).splitlines()) < len(written.splitlines())


def test_markdown_of_a_run_without_tables_says_what_to_do(made: tuple[Path, Path]) -> None:
    assert "Nothing is measured yet: `keyhole analyze run`" in report.markdown(keyhole.open(made[0]))


def test_files_of_figures_are_numbered_by_the_other_run(runs: tuple[keyhole.Run, keyhole.Run], tmp_path: Path) -> None:
    run, control = runs
    made = report.figures(run, [control])
    assert set(made) == {"planted_lines", "planted_bins", "planted_stack", "planted_bins-1", "planted_stack-1"}


def test_a_run_beside_itself_is_refused(runs: tuple[keyhole.Run, keyhole.Run]) -> None:
    with pytest.raises(UsageError, match="is named twice"):
        report.write(runs[0], [keyhole.open(runs[0].path)])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((0.01234, 0.0110, 0.0136), "0.0123 (0.0110 to 0.0136)"),
        ((-0.5, -1.25, 0.25), "−0.50 (−1.25 to 0.25)"),
        ((12345.6, 12000.0, 13000.0), "12,346 (12,000 to 13,000)"),
        ((0.25, 0.25, 0.25), "0.2500 (0.2500 to 0.2500)"),
        ((0.123456, None, None), "0.123"),
        ((float("nan"), None, None), "–"),
    ],
)
def test_effects_are_shown_as_precisely_as_they_are_known(found: tuple[float, Any, Any], said: str) -> None:
    assert text.with_interval(*found) == said


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(runs: tuple[keyhole.Run, keyhole.Run], width: int) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    run, control = runs
    file = report.write(run, [control])
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900})
        heard: list[str] = []
        tab.on("console", lambda message: heard.append(message.text))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.goto(file.as_uri())
        tab.wait_for_selector("html.drawn", timeout=30_000)
        assert tab.locator(".plot svg").count() == 5
        legend = tab.locator("[data-figure=planted_lines] svg").text_content()
        assert CONTROL in legend
        assert figures.THIS in legend
        assert tab.locator("#beside tbody tr").count() == len(STATEMENTS)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert heard == []
