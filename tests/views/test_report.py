"""The report: complete, self-contained, and deaf to what the corpus would have it do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import patterned
import pytest
import used
from families import tiny
from pages import Page
from synthetic import facts_like_the_paper, fill, like_the_paper, section5_facts
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import registry
from keyhole.analyses.measured import Measured
from keyhole.analyses.record import OUTCOMES, Shape
from keyhole.cells import Cells
from keyhole.cli import app
from keyhole.errors import RunError
from keyhole.store import layout as store
from keyhole.store import tables
from keyhole.views import figures, text
from keyhole.views.report import page
from keyhole.views.report import write as report

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eevil\u2066 \x1b[31m\x00",
    "&lt;b&gt;",
]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


GATED = {"gates", "alignment"}
"""Analyses of models with a gate: their tables are empty for others."""
MEASURED = ("kinds", "softmax", "patterns", "pattern_summary")
"""Analyses whose rows and facts are measured on the tiny model."""
USED = ("pruning", "pruned_kinds", "leaks", "leak_cells", "leak_repeats")
"""Analyses of what the memories were used for, whose rows are made up."""
LABELS = [
    "Table 1",
    "Table 1b",
    "Figure 2",
    "Figure 2b",
    "Figure 3",
    "Figure 3b",
    "Figure 4",
    "Figure 4b",
    "Figure 5",
    "Figure 5b",
    "Figure 6",
    "Figure 6b",
]
LABELS += ["Table 2", "Figure 7", "Figure 8", "Figure 9", "Figure 10", "Figure 11"]
NOTE = "measured on a random prefix of each of 30 lines of the held-out text <i>sample</i> (seed 0), intervals over prefixes"
REFINED = section5_facts()["refinement"]


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny model over a text that tries things."""
    folder = tmp_path_factory.mktemp("scanned")
    text = folder / "te<xt>.txt"
    lines = [f"{word} and {word} number {i}" for i in range(3) for word in HOSTILE[:6]]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    keyhole.scan(tiny("gpt2"), [text], out=folder / "run", top=4, unit="line", context=64)
    return folder / "run"


@pytest.fixture(scope="module")
def filled_run(scanned: Path, tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """The run, its tables filled, hostile tokens among them."""
    path = tmp_path_factory.mktemp("filled") / "run"
    shutil.copytree(scanned, path)
    filled = like_the_paper(3, cells=24)
    for i, row in enumerate(filled["confident"]):
        row["token"] = HOSTILE[i % len(HOSTILE)]
    for i, row in enumerate(filled["cases"]):
        row["prefix"] = HOSTILE[i % len(HOSTILE)] * 9
        row["top_r"] = row["top_y"] = row["top_o"] = HOSTILE[(i + 1) % len(HOSTILE)]
    facts = facts_like_the_paper() | {"refinement": REFINED}
    opened = keyhole.Run(path)
    patterned.store(opened, patterned.drawn(opened, descriptions=HOSTILE))
    used.store(opened, HOSTILE)
    keyhole.analyze(path, model=tiny("gpt2"), only=[*GATED, *MEASURED, *USED])
    for name, rows in filled.items():
        fill(path, name, rows, facts.get(name))
    return keyhole.Run(path)


@pytest.fixture
def run(filled_run: keyhole.Run, tmp_path: Path) -> keyhole.Run:
    """A copy of it for one test to change."""
    return keyhole.Run(shutil.copytree(filled_run.path, tmp_path / "run"))


def bare(scanned: Path, tmp_path: Path) -> keyhole.Run:
    path = tmp_path / "bare"
    shutil.copytree(scanned, path)
    return keyhole.Run(path)


def charts_of(filled: Iterable[str]) -> set[str]:
    """The charts that are drawn if these tables have rows, and no others."""
    names = set(filled)
    return {figure.name for analysis, figure in registry.report_order() if figure.is_chart and analysis.name in names}


def charts_without_a_gate() -> set[str]:
    """The charts of the filled run: all but those about gates."""
    return charts_of(registry.schemas().keys() - GATED)


def read(run: keyhole.Run) -> Page:
    path = report.write(run)
    assert path == run.path / "report" / "index.html" == store.report_file(run.path)
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]
    return Page(path.read_text("utf-8"))


def test_every_figure_and_table_is_there(run: keyhole.Run) -> None:
    shown = read(run)
    assert set(shown.values("data-figure")) == charts_without_a_gate() == set(registry.charts()) - charts_of(GATED)
    specs = json.loads(next(code for code in shown.inside["script"] if code.startswith("{")))
    assert set(specs) == charts_without_a_gate()
    every = [figure for _, figure in registry.report_order()]
    supplements = [figure.label for figure in every if " S" in figure.label]
    assert [figure.label for figure in every if " S" not in figure.label] == LABELS
    for kind in ("Figure", "Table"):
        mine = [label for label in supplements if label.startswith(kind)]
        assert mine == [f"{kind} S{number}" for number in range(1, len(mine) + 1)]
    for figure in every:
        assert f"{figure.label}." in shown.text
        assert figure.title in shown.text
        assert figure.paper is not None or " S" in figure.label or figure.label.endswith("b")
        if figure.paper is not None:
            assert " ".join(page._ours(figure.paper.published).split()) in shown.text
    assert "not filled yet" not in shown.text
    assert "tiny-gpt2" in shown.text
    assert "3 layers × 24 = 72" in shown.text
    assert "te<xt>.txt" in shown.text
    assert f"keyhole report {run.path.name}" in shown.text
    assert str(run.path.parent) not in shown.text


@pytest.mark.slow(seconds=2)
def test_every_verdict_is_listed_and_leads_to_its_figure(run: keyhole.Run) -> None:
    shown = read(run)
    data = report.data(run)
    claims = [verdict["claim"] for each in data["verdicts"].values() for verdict in each]
    assert len(claims) == sum(len(each.claims) for owner, each in registry.report_order() if owner.name not in GATED)
    for claim in claims:
        assert shown.text.count(" ".join(page._ours(claim).split())) == 2
    anchors = set(shown.values("id"))
    links = shown.values("href")
    assert len(links) == len(claims)
    assert all(link.removeprefix("#") in anchors for link in links)


def test_the_page_needs_nothing_but_itself(run: keyhole.Run) -> None:
    shown = read(run)
    assert shown.values("src") == []
    assert all(link.startswith("#") for link in shown.values("href"))
    assert {tag for tag, _ in shown.tags} & {"link", "iframe", "img", "object", "embed", "base", "form"} == set()
    for style in shown.inside["style"]:
        assert "url(" not in style
        assert "@import" not in style
    policy = next(a["content"] for _, a in shown.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_only_our_scripts_run(run: keyhole.Run) -> None:
    shown = read(run)
    data, *code = shown.inside["script"]
    assert [a.get("type") for tag, a in shown.tags if tag == "script"] == ["application/json", None, None]
    policy = next(str(a["content"]) for _, a in shown.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert re.findall(r"'sha256-[^']+'", policy) == [page._hash(script) for script in code]
    assert "<" not in data


def test_corpus_text_is_shown_and_does_nothing(run: keyhole.Run) -> None:
    shown = read(run)
    tags = {tag for tag, _ in shown.tags}
    assert "img" not in tags
    assert "svg" not in tags
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    for word in HOSTILE[:6]:
        assert " ".join(word.split()) in shown.text
    assert NOTE in shown.text.replace("Measured", "measured")
    raw = store.report_file(run.path).read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", raw)
    assert "\u202e" not in shown.text
    assert "�evil" in shown.text


def test_the_triggers_table_marks_the_last_token(run: keyhole.Run) -> None:
    shown = read(run)
    assert sum(tag == "mark" for tag, _ in shown.tags) >= 3
    assert "→" in shown.text


def test_a_missing_table_says_which_command_fills_it(scanned: Path, tmp_path: Path) -> None:
    run = bare(scanned, tmp_path)
    shown = read(run)
    assert shown.values("data-figure") == []
    for table in registry.schemas():
        assert f"keyhole analyze bare --only {table}" in shown.text
    assert "Nothing is measured yet" in shown.text
    fill(run.path, "mutation", like_the_paper(3)["mutation"])
    fill(run.path, "rank", [])
    shown = read(run)
    assert shown.values("data-figure") == ["mutation", "mutation_distance"]
    assert "The table rank is empty" in shown.text


def test_notes_stand_with_their_figures(run: keyhole.Run) -> None:
    said = read(run).text
    assert said.count(NOTE[1:]) == 3  # Figures 9, 10 and 11 read that table


@pytest.mark.slow(seconds=2)
def test_the_page_is_the_same_every_time(run: keyhole.Run) -> None:
    first = report.write(run).read_bytes()
    assert report.write(run).read_bytes() == first
    assert len(first) < 2_000_000


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("everywhere", [False, True])
def test_missing_numbers_are_no_error(run: keyhole.Run, everywhere: bool) -> None:
    keep = {"layer", "bin", "n", "dropped", "target", "lens", "cell", "token", "prefix", "top_r", "top_y", "top_o"}
    keep |= {"cells", "output", "reading", "part", "distance", "kind", "description", "rule"}
    keep |= {"method", "scope", "share", "text", "folder", "seed", "rank", "source", "continuation", "times", "basis"}
    for name in registry.schemas():
        rows = run.table(name)
        assert (rows == []) == (name in GATED)
        gone = [{column: value if column in keep else None for column, value in row.items()} for row in rows]
        fill(run.path, name, gone if everywhere else gone[:1] + rows[1:])
    shown = read(run)
    assert ("is without numbers" in shown.text) == everywhere
    found = report.data(run)["verdicts"]
    if everywhere:
        assert {
            v["outcome"] for name, each in found.items() if name not in ("activity", "confident") for v in each
        } == {"unclear"}


@pytest.mark.parametrize("layers", [1, 2, 6, 80])
def test_charts_of_any_depth_are_valid(layers: int) -> None:
    found: Any = like_the_paper(layers)
    shape = Shape(Cells.of_widths([1536] * layers), 50_000, signed=False)
    drawn = figures.draw_all(Measured(None, shape, found, {}, {}, {}), figures.PAGE)  # type: ignore[arg-type]
    assert {each.figure.name for each in drawn} == charts_of(found)
    for chart in (each.chart for each in drawn):
        spec = figures.spec(chart, page=True)
        assert spec["width"] == "container"
        assert "#" not in json.dumps(spec).replace("#/", "")  # no colour but the page's own
        assert "rgb" not in json.dumps(spec)


def test_palette_and_page_agree() -> None:
    style = page._file("report.css")
    for name, colour in figures.LIGHT.__dict__.items():
        assert f"--{name}: {colour};" in style


def test_figures_for_a_notebook(run: keyhole.Run) -> None:
    charts = report.figures(run)
    assert set(charts) == charts_without_a_gate()
    assert "var(--" not in json.dumps(figures.spec(charts["shares"]))


def test_json(run: keyhole.Run) -> None:
    result = CliRunner().invoke(app, ["report", str(run.path), "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert set(data) == {"run", "tables", "facts", "notes", "verdicts"}
    assert set(data["tables"]) == set(registry.schemas())
    assert data["tables"]["mutation"] == run.table("mutation")
    with_facts = [name for name in (*MEASURED, *USED) if registry.get(name).facts]
    measured = {name: tables.read_facts(run.path, registry.schemas()[name]) for name in with_facts}
    assert {name: set(facts) for name, facts in measured.items()} == {n: set(registry.get(n).facts) for n in with_facts}
    assert data["facts"] == facts_like_the_paper() | {"refinement": REFINED} | measured
    assert data["notes"]["refinement"] == NOTE
    assert set(data["notes"]) == set(data["facts"])
    assert data["run"]["layers"] == 3
    for each in data["verdicts"].values():
        for verdict in each:
            assert set(verdict) == {"claim", "outcome", "test", "evidence", "effect", "adjusted"}
            assert verdict["outcome"] in OUTCOMES
    assert not store.report_file(run.path).exists()


@pytest.mark.slow(seconds=6)
def test_svg_and_png(run: keyhole.Run, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["report", str(run.path), "--svg", str(tmp_path / "s"), "--png", str(tmp_path / "p")]
    )
    assert result.exit_code == 0, result.output
    assert store.report_file(run.path).exists()
    assert {p.stem for p in (tmp_path / "s").glob("*.svg")} == charts_without_a_gate()
    assert {p.stem for p in (tmp_path / "p").glob("*.png")} == charts_without_a_gate()
    assert "<svg" in (tmp_path / "s" / "mutation.svg").read_text("utf-8")
    assert (tmp_path / "p" / "mutation.png").read_bytes().startswith(b"\x89PNG")


def test_svg_without_tables_is_a_clear_error(scanned: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="keyhole analyze"):
        report.save_figures(bare(scanned, tmp_path), tmp_path / "out", "svg")


def test_cases_are_judged_by_the_facts(run: keyhole.Run) -> None:
    rows, facts = like_the_paper(3)["cases"], section5_facts()["cases"]
    for share, outcome in ((0.34, "holds"), (0.02, "does not hold")):
        fill(run.path, "cases", rows, facts | {"share": share, "share_lo": share - 0.02, "share_hi": share + 0.02})
        first, _ = report.data(run)["verdicts"]["cases"]
        assert first["outcome"] == outcome
        assert f"related: {100 * share:.0f}" in first["evidence"] or "related: 2.0" in first["evidence"]
        assert "(5.0 % by chance)" in report.data(run)["notes"]["cases"]
    fill(run.path, "cases", rows)
    assert report.data(run)["verdicts"]["cases"][0]["outcome"] == "unclear"


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(run: keyhole.Run, width: int, scheme: str) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    page_file = report.write(run)
    with api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab = context.new_page()
        heard: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: heard.append(message.text))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.on("dialog", lambda dialog: heard.append("dialog"))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page_file.as_uri())
        tab.wait_for_selector("html.drawn", timeout=30_000)
        assert tab.locator(".plot svg").count() == len(charts_without_a_gate())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        line = tab.locator(".plot svg path[stroke^='var(--blue']").first
        drawn = line.evaluate("e => getComputedStyle(e).stroke")
        assert drawn == ("rgb(43, 95, 143)" if scheme == "light" else "rgb(127, 178, 224)")
        browser.close()
    assert heard == []
    assert asked == [page_file.as_uri()]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0.0, "0.0000"),
        (0.00019, "0.00019"),
        (0.5, "0.5000"),
        (-0.25, "−0.2500"),
        (16569.4, "16,569"),
        (7, "7"),
    ],
)
def test_numbers_keep_what_matters(value: float | None, said: str) -> None:
    assert text.decimal(value) == said


def test_tokens_of_white_space_are_seen() -> None:
    assert [text.blank(token) for token in ("", " ", "\u00a0", "\n ")] == ["(empty)", "␣", "U+00A0", "\n␣"]


def test_our_sentences_are_set_well_and_quotes_stay() -> None:
    assert page._ours("the paper's 5 %, p < 0.001") == "The paper’s 5\u00a0%, p\u00a0<\u00a00.001"
    assert page._ours("through the lens 'raw'") == "Through the lens 'raw'"
