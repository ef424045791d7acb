"""Which values are alike, and which keys: all cells of a model on a plane, by the two directions in which their vectors differ most.

A vector is taken as a direction (length 1) in the cell's orientation o, so that negating up and value of a gated cell changes
nothing. A value is o·v. A key is the row that reads the residual; a gated cell reads with two rows, its gate and o·up: its key is both,
one after the other, each of length 1/√2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import MissingExtra, ModelError, UsageError
from ..store import planes
from ..store.run import Run
from .record import VALUES, Analysis, Begin

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

METHODS = ("pca", "umap")
SAMPLE_CELLS, SAMPLE_BYTES = 1 << 17, 512 << 20
"""Upper bounds on the random sample of cells that the axes are computed from; a model of fewer cells is used whole."""
EXACT = 4096
"""Upper bound on the size of a vector up to which the axes are those of the exact covariance; above it, of a randomized SVD."""
UMAP_CELLS = 1_000_000
"""Upper bound on the cells that UMAP is asked to place."""

Floats = npt.NDArray[np.float32]
Read = Callable[[int], "torch.Tensor"]


def fill(run: Run, model: Model, map: str, seed: int, begin: Begin) -> None:
    """Store the plane of values and, if the family's keys are known, that of keys."""
    check(map)
    if map == "umap" and len(run.cells) > UMAP_CELLS:
        raise UsageError(
            f"UMAP would take days for {len(run.cells):,} cells; it is for at most {UMAP_CELLS:,}. Use --map pca."
        )
    sides: dict[str, Read] = {"values": lambda layer: _values(run, model, layer)}
    try:
        _keys(run, model, 0)
        sides["keys"] = lambda layer: _keys(run, model, layer)
    except ModelError:  # the family's row names no key projection that can be read
        pass
    advance = begin(len(sides) * 2 * run.layers)
    found = {name: placed(run, read, map, seed, advance) for name, read in sides.items()}
    planes.save(run, map, seed, found)


def check(map: str) -> None:
    """Refuse a map that there is not, or whose package is not installed."""
    if map not in METHODS:
        raise UsageError(f"There is no map '{map}'. The maps are: {', '.join(METHODS)}.")
    if map == "umap":
        _umap()


def _umap() -> Any:
    try:
        import umap
    except ImportError:
        raise MissingExtra("umap-learn", "umap", "A map by UMAP") from None
    return umap


# The vectors


def _values(run: Run, model: Model, layer: int) -> torch.Tensor:
    return _signed(run, layer, model.values(layer))


def _keys(run: Run, model: Model, layer: int) -> torch.Tensor:
    import torch

    key = _unit(model.keys(layer))
    if not run.gated:
        return key
    return torch.cat([key, _signed(run, layer, model.ups(layer))], 1) / 2**0.5


def _unit(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.normalize(x.float(), dim=1)


def _signed(run: Run, layer: int, x: torch.Tensor) -> torch.Tensor:
    """Directions in the orientation of their cells."""
    import torch

    signs = torch.from_numpy(run.orientation[run.cells.span(layer)].astype(np.float32))
    return _unit(x) * signs[:, None].to(x.device)


# Their plane


def placed(run: Run, read: Read, map: str, seed: int, advance: Callable[[int], None]) -> planes.Side:
    """Every cell on a plane, and how much of the variance the two axes hold."""
    import torch

    with torch.inference_mode():
        sample = _sample(run, read, seed, advance)
        middle = sample.mean(0)
        axes = _axes(sample - middle, seed)
        explained = _share(sample - middle, axes)
        shuffled = _share_shuffled(sample - middle, seed)
        at = np.empty((len(run.cells), 2), np.float32)
        for layer in range(run.layers):
            at[run.cells.span(layer)] = ((read(layer) - middle) @ axes).cpu().numpy()
            advance(1)
        if map == "umap":
            at = _by_umap(run, read, seed)
    return planes.Side(at, explained, shuffled, len(sample))


def _sample(run: Run, read: Read, seed: int, advance: Callable[[int], None]) -> torch.Tensor:
    """The vectors of all cells or, if they are too many, of a random sample of every layer."""
    import torch

    random = np.random.default_rng(seed)
    found = []
    for layer in range(run.layers):
        x = read(layer)
        most = min(SAMPLE_CELLS, SAMPLE_BYTES // (4 * x.shape[1]))
        if most < len(run.cells):
            chosen = random.choice(len(x), min(len(x), max(1, most * len(x) // len(run.cells))), replace=False)
            x = x[torch.from_numpy(np.sort(chosen)).to(x.device)]
        found.append(x)
        advance(1)
    return torch.cat(found)


def _axes(x: torch.Tensor, seed: int) -> torch.Tensor:
    """[size, 2] the two principal axes of centred vectors. Of an axis and its negative, the one whose largest entry is positive."""
    import torch

    if x.shape[1] <= EXACT:
        _, found = torch.linalg.eigh((x.T @ x).double())
        axes = found[:, -2:].flip(1)
    else:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            _, _, axes = torch.svd_lowrank(x, q=12, niter=8)
        axes = axes[:, :2]
    axes = torch.nn.functional.pad(axes, (0, 2 - axes.shape[1]))
    largest = axes.abs().argmax(0)
    signs = torch.where(axes[largest, torch.arange(2, device=axes.device)] < 0, -1, 1)
    return (axes * signs).to(x.dtype)


def _share_shuffled(x: torch.Tensor, seed: int) -> tuple[float, float]:
    """What the two axes would hold if every coordinate were dealt out over the cells: nothing but chance is left between them."""
    import torch

    random = np.random.default_rng(seed + 1)
    dealt = np.ascontiguousarray(x.cpu().numpy().T)
    for coordinate in dealt:
        random.shuffle(coordinate)
    mixed = torch.from_numpy(dealt).to(x.device).T
    return _share(mixed, _axes(mixed, seed))


def _share(x: torch.Tensor, axes: torch.Tensor) -> tuple[float, float]:
    """The share of the variance of centred vectors that each axis holds. Axes fit the vectors that they come from best, so the
    share of the cells and that of the null are both taken over what their axes come from."""
    along = (x @ axes).double().square().sum(0) / x.double().square().sum().clamp_min(1e-30)
    return float(along[0]), float(along[1])


def _by_umap(run: Run, read: Read, seed: int) -> Floats:
    """Every cell where UMAP puts it: cells whose vectors have a large cosine lie near each other."""
    every = np.concatenate([read(layer).cpu().numpy() for layer in range(run.layers)])
    placed: Floats = _umap().UMAP(n_components=2, metric="cosine", random_state=seed).fit_transform(every)
    return placed


ANALYSIS = Analysis(
    name="plane",
    question="Which cells have values, or keys, that point the same way?",
    part=VALUES,
    method="Fills no table. It stores two coordinates of every value and of every key, which the explorer draws as a map. Vectors are "
    "directions (length 1) in the cell's orientation; a gated cell's key is its gate and its up row one after the other. The "
    "axes are the first two principal components, centred, over all cells or, of more than 131,072 or than 512 MiB of vectors, a random sample (`--seed`); of an "
    "axis and its negative, the one whose largest entry is positive. Beside it: the share of the variance of these cells that the "
    "two axes hold, and the share that they would hold if every coordinate were dealt out over the cells. If the two shares are alike, the "
    "map shows nothing. Norms before the layer are not folded in. With `--map umap`, cells lie where UMAP (cosine, the same seed) "
    "puts them; the shares are still those of the principal components.",
    needs=("model", "map", "seed", "begin"),
    fill=fill,
    is_filled=lambda run: planes.of(run) is not None,
)
