"""The lens's kernels, each against its plain reference, and the projection they make against plain sorting.

Without a GPU they run in Triton's interpreter (slow, so the cases are small); with one, compiled, and larger ones too.
"""

from __future__ import annotations

import pytest
import torch
from families import tiny
from triton_here import DEVICE, on_the_card

from keyhole.kernels import lens as lens_kernels
from keyhole.kernels.lens import Surveyor, gather_plain, keys_plain, survey_plain, unpack_plain
from keyhole.kernels.sizes import CHUNK
from keyhole.lens import project
from keyhole.lens.head import Head

pytestmark = pytest.mark.usefixtures("no_numpy_noise")


def some_logits(seed: int, rows: int, vocabulary: int) -> torch.Tensor:
    """Rows of every kind: plain, full of ties, both zeros, one far above the rest, all equal."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, vocabulary, generator=random) * 3
    z[1] = (z[1] * 2).round() / 2
    z[2] = torch.where(z[2] > 0, 0.0, -0.0)
    z[3, vocabulary // 2] = 200.0
    z[4] = -7.5
    return z


def test_keys_order_as_floats_do_and_of_equal_ones_the_earlier_first() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, torch.inf, -torch.inf, 1.0, -1.0])
    places = torch.arange(len(values))
    expected = sorted(places.tolist(), key=lambda i: (-float(values[i]), i))
    keys = keys_plain(values, places)
    assert keys.argsort(descending=True).tolist() == expected
    back, where = unpack_plain(keys)
    assert torch.equal(back, values)
    assert torch.equal(where, places)


@pytest.mark.slow
@pytest.mark.parametrize("masks", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("vocabulary", [30, 64 * 40, 64 * 600 + 5])
def test_survey_and_gather_equal_their_references(vocabulary: int, masks: bool) -> None:
    compare(some_logits(vocabulary, 6, vocabulary), masks=masks, kept=3)


def compare(z: torch.Tensor, *, masks: bool, kept: int) -> None:
    rows, vocabulary = z.shape
    masked = torch.zeros(vocabulary, dtype=torch.bool)
    if masks:
        masked[::3] = True
        masked[CHUNK : 2 * CHUNK] = True  # a whole chunk
    targets = torch.randint(0, vocabulary, (rows,), generator=torch.Generator().manual_seed(0))
    targets[0] = -1
    found = Surveyor(rows, vocabulary, kept, masked.nonzero().flatten().to(DEVICE), DEVICE, ranked=True)
    kept_keys: dict[str, torch.Tensor] = {}
    launched = {"survey": lens_kernels.survey, "gather": lens_kernels.gather}
    with pytest.MonkeyPatch.context() as patch:
        for name, place in (("survey", 3), ("gather", 3)):
            patch.setattr(lens_kernels, name, Watched(launched[name], kept_keys, name, place))
        found.take(0, z.to(DEVICE), targets.to(DEVICE))
    keys, sums, above = survey_plain(z, masked, targets)
    assert torch.equal(kept_keys["survey"], keys)
    assert torch.equal(kept_keys["gather"], gather_plain(z, masked, kept_keys["chunks"]))
    largest, total, weighted = (each.cpu() for each in found._added())
    assert torch.equal(largest.float(), sums[:, 0].float())
    torch.testing.assert_close(total, sums[:, 1], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(weighted, sums[:, 2], rtol=1e-5, atol=1e-4)
    assert torch.equal(found.above.cpu().sum(1)[1:], above[1:])


class Watched:
    """A kernel that leaves a copy of what it wrote."""

    def __init__(self, kernel: object, kept: dict[str, torch.Tensor], name: str, place: int) -> None:
        self.kernel, self.kept, self.name, self.place = kernel, kept, name, place

    def __getitem__(self, grid: object) -> object:
        def launch(*args: object, **options: object) -> None:
            args[self.place].fill_(-7)  # type: ignore[attr-defined]
            self.kernel[grid](*args, **options)  # type: ignore[index]
            self.kept[self.name] = args[self.place].cpu().clone()  # type: ignore[attr-defined]
            if self.name == "gather":
                self.kept["chunks"] = args[2].cpu().clone()  # type: ignore[attr-defined]

        return launch


@pytest.mark.parametrize("masks", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("vocabulary", [11, 700, 64 * 50 + 1])
def test_a_projection_by_kernels_equals_sorting(vocabulary: int, masks: bool) -> None:
    z = some_logits(1, 7, vocabulary)
    check_projection(z, torch.arange(1, vocabulary, 4) if masks else torch.empty(0, dtype=torch.int64), kept=9)


def check_projection(z: torch.Tensor, masked: torch.Tensor, kept: int) -> None:
    """Reads rows of logits: multiplied by the identity they stay as they are."""
    rows, vocabulary = z.shape
    targets = torch.randint(-1, vocabulary, (rows,), generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project, "BLOCK_BYTES", 4 * (vocabulary + 16) * 3)  # blocks of three rows
        patch.setattr(project, "multiply", lambda vectors, weight, out: out.copy_(vectors))
        empty = torch.empty(vocabulary, 1, device=DEVICE)
        got = project._survey(z.to(DEVICE), empty, kept, targets.to(DEVICE), masked.to(DEVICE), lambda rows: None)
    there = torch.ones(vocabulary, dtype=torch.bool)
    there[masked] = False
    kept = min(kept, vocabulary)
    for sign, logits, tokens in ((1, got.top_logits, got.top_tokens), (-1, got.bottom_logits, got.bottom_tokens)):
        signed = (z * sign).masked_fill(~there, -torch.inf)
        values, places = torch.sort(signed, dim=1, descending=True, stable=True)
        assert torch.equal(logits.cpu(), values[:, :kept] * sign)
        assert torch.equal(tokens.cpu(), places[:, :kept])
    p = torch.softmax(z[:, there].double(), 1)
    torch.testing.assert_close(got.max_prob.cpu().double(), p.amax(1), rtol=1e-5, atol=0.0)
    entropy = -torch.special.xlogy(p, p).sum(1)
    torch.testing.assert_close(got.entropy.cpu().double(), entropy, rtol=1e-5, atol=2e-5)
    z = z.masked_fill(~there, -torch.inf)
    for row, target in enumerate(targets.tolist()):
        above = 0 if target < 0 else int((z[row] > z[row, target]).sum()) + 1
        assert int(got.ranks[row]) == above


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [11, 900, 1024 * 16 * 2 + 3])
def test_the_first_token_of_each_row(vocabulary: int, dtype: torch.dtype, summed: bool) -> None:
    check_first(some_logits(4, 8, vocabulary).to(dtype), summed=summed)


def check_first(z: torch.Tensor, *, summed: bool) -> None:
    wide = torch.full((len(z), z.shape[1] + 16), 1e4, dtype=z.dtype)  # what stands behind a row's end counts nowhere
    wide[:, : z.shape[1]] = z
    tokens, log_total = lens_kernels.first_tokens(wide.to(DEVICE)[:, : z.shape[1]], summed=summed)
    assert torch.equal(tokens.cpu(), torch.sort(z.float(), dim=1, descending=True, stable=True).indices[:, 0])
    if summed:
        expected = z.double().logsumexp(1)
        torch.testing.assert_close(log_total.cpu(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_head_reads_residuals_by_kernels_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tiny("gemma2"))  # logits with a cap
    residuals = torch.randn(9, head.weight.shape[1], generator=torch.Generator().manual_seed(5))
    tokens = torch.randint(0, head.vocabulary, (9,), generator=torch.Generator().manual_seed(6))
    monkeypatch.setattr(project, "BLOCK_BYTES", 4 * 4 * head.vocabulary * 2)  # a few rows at once
    expected, likely = head.read_residuals(residuals, tokens)
    raw = head.top("raw", residuals)
    used = []
    kernels = lens_kernels.first_tokens

    def by_kernels(logits: torch.Tensor, *, summed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        used.append(len(logits))
        found, log_total = kernels(logits.to(DEVICE), summed=summed)
        return found.cpu(), log_total.cpu()

    monkeypatch.setattr(project, "first_tokens", by_kernels)
    got, probable = head.read_residuals(residuals, tokens)
    assert torch.equal(got, expected)
    assert likely is not None
    assert probable is not None
    torch.testing.assert_close(probable, likely, rtol=1e-5, atol=1e-9)
    assert torch.equal(head.top("raw", residuals), raw)
    assert len(used) > 2


@on_the_card
@pytest.mark.parametrize("masks", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("vocabulary", [50_257, 267_744])
def test_large_blocks(vocabulary: int, masks: bool) -> None:
    z = some_logits(2, 150, vocabulary)
    compare(z, masks=masks, kept=30)
    check_first(z.to(torch.float16 if masks else torch.bfloat16), summed=True)
    check_projection(z, torch.arange(0, vocabulary, 5) if masks else torch.empty(0, dtype=torch.int64), kept=30)


@on_the_card
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_card_projects_as_the_cpu_does(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(3)
    vectors = torch.randn(70, 64, generator=random)
    weight = torch.randn(9001, 64, generator=random).to(dtype)
    targets = torch.randint(-1, 9001, (70,), generator=random)
    masked = torch.arange(0, 9001, 7)
    here = project.project(vectors, weight, targets=targets, masked=masked)
    there = project.project(vectors.to(DEVICE), weight.to(DEVICE), targets=targets, masked=masked)
    for name in project.Projection.__dataclass_fields__:
        one, other = getattr(here, name), getattr(there, name).cpu()
        if one.is_floating_point():
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        else:
            assert (one == other).float().mean() > 0.98  # neighbours closer than rounding may change places
    again = project.project(vectors.to(DEVICE), weight.to(DEVICE), targets=targets, masked=masked)
    for name in project.Projection.__dataclass_fields__:
        assert torch.equal(getattr(again, name), getattr(there, name))
