"""What an index promises, whichever device it runs on.

An index holds the best candidates and the statistics of every cell. Which candidates are the best, and in what order, is
defined in `kernels/order.py`: that plain definition is the reference for every implementation. `make_index` chooses the
implementation: `cpu.CpuIndex` runs anywhere, `gpu.GpuIndex` runs on GPUs that have Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..cells import Cells
from ..kernels.available import has_triton

Int64s = npt.NDArray[np.int64]


class Index(Protocol):
    """What a scan needs of an index.

    **Sites.** Coefficients come site by site. Sites are numbered along the axis of cells (`Cells.sites`): layer by layer, in a
    layer with experts expert by expert. A site owns the places of its cells and nothing else, so sites may be updated in any
    order.

    **The result** depends only on which candidates each site was given, never on the batches they came in or on the order of
    these batches: the order of candidates is total. The float sums of one batch are rounded once to integers; how a corpus is
    cut into batches may therefore change the last bits of `sums`, the order of the batches changes nothing.

    **Errors.** A coefficient of a candidate that is not finite raises FloatingPointError, which says which site it came from
    (`Cells.site_name`). It may be raised by the `update` that took it, by a later one, or at the latest by `flush` or `state`:
    an index on a GPU does not wait for the device. After it, the index is of no use any more.

    **Threads.** One thread updates, flushes, reads and loads. `prepare` changes nothing and may run in another thread at the same
    time.
    """

    n: int
    """Candidates so far. The index cannot count them, because every site gets the same batch: the caller adds a batch's
    candidates once, after every site took the batch."""

    @property
    def nbytes(self) -> int:
        """Bytes of the lists, which are nearly all of what `state` returns."""

    def prepare(
        self,
        columns: int,
        n_special: int,
        lengths: npt.NDArray[Any],
        seen_before: npt.NDArray[Any],
        first_tokens: Int64s,
    ) -> Any:
        """What `update` needs to know about a batch of windows; the arguments are those of `Windows.of`.

        The result is of the index's own kind, is never changed, serves every site, and may be used several times.
        """

    def update(self, site: int, x: Tensor, batch: Any, tokens: Tensor | None = None) -> None:
        """Take in the coefficients that one site has for a batch.

        Without `tokens`, x is [rows, columns, width]: every token of the batch. With `tokens`, x is [n, width] and holds some
        tokens only, as an expert sees them: tokens [n] (int64, ascending, distinct) are their positions in the flattened batch
        (row · columns + column). n may be 0, and a site that no token was routed to need not be updated. What is no candidate is
        ignored in both forms: special tokens, padding, prefixes that occurred before.

        All or nothing: if memory runs out, the site is as it was before the call, and the batch may be given to it again, whole
        or in parts. `x` is not changed. After the call, work in the same stream may overwrite it.
        """

    def flush(self) -> None:
        """Wait for all pending work, and raise its errors. The index can be updated again afterwards."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything the index holds, after a `flush`. It can be saved, loaded, and merged with the state of another index.

        - `n`: as above
        - `keys` [sides, cells, top]: the keys of each cell's best candidates, best first; UNFILLED after the last one.
          The second side, the same for the negated coefficients, exists only if coefficients are signed
        - `active` [cells]: candidates with a coefficient above zero
        - `sums` [cells, 2, 2]: the sum of the coefficients and that of their squares, each as (whole, fraction), see
          `kernels/sums.py`
        - `extremes` [cells, 2]: the largest and the smallest coefficient that the site gave; −inf and inf if it gave none

        The arrays may be the index's own: they are valid until the next `update` or `load`.
        """

    def load(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Replace everything by a state, of an index of any kind for the same cells, top and sides. The arrays are copied."""


@dataclass(frozen=True)
class Windows:
    """The windows of a batch [rows, columns], and which of their columns are candidates."""

    columns: int
    n_special: int
    """special tokens before each window's own"""
    begin: Int64s
    """[rows] the column of each window's first candidate"""
    end: Int64s
    """[rows] the column after each window's last candidate; every window has a candidate"""
    first: Int64s
    """[rows] the token index of column 0, as if special tokens were tokens of the corpus too"""

    @staticmethod
    def of(
        columns: int,
        n_special: int,
        lengths: npt.NDArray[Any],
        seen_before: npt.NDArray[Any],
        first_tokens: Int64s,
    ) -> Windows:
        """Windows of `lengths` tokens, each after `n_special` special tokens and padded to `columns`.

        The first `seen_before` prefixes of a window occurred earlier in the corpus, and are no candidates again.
        `first_tokens` are the token indices of the windows' first own tokens.
        """
        return Windows(
            columns,
            n_special,
            (n_special + seen_before).astype(np.int64),
            (n_special + lengths).astype(np.int64),
            (first_tokens - n_special).astype(np.int64),
        )


def make_index(
    devices: Sequence[torch.device],
    cells: Cells,
    top: int,
    *,
    signed: bool,
    per: str,
    context: int,
    unit_offsets: Int64s | None = None,
    side_stream: bool = True,
) -> Index:
    """The index for coefficients that come from `devices`, one per site, in windows of at most `context` tokens.

    `unit_offsets` are given if a unit may come in several windows, of which only the best candidate may enter a list.
    `side_stream`: on a GPU, the index works in a stream of its own while the model goes on. This must be off if the memory of
    the coefficients may be overwritten at once, as compiled blocks do.
    """
    if len(devices) != len(cells.sites):
        raise ValueError(f"{len(devices)} devices were given for {len(cells.sites)} sites: give one per site")
    if all(has_triton(device) for device in set(devices)):
        from .gpu import GpuIndex

        if GpuIndex.fits(columns=context, cells=cells, top=top):
            return GpuIndex(
                devices, cells, top, signed=signed, per=per, unit_offsets=unit_offsets, side_stream=side_stream
            )
    from .cpu import CpuIndex

    return CpuIndex(cells, top, signed=signed, per=per, unit_offsets=unit_offsets)
