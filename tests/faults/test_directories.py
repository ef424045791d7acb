"""What a command may replace or delete, where it may write, and who may write at the same time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from families import save, tiny

import keyhole
from keyhole.errors import RunError, RunExists, UsageError
from keyhole.store import annotations, collections, layout, unfinished
from keyhole.views.report import write as report

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}


def content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


def scan(text: Path, out: Path, **options: Any) -> keyhole.Run:
    return keyhole.scan(tiny("llama"), [text], out=out, **{**OPTIONS, **options})


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What --force may replace


@pytest.mark.parametrize("where", ["run", "run.partial"])
def test_force_replaces_nothing_but_a_run(text: Path, tmp_path: Path, where: str) -> None:
    mine = tmp_path / where
    (mine / "thesis").mkdir(parents=True)
    (mine / "thesis" / "chapter1.tex").write_text("years of work")
    before = tree(mine)
    with pytest.raises(RunExists, match="not a run that may be replaced: it holds 'thesis'"):
        scan(text, tmp_path / "run", force=True)
    assert tree(mine) == before


def plant(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('{"name": "an extension", "manifest_version": 3}')


@pytest.mark.parametrize(
    ("where", "names", "options"),
    [
        ("run", ["plan/thesis.txt"], {"force": True}),
        ("run", ["manifest.json", "log.json", "report/index.html"], {"force": True}),
        ("run", ["manifest.json/precious"], {"force": True}),
        ("run", ["manifest.json", "values_x.npy/precious"], {"force": True}),
        ("run", ["plan/1-of-2/precious"], {"force": True}),
        ("run.partial", ["plan/precious"], {"resume": True}),
        ("run.partial", ["plan/1-of-2.partial/plan/precious"], {"resume": True}),
        ("run.replaced-20250101", ["plan/precious"], {}),
        ("run.replaced-0badcafe", ["manifest.json"], {}),
    ],
)
def test_what_only_looks_like_a_run_is_kept(
    text: Path, tmp_path: Path, where: str, names: list[str], options: dict[str, Any]
) -> None:
    for name in names:
        plant(tmp_path / where, name)
    before = tree(tmp_path / where)
    if where.startswith("run.replaced"):
        scan(text, tmp_path / "run", **options)
    else:
        with pytest.raises(RunExists, match="not a run that may be replaced"):
            scan(text, tmp_path / "run", **options)
    assert tree(tmp_path / where) == before


@pytest.mark.parametrize(("link", "processes"), [("plan", 1), ("plan/1-of-2", 2), ("plan/1-of-2.npz", 2)])
def test_links_inside_an_unfinished_run_are_not_written_through(
    text: Path, tmp_path: Path, link: str, processes: int
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "window_offsets.npy").write_text("mine")
    (tmp_path / "run.partial" / link).parent.mkdir(parents=True)
    (tmp_path / "run.partial" / link).symlink_to(victim)
    folder = save(tiny("llama"), tmp_path / "model")
    for how in ({"resume": True}, {"force": True}):
        with pytest.raises(RunExists, match="not a run that may be replaced"):
            keyhole.scan(folder, [text], tmp_path / "run", processes=processes, device="cpu", **how, **OPTIONS)
    assert tree(victim) == {"window_offsets.npy": b"mine"}


def test_force_keeps_a_run_that_holds_something_of_the_users(text: Path, tmp_path: Path) -> None:
    run = scan(text, tmp_path / "run").path
    (run / "my notes.txt").write_text("keep")
    before = tree(run)
    with pytest.raises(RunExists, match="it holds 'my notes.txt'"):
        scan(text, run, force=True)
    (run / "my notes.txt").unlink()
    (run / "annotations").mkdir()
    (run / "annotations" / "drawing.png").write_bytes(b"png")
    with pytest.raises(RunExists, match="it holds 'annotations/drawing.png'"):
        scan(text, run, force=True)
    (run / "annotations" / "drawing.png").unlink()
    assert tree(run) == {name: data for name, data in before.items() if name != "my notes.txt"}
    scan(text, run, force=True, top=2)


def test_force_never_replaces_what_it_reads(text: Path, tmp_path: Path) -> None:
    run = scan(text, tmp_path / "run").path
    inside = run / "annotations"
    inside.mkdir()
    corpus = inside / "ann.jsonl"  # a name a run may hold
    corpus.write_text(json.dumps({"text": "The cat sat."}) + "\n")
    with pytest.raises(RunExists, match="ann.jsonl lies inside .*run"):
        scan(corpus, run, force=True)
    assert corpus.exists()
    parts = [scan(text, tmp_path / f"part{i}", shard=f"{i}/2").path for i in (1, 2)]
    with pytest.raises(RunExists, match="part1 lies inside"):
        keyhole.merge(parts[0], parts, force=True)
    keyhole.merge(tmp_path / "run", parts, force=True)


def test_force_on_a_file_or_on_the_corpus_itself(text: Path, tmp_path: Path) -> None:
    with pytest.raises(RunExists, match="it is not a directory"):
        scan(text, text, force=True)
    assert "cat" in text.read_text("utf-8")
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(text, folder / "a.txt")
    with pytest.raises(RunExists, match="it holds 'a.txt'"):
        scan(folder, folder, force=True)
    assert (folder / "a.txt").exists()


def test_nothing_that_happens_to_be_called_replaced_is_deleted(text: Path, tmp_path: Path) -> None:
    scan(text, tmp_path / "run")
    (tmp_path / "run.replaced").mkdir()
    (tmp_path / "run.replaced" / "mine").write_text("x")
    scan(text, tmp_path / "run", force=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run", "run.replaced"]
    assert (tmp_path / "run.replaced" / "mine").exists()


def test_a_damaged_run_can_still_be_replaced(text: Path, tmp_path: Path) -> None:
    run = scan(text, tmp_path / "run").path
    whole = content(run)
    (run / "manifest.json").write_bytes(b"")
    (run / "tokens.npy").unlink()
    assert content(scan(text, run, force=True).path) == whole


# Links


def test_a_link_as_the_run_directory(text: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "run")  # dangling
    run = scan(text, link)
    assert link.is_symlink()
    assert content(tmp_path / "disk" / "run") == content(run.path)
    for top in (2, 1):  # twice: what stands there is replaced, the link stays
        assert scan(text, link, force=True, top=top).top == top
        assert link.is_symlink()
        assert keyhole.open(link).top == top
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["report", "report/index.html", "report/index.html.new", "marks.jsonl", "annotations"])
def test_links_inside_a_run_are_not_written_through(text: Path, tmp_path: Path, name: str) -> None:
    run = scan(text, tmp_path / "run")
    victim = tmp_path / "victim"
    if name in ("report", "annotations"):
        victim.mkdir()
    else:
        victim.write_text("precious")
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(victim)
    note = {"layer": 0, "cell": 0, "text": "x"}
    refused: list[str] = []
    for write in (
        lambda: report.write(run),
        lambda: collections.save_note(run, note),
        lambda: annotations.save(run, {"annotator": "ann", "layer": 0, "cell": 0, "patterns": []}),
    ):
        try:
            write()
        except RunError as error:
            refused.append(str(error))
    assert all("link" in message or "not saved" in message for message in refused)
    assert list(victim.iterdir()) == [] if victim.is_dir() else victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["tokens.npy", "tokenizer.json", "analyses.json", "tables.duckdb"])
def test_a_run_of_links_is_refused(text: Path, tmp_path: Path, name: str) -> None:
    run = scan(text, tmp_path / "run").path
    keyhole.analyze(run, model=tiny("llama"), only=["activity"])
    moved = tmp_path / "elsewhere"
    (run / name).rename(moved)
    (run / name).symlink_to(moved)
    with pytest.raises(RunError, match="symbolic link"):
        keyhole.open(run)


# Names


def test_places_that_cannot_be(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="cannot be written: File name too long"):
        scan(text, tmp_path / ("x" * 300))
    with pytest.raises(RunError, match="cannot be written: (Not a directory|File exists)"):
        scan(text, text / "run")
    with pytest.raises(UsageError, match="root of the file system"):
        scan(text, Path("/"))
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(RunExists, match="There is something at"):
        scan(text, Path("."))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "text.txt"]
    scan(text, Path("."), force=True)
    assert (empty.parent / "here" / "manifest.json").exists()


# One at a time


def test_the_lock_is_held_until_the_run_is_in_place(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `--force` while the first one seals and renames must not get in."""
    out, refused = tmp_path / "run", []

    def second() -> None:
        try:
            unfinished.Partial(out).begin(resume=False, force=True)
        except RunExists as error:
            refused.append(str(error))

    def at(name: str) -> None:
        real = getattr(unfinished.Partial, name)

        def call(self: unfinished.Partial, *args: Any, **options: Any) -> Any:
            if self._lock is not None:
                second()
            return real(self, *args, **options)

        monkeypatch.setattr(unfinished.Partial, name, call)

    at("finish")
    at("put_in_place")
    fingerprint = unfinished.files.fingerprint
    monkeypatch.setattr(unfinished.files, "fingerprint", lambda path: (second(), fingerprint(path))[1])
    scan(text, out)
    assert len(refused) > 10
    assert all("Another process is writing" in message for message in refused)
    keyhole.open(out)


def test_a_lock_that_moved_away_is_not_taken_for_ones_own(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may rename the directory after its lock is opened here and before it is locked."""
    import fcntl

    out, flock = tmp_path / "run", fcntl.flock
    scan(text, out)
    before = content(out)
    late = unfinished.Partial(out)
    late.path.mkdir()
    (late.path / "plan").mkdir()

    def renamed_meanwhile(file: Any, how: int) -> None:
        if late.path.exists():
            late.path.rename(tmp_path / "finished")
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", renamed_meanwhile)
    with pytest.raises(RunExists, match="Another process finished .*run.partial just now"):
        late.begin(resume=False, force=True)
    assert content(out) == before


def test_an_analysis_never_lands_in_the_run_that_took_the_place(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scan(text, tmp_path / "run")
    real = layout.lock

    def replaced_meanwhile(path: Path) -> Any:
        monkeypatch.setattr(layout, "lock", real)
        scan(text, tmp_path / "run", force=True, per="prefix")
        return real(path)

    monkeypatch.setattr(layout, "lock", replaced_meanwhile)
    with pytest.raises(RunError, match="Another run is at"):
        keyhole.analyze(run, model=tiny("llama"), only=["activity"])
    assert not layout.has_tables(tmp_path / "run")
    with pytest.raises(RunError, match="Another run is at"):
        run.units  # noqa: B018 - not loaded before it was replaced


def test_two_analyses_of_one_run_are_refused(text: Path, tmp_path: Path) -> None:
    run = scan(text, tmp_path / "run")
    with layout.locked(run.path), pytest.raises(RunExists, match="Another process is writing"):
        keyhole.analyze(run.path, model=tiny("llama"), only=["activity"])
    keyhole.analyze(run.path, model=tiny("llama"), only=["activity"])
    assert not (run.path / "lock").exists()
