"""The Triton kernels, each against its plain reference, and the index they make against the plain index.

Without a GPU they run in Triton's interpreter (slow, so the cases are small); with one, compiled, and larger ones too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families import LAYERS, tiny
from reference import every_prefix, triggers
from triton_here import CUDA, DEVICE, on_the_card

import keyhole
from keyhole.cells import Cells
from keyhole.kernels.available import has_triton
from keyhole.kernels.index import PARTIALS, filter_rows_plain, settle_plain
from keyhole.kernels.order import UNFILLED, brute_force, pack, unpack
from keyhole.kernels.sums import FRACTION_BITS
from keyhole.models import patches
from keyhole.models.model import Model
from keyhole.scanning import runner
from keyhole.scanning.contract import make_index
from keyhole.scanning.cpu import CpuIndex
from keyhole.scanning.gpu import LONG_ROWS, SHORT_ROWS, GpuIndex, Rows, Tiling, _Given

SMALL = Tiling(rows=2, lanes=1, block=8, unroll=2, warps=1, fill=1)
SMALL_LANES = Tiling(rows=1, lanes=4, block=8, unroll=2, warps=1, fill=1)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


pytestmark = pytest.mark.usefixtures("no_numpy_noise")


class Case:
    """A batch with every special case, on a GPU or in the interpreter."""

    def __init__(
        self, seed: int, dtype: torch.dtype, *, signed: bool, rows: int = 5, longest: int = 6, cells: int = 6
    ) -> None:
        rng = np.random.default_rng(seed)
        self.n_special = int(rng.integers(0, 2))
        self.lengths = rng.integers(1, longest + 1, rows)
        self.seen_before = (self.lengths * rng.random(rows) * rng.integers(0, 2, rows)).astype(np.int32)
        self.first = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]) + int(rng.integers(0, 2**31))
        self.columns = self.n_special + int(self.lengths.max())
        x = np.round(rng.normal(size=(rows, self.columns, cells)) * 4) / 4  # many ties
        x[rng.random(x.shape) < 0.1] = 0.0
        x[rng.random(x.shape) < 0.1] = -0.0
        x[rng.random(x.shape) < 0.1] = 2.0**-130 if dtype != torch.float16 else 2.0**-20  # below the normal numbers
        x[..., 1] = -np.abs(x[..., 1]) - 1  # a cell that never fires
        x[..., 2] = np.abs(x[..., 2]) + 1  # and one that always does
        if not signed:
            x = np.maximum(x, 0)
        column = np.arange(self.columns) - self.n_special
        self.new = (column >= self.seen_before[:, None]) & (column < self.lengths[:, None])
        x[~self.new] = rng.choice([-1e4, 1e4], size=(int((~self.new).sum()), cells))  # junk nobody may look at
        self.x = torch.from_numpy(x).to(dtype)
        self.unit_offsets = self.first[::2].astype(np.int64)  # neighbouring windows of one unit

    def table(self, index: GpuIndex) -> Rows:
        return index.prepare(self.columns, self.n_special, self.lengths, self.seen_before, self.first)

    def given(self, index: GpuIndex) -> _Given:
        """The batch as the kernels of a site take it."""
        return index.given(index.sites[1].part, self.x.to(DEVICE), self.table(index), None)

    @property
    def candidates(self) -> int:
        return int(self.new.sum())


def an_index(
    case: Case, top: int, *, signed: bool, per: str, tiling: Tiling | None, grouped: bool = False, slots: int = 4
) -> GpuIndex:
    return GpuIndex(
        [DEVICE, DEVICE],
        Cells.of_widths([case.x.shape[2]] * 2),
        top,
        signed=signed,
        per=per,
        tiling=tiling,
        slots=slots,
        unit_offsets=case.unit_offsets if grouped else None,
    )


def thresholds_from(rng: np.random.Generator, sides: int, cells: int) -> np.ndarray:
    """As they are at the start, at values that occur, and out of reach."""
    return rng.choice(np.float32([1e-45, 0.25, 1.0, 3e38]), size=(sides, cells)).astype(np.float32)


@pytest.mark.parametrize("tiling", [SMALL, SMALL_LANES], ids=["rows", "lanes"])
@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filter_rows_equals_its_reference(dtype: torch.dtype, signed: bool, per: str, tiling: Tiling) -> None:
    seed = DTYPES.index(dtype) * 8 + signed * 4 + (per == "prefix") * 2 + tiling.lanes
    case = Case(seed, dtype, signed=signed)
    compare_filter_rows(case, signed=signed, per=per, tiling=tiling, seed=seed)


def compare_filter_rows(
    case: Case, *, signed: bool, per: str, tiling: Tiling | None, seed: int, slots: int = 4, top: int = 3
) -> None:
    index = an_index(case, top, signed=signed, per=per, tiling=tiling, slots=slots)
    sides, cells, site = 2 if signed else 1, case.x.shape[2], index.sites[1]
    part, span = site.part, index.cells.span(1)
    thresholds = thresholds_from(np.random.default_rng(seed), sides, cells).view(np.int32)
    part.thresholds[:, span] = torch.from_numpy(thresholds).to(DEVICE)
    part.pending.fill_(-7)
    given = case.given(index)
    groups = index.filter_rows(site, given)
    last = np.full((sides, cells), UNFILLED)
    table = given.table.cpu().numpy()
    survivors, statistics = filter_rows_plain(case.x, table, thresholds, last, prefix=per == "prefix")

    partial = part.partial[: groups * PARTIALS * cells].view(groups, PARTIALS, cells).double().cpu().numpy()
    np.testing.assert_allclose(partial[:, :2].sum(0), statistics[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(partial[:, 2].sum(0), statistics[2])
    np.testing.assert_array_equal(partial[:, 3].max(0), statistics[3])
    np.testing.assert_array_equal(partial[:, 4].min(0), statistics[4])
    counts = part.counts.view(sides, cells).cpu().numpy()
    pending = part.pending.view(sides, cells, slots).cpu().numpy()
    for side in range(sides):
        for cell in range(cells):
            expected = survivors[side][cell]
            assert counts[side, cell] == len(expected)
            kept = np.sort(pending[side, cell, : min(len(expected), slots)])
            assert len(set(kept.tolist())) == len(kept)
            assert set(kept.tolist()) <= set(expected.tolist())


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_settle_equals_its_reference(dtype: torch.dtype, per: str, grouped: bool) -> None:
    """Cells with no survivor, with a few, and with more than there are slots."""
    seed = 100 + DTYPES.index(dtype) * 4 + (per == "prefix") * 2 + grouped
    case = Case(seed, dtype, signed=True, rows=9)
    compare_settle(case, seed, per=per, grouped=grouped)


def test_ties_with_the_threshold_survive_only_if_they_stand_earlier() -> None:
    """If an activation saturates, every row reaches the threshold: those after the last of the list are dropped at once."""
    case = Case(7, torch.bfloat16, signed=True, rows=9)
    case.x.fill_(-0.25)
    index = an_index(case, 3, signed=True, per="sentence", tiling=SMALL if not CUDA else None, slots=16)
    part, span, given = index.sites[1].part, index.cells.span(1), case.given(index)
    table = given.table.cpu().numpy()
    starts = np.sort(table[2] + table[0])
    keys = pack(np.full(3, 0.25, np.float32), starts[:3])  # the three earliest are in already
    keys[2] = pack(np.float32([0.25]), starts[4:5] - 1)[0]  # and one between the fourth and the fifth
    part.keys[1, span] = torch.from_numpy(keys).to(DEVICE)
    part.thresholds[1, span] = int(np.float32(0.25).view(np.int32))
    index.filter_rows(index.sites[1], given)
    counts = part.counts.view(2, -1)
    assert (counts[1] == 4).all()
    assert (counts[0] == 0).all()


def compare_settle(case: Case, seed: int, *, per: str, grouped: bool, top: int = 3, slots: int = 4) -> None:
    rng = np.random.default_rng(seed)
    index = an_index(case, top, signed=True, per=per, tiling=SMALL if not CUDA else None, grouped=grouped, slots=slots)
    sides, cells, site = 2, case.x.shape[2], index.sites[1]
    part, span = site.part, index.cells.span(1)
    # lists with something in them, from tokens of other units, and full ones
    before = np.full((sides, cells, top), UNFILLED)
    for side in range(sides):
        for cell in range(cells):
            filled = int(rng.integers(0, top + 1))
            tokens = int(case.first.max()) + 1000 + 10 * rng.permutation(top)[:filled]
            values = np.float32(rng.choice([0.5, 1.0, 2.0], filled))
            before[side, cell, :filled] = np.sort(
                ((0x7FFFFFFF - values.view(np.int32).astype(np.int64)) << 32) | tokens
            )
    if grouped:
        assert index.grouped
        part.units = torch.from_numpy(
            np.concatenate([case.unit_offsets, int(case.first.max()) + 1000 + 10 * np.arange(top)])
        ).to(DEVICE)
    index.load(
        {
            **index.state(),
            "keys": np.concatenate([np.full_like(before, UNFILLED), before], 1),
        }
    )
    thresholds = part.thresholds[:, span].cpu().numpy().copy()
    given = case.given(index)
    index.settle(site, given, index.filter_rows(site, given))
    table, last = given.table.cpu().numpy(), before[..., -1]
    survivors, statistics = filter_rows_plain(case.x, table, thresholds, last, prefix=per == "prefix")
    most = max(len(found) for side in survivors for found in side)
    assert most > slots
    units = part.units.cpu().numpy() if grouped else None
    for side in range(sides):
        np.testing.assert_array_equal(
            part.keys[side, span].cpu().numpy(), settle_plain(before[side], survivors[side], units)
        )
    assert not part.counts.any()
    after = part.thresholds[:, span].cpu().numpy().view(np.float32)
    last = unpack(part.keys[:, span, -1].cpu().numpy())[0]
    np.testing.assert_array_equal(after, np.where(np.isnan(last), np.float32(1e-45), last))
    state = index.state()
    np.testing.assert_array_equal(state["active"][span], statistics[2])
    np.testing.assert_array_equal(state["extremes"][span], statistics[3:].T)
    totals = state["sums"][span].astype(np.float64)
    np.testing.assert_allclose(
        totals[..., 0] + totals[..., 1] / 2**FRACTION_BITS, statistics[:2].T, rtol=1e-4, atol=1e-4
    )
    assert not state["active"][: span.start].any()


def feed(
    seed: int, dtype: torch.dtype, *, signed: bool, per: str, grouped: bool, tiling: Tiling | None, **sizes: int
) -> tuple[GpuIndex, CpuIndex]:
    """Feed several batches to an index of the kernels and to a plain one. Grouped: two windows per unit, in different batches."""
    rng = np.random.default_rng(seed)
    batches, top, slots = sizes.pop("batches", 3), sizes.pop("top", 3), sizes.pop("slots", 4)
    cases = [Case(seed + i, dtype, signed=signed, **sizes) for i in range(batches)]
    lengths = np.concatenate([case.lengths for case in cases])
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = rng.permutation(len(lengths))  # which window is which part of the corpus
    begins = np.empty_like(first)
    begins[order] = np.concatenate([[0], np.cumsum(lengths[order])[:-1]])
    units = np.sort(begins)[::2].astype(np.int64) if grouped else None
    cells = Cells.of_widths([cases[0].x.shape[2]] * 2)
    index = GpuIndex(
        [DEVICE, DEVICE], cells, top, signed=signed, per=per, tiling=tiling, slots=slots, unit_offsets=units
    )
    plain = CpuIndex(cells, top, signed=signed, per=per, unit_offsets=units)
    at = 0
    for number, case in enumerate(cases):
        case.first = begins[at : at + len(case.lengths)]
        at += len(case.lengths)
        picked = plain.prepare(case.columns, case.n_special, case.lengths, case.seen_before, case.first)
        rows = case.table(index)
        for layer in range(2):
            if layer == 0 and number:
                continue  # the interpreter is slow
            index.update(layer, case.x.to(DEVICE), rows)
            plain.update(layer, case.x.float(), picked)
        index.n += case.candidates
        plain.n += case.candidates
    return index, plain


def assert_same(index: GpuIndex, plain: CpuIndex) -> None:
    got, expected = index.state(), plain.state()
    for name in ("n", "keys", "active", "extremes"):
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    a, b = (s["sums"][..., 0] + s["sums"][..., 1] / 2.0**FRACTION_BITS for s in (got, expected))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "signed", "per", "grouped"),
    [
        (torch.bfloat16, True, "sentence", False),
        (torch.float16, False, "sentence", False),
        (torch.float32, True, "prefix", False),
        (torch.bfloat16, True, "sentence", True),
    ],
    ids=str,
)
def test_the_index_equals_the_plain_one(dtype: torch.dtype, signed: bool, per: str, grouped: bool) -> None:
    assert_same(*feed(7, dtype, signed=signed, per=per, grouped=grouped, tiling=SMALL if not CUDA else None))


def test_the_state_goes_on_where_it_was_saved() -> None:
    index, _ = feed(11, torch.bfloat16, signed=True, per="sentence", grouped=False, tiling=SMALL, batches=1, rows=3)
    other = GpuIndex([DEVICE, DEVICE], index.cells, index.top, signed=True, per="sentence", tiling=SMALL, slots=4)
    other.load(index.state())
    for name, array in index.state().items():
        np.testing.assert_array_equal(other.state()[name], array)
    assert torch.equal(other.sites[0].part.thresholds, index.sites[0].part.thresholds)


def test_layers_of_different_widths_on_several_devices() -> None:
    """Two names of one device stand for two devices: the part of each layer comes back at its place."""
    case = Case(5, torch.bfloat16, signed=False, rows=2, cells=9)
    devices = [DEVICE, torch.device("cpu", 0) if not CUDA else DEVICE, DEVICE, DEVICE]
    cells = Cells.of_widths([3, 6, 9, 5])
    index = GpuIndex(devices, cells, 3, signed=False, per="sentence", tiling=SMALL, slots=4)
    plain = CpuIndex(cells, 3, signed=False)
    rows = case.table(index)
    picked = plain.prepare(case.columns, case.n_special, case.lengths, case.seen_before, case.first)
    for layer in (1, 3, 2):
        x = case.x[..., : cells.size(layer)] * layer
        index.update(layer, x.to(devices[layer]), rows)
        plain.update(layer, x.float(), picked)
    assert_same(index, plain)
    assert (index.state()["keys"][0, : cells.size(0)] == UNFILLED).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_coefficients_that_are_not_finite_are_refused(bad: float) -> None:
    case = Case(3, torch.bfloat16, signed=True, rows=2, longest=2, cells=3)
    row, column = np.argwhere(case.new)[0]
    case.x[row, column, 2] = bad
    index = an_index(case, 3, signed=True, per="sentence", tiling=SMALL)

    def take_in() -> None:
        index.update(1, case.x.to(DEVICE), case.table(index))
        index.state()  # at the latest

    with pytest.raises(FloatingPointError, match="Layer 1"):
        take_in()


def test_the_index_is_chosen_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"signed": True, "per": "sentence", "context": 64}
    card, cells = torch.device("cuda", 0), Cells.of_widths([4, 6])
    cpu = make_index([torch.device("cpu")] * 2, cells, 3, **options)  # type: ignore[arg-type]
    assert isinstance(cpu, CpuIndex)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert has_triton(card)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert isinstance(make_index([card] * 2, cells, 3, **options), CpuIndex)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # older than Triton supports
    assert isinstance(make_index([card] * 2, cells, 3, **options), CpuIndex)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 devices were given for 2 sites"):
        make_index([card] * 3, cells, 3, **options)  # type: ignore[arg-type]
    assert GpuIndex.fits(columns=2048, cells=Cells.of_widths([14_336] * 80), top=50)
    assert not GpuIndex.fits(
        columns=65_536, cells=Cells.of_widths([64, 32_768]), top=50
    )  # a window's places would not fit in 32 bits


# On a card: sizes that fill it, whole scans


@on_the_card
@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tiling", [SHORT_ROWS, LONG_ROWS], ids=["short", "long"])
def test_large_filters(tiling: Tiling, dtype: torch.dtype, signed: bool, per: str) -> None:
    case = Case(1, dtype, signed=signed, rows=90, longest=70, cells=328)
    compare_filter_rows(case, signed=signed, per=per, tiling=tiling, seed=1, slots=64, top=50)


@on_the_card
@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
@pytest.mark.parametrize("per", ["sentence", "prefix"])
def test_large_settles(per: str, grouped: bool) -> None:
    compare_settle(
        Case(2, torch.bfloat16, signed=True, rows=300, longest=20, cells=64),
        2,
        per=per,
        grouped=grouped,
        top=50,
        slots=64,
    )


@on_the_card
@pytest.mark.parametrize("top", [1, 25, 50, 200])
@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
def test_large_indices(top: int, grouped: bool) -> None:
    slots = max(32, 1 << (top - 1).bit_length())
    index, plain = feed(
        9,
        torch.bfloat16,
        signed=True,
        per="sentence",
        grouped=grouped,
        tiling=None,
        batches=12,
        rows=150,
        longest=30,
        cells=260,
        top=top,
        slots=slots,
    )
    assert_same(index, plain)


def on_card(name: str, dtype: torch.dtype) -> Model:
    import copy

    model = tiny(name)
    return Model(copy.deepcopy(model.lm).to(DEVICE, dtype), model.tokenizer, source=f"{model.source}-{dtype}")


@on_the_card
@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scan_on_the_card_equals_the_brute_force_reference(
    dtype: torch.dtype, per: str, text: Path, tmp_path: Path
) -> None:
    """Fed with the coefficients the card gives: units one by one, as the reference runs them."""
    model = on_card("gpt2", dtype)
    run = keyhole.scan(model, [text], out=tmp_path / "run", top=4, unit="line", per=per, batch_tokens=1)
    texts = [line for line in text.read_text("utf-8").split("\n") if line.strip()]
    with (
        patches.without_readbacks(),
        patches.own_attention(model.lm),
    ):  # the same attention: another one rounds otherwise
        prefixes = every_prefix(model, texts, room=run.context - 1)
    for sign, side in ((1, ""), (-1, "_negative")):
        coefficients, units, positions = triggers(prefixes, 4, per, sign)
        np.testing.assert_array_equal(getattr(run, "units" + side), units)
        np.testing.assert_array_equal(getattr(run, "positions" + side), positions)
        np.testing.assert_array_equal(getattr(run, "coefficients" + side), coefficients)
    every = np.stack([prefix.coefficients for prefix in prefixes]).astype(np.float64)
    np.testing.assert_array_equal(run.stats.active, (every > 0).sum(0))
    np.testing.assert_array_equal(run.stats.max, every.max(0).astype(np.float32))
    np.testing.assert_array_equal(run.stats.min, every.min(0).astype(np.float32))


@on_the_card
@pytest.mark.parametrize("unit", ["line", "document"])
def test_a_batched_scan_on_the_card_equals_brute_force_on_the_same_coefficients(
    unit: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on_card("llama", torch.bfloat16)
    seen: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    tokens: list[np.ndarray] = []
    update = GpuIndex.update

    def spy(self: GpuIndex, layer: int, x: torch.Tensor, batch: Rows, routed: torch.Tensor | None = None) -> None:
        begin, end, first = batch.table.numpy()
        column = np.arange(x.shape[1])
        new = (column >= begin[:, None]) & (column < end[:, None])
        seen[layer].append(x.float().cpu().numpy()[new])
        if layer == 0:
            tokens.append((first[:, None] + column)[new])
        update(self, layer, x, batch, routed)

    monkeypatch.setattr(GpuIndex, "update", spy)
    monkeypatch.setattr(runner, "warm_up", lambda *args: None)  # its windows are not the corpus's
    run = keyhole.scan(model, [text], out=tmp_path / "run", top=5, unit=unit, batch_tokens=100, context=16)
    offsets = run.unit_offsets
    places = np.concatenate(tokens)
    units = np.searchsorted(offsets, places, side="right") - 1
    for layer in range(LAYERS):
        values = (
            np.concatenate(seen[layer]) * run.orientation[run.cells.span(layer)]
        )  # a run has each cell in its orientation
        for sign, side in ((1, ""), (-1, "_negative")):
            coefficients, best, positions = brute_force(sign * values, units, places - offsets[units], 5)
            np.testing.assert_array_equal(
                getattr(run, "coefficients" + side)[run.cells.span(layer)], sign * coefficients
            )
            np.testing.assert_array_equal(getattr(run, "units" + side)[run.cells.span(layer)], best)
            np.testing.assert_array_equal(getattr(run, "positions" + side)[run.cells.span(layer)], positions)


@on_the_card
def test_two_scans_on_the_card_give_the_same_bytes(text: Path, tmp_path: Path) -> None:
    runs = [
        keyhole.scan(on_card("llama", torch.bfloat16), [text], out=tmp_path / name, top=5, unit="line")
        for name in ("one", "other")
    ]
    assert runs[0].manifest["files"] == runs[1].manifest["files"]


@on_the_card
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_the_loop_does_not_wait_for_the_card(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_card("gpt2", torch.bfloat16)
    options = {"top": 5, "unit": "line", "batch_tokens": 60}
    keyhole.scan(model, [text], out=tmp_path / "warm", **options)  # type: ignore[arg-type]
    run = runner.Runner.run

    def strict(self: runner.Runner, *args: object) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            run(self, *args)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(runner.Runner, "run", strict)
    keyhole.scan(model, [text], out=tmp_path / "run", **options)  # type: ignore[arg-type]
