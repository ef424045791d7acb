"""The lens on a GPU: each block of logits is read once, and the CPU never waits for the device.

`survey` reads every logit once: the largest and the smallest of each chunk of tokens, what softmax and its entropy need,
and how many logits are larger than the one asked for. `gather` then searches the chunks that can hold a row's largest logits.
If only the top token of each row is wanted, `first` finds it.

All of them write *keys* of 64 bits, of which a larger one is better: the upper half is the logit, mapped so that integers
compare as the floats do, and the lower half is its place, counted down. Keys are unique, so `torch.topk` of them is a total
order, and rows with equal logits need no special case.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sizes import CHUNK

TILE = 16
"""chunks that a program of `survey` reads at once"""
SEGMENT = 16
"""tiles that a program of `survey` reads, one after the other"""
NOTHING = tl.constexpr(-(2**63))
"""The key of a place after a row's end: smaller than that of any logit."""
SUMS = 3
"""What a program of `survey` leaves of softmax: the largest logit m, Σ e^(z−m), Σ z·e^(z−m)."""


@triton.jit
def _key(value, place):
    """`keys_plain`."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # adding 0 makes a −0 a 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - place.to(tl.int64))


@triton.jit(do_not_specialize=["rows", "chunks", "segments"])
def survey(
    z,
    masked,
    targets,
    keys,
    sums,
    above,
    rows,
    stride,
    vocabulary,
    chunks,
    segments,
    MASKED: tl.constexpr,
    RANKED: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """One segment of one row per program. Writes to `keys` [2, rows, chunks] the largest and the smallest (negated) of each
    chunk, to `sums` [rows, segments, 3] what SUMS says, and to `above` [rows, segments] the count above the target."""
    row = tl.program_id(0) // segments
    segment = tl.program_id(0) % segments
    mine = z + row.to(tl.int64) * stride
    if RANKED:
        target = tl.load(targets + row)
        asked = tl.load(mine + tl.maximum(target, 0))
        if MASKED:
            asked = tl.where(tl.load(masked + tl.maximum(target, 0)) != 0, float("-inf"), asked)
    most = tl.full([TILE], -3.0e38, tl.float32)  # a finite start avoids (−inf) − (−inf) = NaN if all is masked
    total = tl.zeros([TILE, CHUNK], tl.float32)
    weighted = tl.zeros([TILE, CHUNK], tl.float32)
    count = tl.zeros([TILE, CHUNK], tl.int32)
    for tile in range(SEGMENT):
        chunk = (segment * SEGMENT + tile) * TILE + tl.arange(0, TILE)
        token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        there = token < vocabulary
        value = tl.load(mine + token, mask=there, other=float("-inf"))
        if MASKED:
            there = there & (tl.load(masked + token, mask=there, other=1) == 0)
            value = tl.where(there, value, float("-inf"))
        largest = tl.max(value, 1)
        smallest = tl.min(tl.where(there, value, float("inf")), 1)
        known = chunk < chunks
        out = keys + row.to(tl.int64) * chunks + chunk
        tl.store(out, _key(largest, chunk), mask=known)
        tl.store(out + rows.to(tl.int64) * chunks, _key(-smallest, chunk), mask=known)
        now = tl.maximum(most, largest)
        shrink = tl.exp(most - now)[:, None]
        each = tl.exp(value - now[:, None])
        total = total * shrink + each
        weighted = weighted * shrink + tl.where(there, value, 0.0) * each
        most = now
        if RANKED:
            count += (value > asked).to(tl.int32)
    largest = tl.max(most, 0)
    share = tl.exp(most - largest)
    out = sums + tl.program_id(0) * 3
    tl.store(out, largest)
    tl.store(out + 1, tl.sum(tl.sum(total, 1) * share, 0))
    tl.store(out + 2, tl.sum(tl.sum(weighted, 1) * share, 0))
    if RANKED:
        tl.store(above + tl.program_id(0), tl.sum(tl.sum(count, 1), 0))


@triton.jit(do_not_specialize=["rows", "chosen"])
def gather(
    z,
    masked,
    chunks,
    keys,
    rows,
    stride,
    vocabulary,
    chosen,
    MASKED: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The keys [2, rows, chosen · CHUNK] of all tokens in the chunks whose keys are in `chunks` [2, rows, chosen]."""
    line = tl.program_id(0)
    row = (line % rows).to(tl.int64)
    sign = 1.0 - 2.0 * (line // rows).to(tl.float32)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    known = at < chosen
    chunk = 0xFFFFFFFF - (tl.load(chunks + line.to(tl.int64) * chosen + at, mask=known, other=0) & 0xFFFFFFFF)
    token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    there = known[:, None] & (token < vocabulary)
    value = tl.load(z + row * stride + token, mask=there, other=0.0) * sign
    if MASKED:
        value = tl.where(tl.load(masked + token, mask=there, other=0) != 0, float("-inf"), value)
    out = keys + line.to(tl.int64) * chosen * CHUNK + at[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    tl.store(out, tl.where(there, _key(value, token), NOTHING), mask=known[:, None])


@triton.jit(do_not_specialize=["segments"])
def first(
    z,
    keys,
    sums,
    stride,
    vocabulary,
    segments,
    SUMMED: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """One segment of one row per program. Writes to `keys` [rows, segments] the key of the segment's top token and, if SUMMED, to
    `sums` [rows, segments, 2] its largest logit m and Σ e^(z−m)."""
    row = tl.program_id(0) // segments
    begin = (tl.program_id(0) % segments) * SEGMENT * TILE
    mine = z + row.to(tl.int64) * stride
    best = tl.full([TILE], -3.0e38, tl.float32)  # a finite start avoids (−inf) − (−inf) = NaN
    place = begin + tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for tile in range(SEGMENT):
        token = begin + tile * TILE + tl.arange(0, TILE)
        value = tl.load(mine + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
        better = value > best
        if SUMMED:
            less = tl.exp(-tl.abs(value - best))  # e^(smaller − larger) of the two
            total = tl.where(better, total * less + 1.0, total + less)
        place = tl.where(better, token, place)
        best = tl.maximum(best, value)
    tl.store(keys + tl.program_id(0), tl.max(_key(best, place), 0))
    if SUMMED:
        largest = tl.max(best, 0)
        tl.store(sums + tl.program_id(0) * 2, largest)
        tl.store(sums + tl.program_id(0) * 2 + 1, tl.sum(total * tl.exp(best - largest), 0))


FIRST_TILE, FIRST_SEGMENT = 1024, 16
"""Tokens that a program of `first` reads at once, and the number of such reads."""


def first_tokens(logits: Tensor, *, summed: bool) -> tuple[Tensor, Tensor]:
    """The top token of each row of logits [rows, vocabulary] of any precision and, if `summed`, the log of softmax's
    denominator in double precision. The CPU does not wait. The plain form is in `lens.project.first_tokens`."""
    rows, vocabulary = logits.shape
    segments = -(-vocabulary // (FIRST_TILE * FIRST_SEGMENT))
    keys = torch.empty((rows, segments), dtype=torch.int64, device=logits.device)
    sums = torch.empty((rows, segments, 2) if summed else 1, device=logits.device)
    first[(rows * segments,)](
        logits,
        keys,
        sums,
        logits.stride(0),
        vocabulary,
        segments,
        SUMMED=summed,
        TILE=FIRST_TILE,
        SEGMENT=FIRST_SEGMENT,
        num_warps=4,
    )
    _, tokens = unpack_plain(keys.amax(1))
    if not summed:
        return tokens, sums
    most, total = sums.double().unbind(2)
    largest = most.amax(1, keepdim=True)
    return tokens, largest.flatten() + (total * (most - largest).exp()).sum(1).log()


class Surveyor:
    """Collects on the device what blocks of logits say; the blocks have `rows` rows in total."""

    def __init__(
        self, rows: int, vocabulary: int, kept: int, masked: Tensor, device: torch.device, *, ranked: bool
    ) -> None:
        self.vocabulary, self.kept, self.ranked = vocabulary, min(kept, vocabulary), ranked
        self.chunks = -(-vocabulary // CHUNK)
        self.segments = -(-self.chunks // (TILE * SEGMENT))
        self.any_masked = len(masked) > 0
        self.masked = torch.zeros(vocabulary if self.any_masked else 1, dtype=torch.int8, device=device)
        self.masked[masked] = 1
        self.first = torch.empty((2, rows, self.kept), dtype=torch.int64, device=device)
        self.sums = torch.empty((rows, self.segments, SUMS), device=device)
        self.above = torch.zeros((rows, self.segments), dtype=torch.int32, device=device)

    def take(self, at: int, logits: Tensor, targets: Tensor | None) -> None:
        """Take in a block of logits [rows, vocabulary] whose first row is row `at` of all. The CPU does not wait."""
        rows, stride = len(logits), logits.stride(0)
        if self.ranked:
            assert targets is not None
            targets = targets.to(torch.int64)
        keys = torch.empty((2, rows, self.chunks), dtype=torch.int64, device=logits.device)
        survey[(rows * self.segments,)](
            logits,
            self.masked,
            targets if self.ranked else self.masked,
            keys,
            self.sums[at],
            self.above[at],
            rows,
            stride,
            self.vocabulary,
            self.chunks,
            self.segments,
            MASKED=self.any_masked,
            RANKED=self.ranked,
            CHUNK=CHUNK,
            TILE=TILE,
            SEGMENT=SEGMENT,
            num_warps=2,
        )
        chosen = min(self.kept, self.chunks)
        best = torch.topk(keys, chosen, dim=2, sorted=False).values
        inside = torch.empty((2, rows, chosen * CHUNK), dtype=torch.int64, device=logits.device)
        gather[(2 * rows, -(-chosen // TILE))](
            logits,
            self.masked,
            best,
            inside,
            rows,
            stride,
            self.vocabulary,
            chosen,
            MASKED=self.any_masked,
            CHUNK=CHUNK,
            TILE=TILE,
            num_warps=4,
        )
        self.first[:, at : at + rows] = torch.topk(inside, self.kept, dim=2).values

    def tops(self) -> tuple[Tensor, Tensor]:
        """Logits and tokens [2, rows, kept]: the largest, and the smallest."""
        values, places = unpack_plain(self.first)
        values[1] *= -1
        return values, places

    def _added(self) -> tuple[Tensor, Tensor, Tensor]:
        """Softmax's three numbers of each row, in double precision."""
        most, total, weighted = self.sums.double().unbind(2)
        largest = most.amax(1)
        share = (most - largest[:, None]).exp()
        return largest, (total * share).sum(1), (weighted * share).sum(1)

    def softmax(self) -> tuple[Tensor, Tensor]:
        """The largest probability of each row, and the entropy in nats."""
        largest, total, weighted = self._added()
        return (1 / total).float(), (largest + total.log() - weighted / total).float()

    def ranks(self, targets: Tensor) -> Tensor:
        return torch.where(targets >= 0, self.above.sum(1) + 1, 0)


# The same in plain form


def keys_plain(values: Tensor, places: Tensor) -> Tensor:
    """Larger is better: by value, and among equal values the earlier place."""
    bits = (values.float() + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) | (0xFFFFFFFF - places)


def unpack_plain(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values and places of keys."""
    ordered = (keys >> 32).int()
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.view(torch.float32), 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def survey_plain(z: Tensor, masked: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `survey` finds in logits [rows, vocabulary]: keys [2, rows, chunks], softmax's three numbers per row (in double
    precision, over all segments), and the counts above the targets. `masked` [vocabulary] marks tokens that are left out."""
    rows, vocabulary = z.shape
    chunks = -(-vocabulary // CHUNK)
    high = torch.full((rows, chunks * CHUNK), -torch.inf)
    low = high.clone()
    high[:, :vocabulary] = z.masked_fill(masked, -torch.inf)
    low[:, :vocabulary] = (-z).masked_fill(masked, -torch.inf)
    maxima = torch.stack([high, low]).view(2, rows, chunks, CHUNK).amax(3)
    kept = z[:, ~masked].double()
    most = kept.amax(1)
    each = (kept - most[:, None]).exp()
    sums = torch.stack([most, each.sum(1), (kept * each).sum(1)], 1)
    asked = z.masked_fill(masked, -torch.inf).gather(1, targets.clamp_min(0)[:, None])
    return keys_plain(maxima, torch.arange(chunks)), sums, (kept > asked).sum(1)


def gather_plain(z: Tensor, masked: Tensor, chunks: Tensor) -> Tensor:
    """What `gather` finds: the keys of all tokens in the chunks whose keys are given, [2, rows, chosen · CHUNK]."""
    both = torch.stack([z, -z]).masked_fill(masked, -torch.inf)
    places = ((0xFFFFFFFF - (chunks & 0xFFFFFFFF))[..., None] * CHUNK + torch.arange(CHUNK)).flatten(2)
    inside = places < z.shape[1]
    found = keys_plain(both.gather(2, places.clamp_max(z.shape[1] - 1)), places)
    return torch.where(inside, found, torch.tensor(-(2**63)))
