"""`keyhole prune` from the command line to the tables, on a tiny model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from families import CELLS, LAYERS, save, tiny
from small import corpus
from transformers import AutoModelForCausalLM

import keyhole
from keyhole.analyses import pruning as analysis
from keyhole.analyses import targets
from keyhole.analyses.record import Measurement, Shape
from keyhole.errors import CorpusError, ModelError, RunDamaged, RunError, RunExists, UsageError
from keyhole.store import pruning as stored
from keyhole.uses.pruning import prune as uses
from keyhole.uses.texts import fitted_and_measured, room_of

MODEL = "llama"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over documents of several lines, some held out, by a model in a folder."""
    folder = tmp_path_factory.mktemp("pruned")
    lines = corpus(folder / "lines.txt", 400).read_text().splitlines()
    documents = ["\n".join(lines[at : at + 4]) for at in range(0, len(lines), 4)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    name = save(tiny(MODEL), folder / "model")
    run = keyhole.scan(
        name, [folder / "text.txt"], out=folder / "run", unit="line", top=4, hold_out=0.3, hold_out_by="document"
    )
    keyhole.analyze(run, only=["kinds"], samples=50)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the run of its own."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path


def made_text(folder: Path) -> Path:
    """The text that was scanned."""
    (source,) = keyhole.open(folder / "run").manifest["corpus"]["sources"]
    return Path(source)


def test_a_pruned_model_its_tables_and_what_it_says(folder: Path) -> None:
    told = json.loads(commands.run("prune", folder / "run", "--keep", 0.75, "--out", folder / "small", "--json"))
    smaller = keyhole.load(folder / "small")
    assert smaller.cells.sizes == CELLS * 3 // 4
    assert told["gone"] == LAYERS * CELLS // 4
    assert told["parameters"] == sum(weight.numel() for weight in smaller.lm.parameters())
    plain = AutoModelForCausalLM.from_pretrained(folder / "small")
    ids = torch.randint(3, 250, (1, 12))
    with torch.inference_mode():
        assert torch.allclose(plain(input_ids=ids).logits, smaller.lm(input_ids=ids).logits, atol=1e-5)
    about = json.loads((folder / "small" / "keyhole.json").read_text())
    run = keyhole.open(folder / "run")
    assert about["fingerprint"] == run.manifest["model"]["fingerprint"]
    assert [len(stay) for stay in about["stay"]] == [CELLS * 3 // 4] * LAYERS

    # the perplexity is that of the written model on the same text, by transformers alone
    model = keyhole.load(run.manifest["model"]["source"])
    _, other = fitted_and_measured(run, model)
    total, count = 0.0, 0
    for window in other.windows(room_of(model)):
        row = torch.tensor([[model.bos_id, *window.ids]])
        with torch.inference_mode():
            logits = plain(input_ids=row).logits[0, :-1].double().log_softmax(1)
        total -= float(logits.gather(1, row[0, 1:, None]).sum())
        count += len(window.ids)
    assert told["tokens"] == count == other.tokens
    assert told["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)

    (row,) = run.table("pruning")
    assert (row["method"], row["scope"], row["share"], row["folder"]) == ("refit", "uniform", 0.25, "small")
    assert row["change"] == pytest.approx(row["perplexity"] / row["perplexity_before"] - 1)
    kinds = run.table("pruned_kinds")
    assert all(0 <= each["gone"] <= each["cells"] for each in kinds)
    goes = stored.goes_at(run)
    assert goes is not None
    stays = np.ones(len(run.cells), bool)
    for layer, stay in enumerate(about["stay"]):
        stays[run.cells.span(layer)] = np.isin(np.arange(CELLS), stay)
    assert np.array_equal(goes > 0.25 + 1e-6, stays)


def test_the_curve_has_every_method_at_every_share_and_is_printed(folder: Path) -> None:
    said = commands.run("prune", folder / "run", "--curve", "--shares", "0.25,0.5", "--by", "flap,refit,random")
    assert "FLAP" in said
    assert "50 %" in said
    run = keyhole.open(folder / "run")
    rows = run.table("pruning")
    assert {(row["method"], row["share"]) for row in rows} == {
        (method, share) for method in ("flap", "refit", "random") for share in (0.25, 0.5)
    }
    for row in rows:
        assert (row["over_flap"] is None) == (row["method"] == "flap")
        assert row["change_lo"] <= row["change"] <= row["change_hi"]
    refit, flap = (
        next(row for row in rows if row["method"] == name and row["share"] == 0.5) for name in ("refit", "flap")
    )
    assert refit["over_flap"] == pytest.approx(math.log(flap["perplexity"] / refit["perplexity"]), rel=1e-6)
    # a second call adds, and replaces what is the same
    keyhole.prune_curve(run, by=["refit"], shares=[0.1, 0.5])
    keyhole.analyze(run, only=["pruning"])
    again = run.table("pruning")
    assert len(again) == len(rows) + 1
    commands.run("report", folder / "run", "--markdown", folder / "report.md")
    assert "A quarter of the cells can go" in (folder / "report.md").read_text()


def test_layers_may_differ(folder: Path) -> None:
    done = keyhole.prune(folder / "run", folder / "small", keep=0.5, whole=True)
    again = keyhole.load(folder / "small")
    assert len(again.cells) == CELLS * LAYERS // 2
    assert done.row.scope == "global"
    scanned = keyhole.scan(str(folder / "small"), [_text(folder)], out=folder / "again", top=2)
    assert scanned.cells == again.cells


def _text(folder: Path) -> Path:
    (folder / "some.txt").write_text("The cat sat on a mat.\nThe dog ran.\n")
    return folder / "some.txt"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--keep", "1.2", "--out", "x"], "--keep is 1.2"),
        (["--keep", "0", "--out", "x"], "--keep is 0"),
        (["--keep", "0.99", "--out", "x"], "at least one cell must go"),
        (["--keep", "0.5"], "--out"),
        ([], "--keep"),
        (["--curve", "--keep", "0.5"], "leave out"),
        (["--curve", "--shares", "0.5,half"], "'half'"),
        (["--curve", "--shares", "0"], "share of 0"),
        (["--curve", "--by", "best"], "'best'"),
        (["--curve", "--by", ","], "name one method"),
        (["--curve", "--force"], "leave out"),
        (["--keep", "0.5", "--out", "x", "--shares", "0.5"], "--shares goes with --curve"),
        (["--keep", "0.5", "--out", "x", "--by", "flap,refit"], "name one method"),
        (["--keep", "0.5", "--out", "x", "--device", "split"], "split"),
    ],
)
def test_bad_input_is_refused_with_its_value(folder: Path, options: list[str], said: str) -> None:
    options = [str(folder / "x") if each == "x" else each for each in options]
    done = commands.call("prune", folder / "run", *options)
    assert done.code != 0
    assert said in done.err
    assert not (folder / "x").exists()
    assert not stored.of(keyhole.open(folder / "run"))


def test_a_folder_that_is_there_stays(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(RunExists, match="Keyhole did not make it"):
        uses.prune(folder / "run", folder / "mine", keep=0.5, force=True)
    assert (folder / "mine" / "thesis.txt").read_text() == "all of it"


def test_a_run_of_other_weights_is_refused(folder: Path) -> None:
    with pytest.raises(RunError, match="not the model that was scanned"):
        uses.prune(folder / "run", folder / "x", keep=0.5, model=tiny("mistral"))


def test_a_run_of_an_edited_model_is_refused(folder: Path, made: Path) -> None:
    (folder / "edits.json").write_text('[{"layer": 0, "cell": 1, "scale": 0.5}]')
    run = keyhole.scan(
        str(made / "model"), [made / "text.txt"], out=folder / "edited", top=2, edits=folder / "edits.json"
    )
    with pytest.raises(UsageError, match="keyhole edit"):
        uses.prune(run, folder / "x", keep=0.5)


def test_text_that_is_too_short_is_refused(folder: Path) -> None:
    (folder / "short.txt").write_text("A few words.")
    with pytest.raises(CorpusError, match=r"short\.txt"):
        uses.prune(folder / "run", folder / "x", keep=0.5, valid=folder / "short.txt")


def test_cells_are_not_chosen_on_the_text_they_are_measured_on(folder: Path) -> None:
    run, model = keyhole.open(folder / "run"), tiny(MODEL)
    fitted, other = fitted_and_measured(run, model, fitted=10**9, measured=10**9)
    assert (fitted.source, other.source) == ("corpus", "held out")
    held = set(targets.held_out_units(run).tolist())
    units = {run.vocabulary.text(run.unit_tokens(unit).tolist()) for unit in held}
    # every piece is made of whole units, of one of the two sorts
    texts = [run.vocabulary.text(piece) for piece in other.pieces]
    assert all(any(unit in text for unit in units) for text in texts)
    assert fitted.tokens + other.tokens >= len(run.tokens)
    assert fitted_and_measured(run, model, seed=1)[0].documents != fitted.documents  # another order of documents


def test_a_document_of_which_a_part_was_held_out_is_not_on_both_sides(folder: Path, tmp_path: Path) -> None:
    """Sentences of one document say much of each other: held-out units are no text of their own, so documents are set aside."""
    run = keyhole.scan(tiny(MODEL), [made_text(folder)], out=tmp_path / "units", unit="line", top=4, hold_out=0.3)
    fitted, other = fitted_and_measured(run, tiny(MODEL), fitted=10**9, measured=10**9)
    assert other.source == "set aside"
    assert set(fitted.documents).isdisjoint(other.documents)
    # and what the scan held out is not fitted to
    held = set(targets.held_out_units(run).tolist())
    units = [unit for unit, document in enumerate(run.unit_documents) if document in set(fitted.documents)]
    every, scanned = (sum(len(run.unit_tokens(unit)) for unit in of) for of in (units, set(units) - held))
    assert scanned <= fitted.tokens < every


def test_text_that_was_scanned_is_refused_to_measure_on(folder: Path) -> None:
    with pytest.raises(UsageError, match="was scanned"):
        uses.prune(folder / "run", folder / "x", keep=0.5, valid=made_text(folder))


def row_of(basis: str, perplexity: float, **more: object) -> stored.Row:
    about = {"method": "refit", "scope": "uniform", "share": 0.25, "gone": 1, "parameters": 2, "text": "valid.txt"}
    about |= {"tokens": 3, "documents": 2, "fitted": 4, "seed": 0, "basis": basis, "bias": True}
    measured = {"perplexity_before": 5.0, "perplexity": perplexity, "change": 0.2, "agreement": 0.9}
    return stored.Row(**{**about, **measured, **more})  # type: ignore[arg-type]


def test_rows_of_two_texts_with_one_name_are_two_rows(folder: Path) -> None:
    run = keyhole.open(folder / "run")
    stored.save(run, stored.Pruning([row_of("0a", 6.0, over_flap=0.1)], []), None)
    stored.save(run, stored.Pruning([row_of("0b", 7.0)], []), None)
    found = stored.of(run)
    assert found is not None
    assert [(row.basis, row.over_flap) for row in found.rows] == [("0a", 0.1), ("0b", None)]
    assert [row.basis for row in stored.latest(found.rows)] == ["0b"]
    # the same measurement again: what only the earlier one knew stays; another model in its place: it does not
    stored.save(run, stored.Pruning([row_of("0a", 6.0)], []), None)
    stored.save(run, stored.Pruning([row_of("0b", 6.5)], []), None)
    found = stored.of(run)
    assert found is not None
    assert [(row.basis, row.over_flap) for row in found.rows] == [("0a", 0.1), ("0b", None)]


def test_what_it_is_measured_on_is_part_of_a_row(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        corpus(folder / name / "valid.txt", 60)
    lines = (folder / "b" / "valid.txt").read_text().splitlines()
    (folder / "b" / "valid.txt").write_text("\n".join(reversed(lines)))
    options = {"by": ["random"], "shares": [0.25], "tokens": 256}
    for name in ("a", "b"):
        keyhole.prune_curve(folder / "run", valid=folder / name / "valid.txt", **options)  # type: ignore[arg-type]
    found = stored.of(keyhole.open(folder / "run"))
    assert found is not None
    assert [(row.text, row.tokens) for row in found.rows] == [("valid.txt", 256)] * 2
    assert len({row.basis for row in found.rows}) == 2


def test_text_that_is_fitted_to_is_not_measured_on_whatever_its_name(folder: Path) -> None:
    """A copy of the scanned text, with other text behind it: only that is measured on. Of the copy alone, nothing is left."""
    model = keyhole.load(keyhole.open(folder / "run").manifest["model"]["source"])
    run = keyhole.scan(model, [made_text(folder)], out=folder / "all", unit="line", top=4)
    copy = folder / "copy.txt"
    copy.write_text(made_text(folder).read_text())
    options = {"fitted": 10**9, "measured": 10**9}
    with pytest.raises(CorpusError, match=r"copy.txt.*Name other text"):
        fitted_and_measured(run, model, [copy], **options)
    other = corpus(folder / "other.txt", 60).read_text()
    copy.write_text(f"{made_text(folder).read_text()}\n\n{other}")
    _, left = fitted_and_measured(run, model, [copy], **options)
    assert left.known == all_known(model, made_text(folder))
    assert model.vocabulary.text(left.pieces[-1]).split() == other.split()


def all_known(model: keyhole.models.model.Model, file: Path) -> int:
    return sum(map(len, model.tokenize(file.read_text().split("\n\n"))))


def test_a_change_of_many_times_is_told_as_a_factor() -> None:
    from keyhole.views.pruned import _changed

    assert _changed(0.012, 0.01, 0.014) == "+1.2 % (1.0 to 1.4)"
    assert _changed(-0.05, None, None) == "−5.0 %"
    assert _changed(56_815.2, 33_750.5, 95_638.6) == "×56,816 (33,752 to 95,640)"


def test_names_and_shares_count_once_and_odd_ones_are_refused(folder: Path) -> None:
    keyhole.prune_curve(folder / "run", by="random", shares=[0.25, 0.25])
    keyhole.prune_curve(folder / "run", by=["random", "random"], shares=[0.25])
    found = stored.of(keyhole.open(folder / "run"))
    assert found is not None
    assert len(found.rows) == 1
    for shares in ([], "0.5", 0.5, ["0.5"], [True]):
        with pytest.raises(UsageError, match="The shares are"):
            keyhole.prune_curve(folder / "run", shares=shares)  # type: ignore[arg-type]
    for keep in ("0.75", None, float("nan")):
        with pytest.raises(UsageError, match="--keep is"):
            keyhole.prune(folder / "run", folder / "x", keep=keep)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed is"):
        keyhole.prune(folder / "run", folder / "x", keep=0.5, seed=1 << 70)


def test_what_cannot_be_written_is_refused_before_any_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.uses.pruning.measure.calibrate", lambda *_, **__: pytest.fail("calibrated first"))
    with pytest.raises(UsageError, match="dtype 'int8'"):
        keyhole.prune(folder / "run", folder / "x", keep=0.5, dtype="int8")
    with pytest.raises(UsageError, match="is none: at least one must go"):
        keyhole.prune(folder / "run", folder / "x", keep=0.999, whole=True)


def test_what_was_measured_before_a_method_failed_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = uses.measured

    def failing(model, windows, before, cuts, begin):  # type: ignore[no-untyped-def]
        if stored.of(keyhole.open(folder / "run")) is not None:
            raise KeyboardInterrupt
        return kept(model, windows, before, cuts, begin)

    monkeypatch.setattr(uses, "measured", failing)
    with pytest.raises(KeyboardInterrupt):
        keyhole.prune_curve(folder / "run", by=["random", "flap"], shares=[0.25])
    found = stored.of(keyhole.open(folder / "run"))
    assert found is not None
    assert [row.method for row in found.rows] == ["flap"]


def test_a_model_that_says_nothing_any_more_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = uses.measured.__globals__["losses"]

    def broken(model, windows, *rest):  # type: ignore[no-untyped-def]
        found = kept(model, windows, *rest)
        return type(found)(found.nll * float("nan"), found.first, found.tokens, found.documents)

    monkeypatch.setitem(uses.measured.__globals__, "losses", broken)
    with pytest.raises(ModelError, match=r"Without 50% of its cells, what the model says is NaN in float32"):
        keyhole.prune(folder / "run", folder / "x", keep=0.5, by="random")
    assert not (folder / "x").exists()


def test_generation_settings_come_back_with_a_model_of_layers_that_differ(folder: Path) -> None:
    source = Path(keyhole.open(folder / "run").manifest["model"]["source"])
    settings = source / "generation_config.json"
    before = settings.read_text() if settings.exists() else None
    settings.write_text(json.dumps({"eos_token_id": [1, 2], "bos_token_id": 0, "max_new_tokens": 7}))
    try:
        keyhole.prune(folder / "run", folder / "small", keep=0.5, by="random", whole=True)
    finally:
        settings.unlink() if before is None else settings.write_text(before)
    found = keyhole.load(folder / "small").lm.generation_config
    assert (found.eos_token_id, found.max_new_tokens) == ([1, 2], 7)


def test_a_run_in_half_precision_is_pruned_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = Path(keyhole.open(folder / "run").manifest["model"]["source"])
    run = keyhole.scan(str(source), [made_text(folder)], out=tmp_path / "half", unit="line", top=4, dtype="bfloat16")
    keyhole.prune(run, tmp_path / "small", keep=0.5, by="wanda")
    before, after = (load_file(each / "model.safetensors") for each in (source, tmp_path / "small"))
    assert all(torch.equal(before[name], after[name]) for name in before if "mlp" not in name)
    assert after["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32


def test_refitted_values_are_saved_in_the_type_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = tiny("gpt2")
    lm = AutoModelForCausalLM.from_config(model.config, dtype=torch.float16)
    lm.load_state_dict(model.lm.state_dict())
    lm.save_pretrained(tmp_path / "half")
    model.tokenizer.save_pretrained(tmp_path / "half")
    run = keyhole.scan(str(tmp_path / "half"), [made_text(folder)], out=tmp_path / "other", unit="line", top=4)
    assert run.manifest["config"]["dtype"] == "float32"  # as it runs here
    done = keyhole.prune(run, tmp_path / "small", keep=0.5)
    assert done.saved is not None
    assert done.saved.dtype == "float16"
    assert {each.dtype for each in load_file(tmp_path / "small" / "model.safetensors").values()} == {torch.float16}


def test_the_flap_that_a_checkpoint_cannot_hold_has_another_name(folder: Path, tmp_path: Path) -> None:
    source = save(tiny("mistral"), tmp_path / "mistral")
    run = keyhole.scan(source, [made_text(folder)], out=tmp_path / "other", unit="line", top=4)
    keyhole.prune_curve(run, by=["flap", "refit"], shares=[0.5])
    keyhole.prune(run, tmp_path / "small", keep=0.5, by="flap")
    keyhole.analyze(run, only=["pruning"])
    rows = {row["method"]: row for row in run.table("pruning")}
    assert set(rows) == {"flap", "refit", "flap without bias"}
    assert rows["flap"]["perplexity"] != rows["flap without bias"]["perplexity"]
    assert "no place for a bias" in commands.run("prune", run.path, "--curve", "--by", "random", "--shares", "0.5")


def test_damaged_settings_are_noticed(folder: Path) -> None:
    run = keyhole.open(folder / "run")
    row = row_of("0a", 6.0)
    stored.save(run, stored.Pruning([row], []), None)
    assert stored.of(run) is not None
    file = folder / "run" / "analyses.json"
    file.write_text(file.read_text().replace('"share": 0.25', '"share": "a quarter"'))
    with pytest.raises(RunDamaged):
        stored.of(keyhole.open(folder / "run"))


def test_claims_can_come_out_either_way() -> None:
    shape = Shape(tiny(MODEL).cells, 300, True)
    for value, outcome in ((-0.02, "holds"), (-0.3, "does not hold")):
        facts = {"spared": value, "spared_lo": value - 0.01, "spared_hi": value + 0.01}
        assert analysis.quarter_can_go(Measurement([], facts, shape)).outcome == outcome
    for value, outcome in ((0.2, "holds"), (-0.2, "does not hold"), (0.005, "unclear")):
        facts = {"over": value, "over_lo": value - 0.01, "over_hi": value + 0.01}
        assert analysis.taking_over(Measurement([], facts, shape)).outcome == outcome
    assert analysis.quarter_can_go(Measurement([], {}, shape)).outcome == "unclear"


def test_both_names_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="refit"):
        uses.check_methods(["bets"])
