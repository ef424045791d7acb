"""What is asked of a text: its tokens, a position, the token that effects are on, edits. Checked here, once for all readings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import KeyholeError, ModelError, UsageError
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Batch, Model
from ..store.run import Run


@dataclass(frozen=True)
class Asked:
    """One position of a text, with edits."""

    ids: list[int]
    """the text's own tokens, all of them"""
    position: int
    batch: Batch
    """the tokens up to the position: what follows cannot reach it"""
    token: int | None
    """None: the predicted one"""
    edits: list[Edit]

    @property
    def column(self) -> Tensor:
        """The column of the batch that the position is in."""
        return torch.tensor([self.batch.n_special + self.position])


def ask(model: Model, text: str, position: int | None, token: str | None, edits: Iterable[Edit], bos: bool) -> Asked:
    if model.split:
        raise UsageError("A prompt needs the model on one device: load it with device='cuda' or 'cpu', not split.")
    edits = intervene.check(edits, model)
    check_text(text)
    (ids,) = model.tokenize([text])
    position = _position(model, text, ids, position, bos)
    check_positions(edits, len(ids))
    return Asked(ids, position, model.batch([ids[: position + 1]], bos=bos), _token(model, token), edits)


def check_run(run: Run, model: Model) -> None:
    """Refuse a run with other cells than the model's."""
    if run.cells != model.cells:
        raise UsageError(
            f"{run.path} is a run of another model: it has {run.cells.summary}, and {model.source} has {model.cells.summary}."
        )


def window(run: Run, model: Model, text: str) -> list[int]:
    """The tokens of a text that is read as a unit of the run's corpus. Refuse one that is empty or longer than a window."""
    check_run(run, model)
    check_text(text)
    (ids,) = model.tokenize([text])
    if not ids:
        raise UsageError("The text is empty: type a few words.")
    if len(ids) > run.room:
        raise UsageError(
            f"The text has {len(ids):,} tokens, and one window of this run holds {run.room:,}. Shorten the text."
        )
    return ids


def check_text(text: str) -> None:
    """Refuse lone surrogates (half characters): JSON and Python's strings can hold them, tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"Character {error.start} of the text is U+{ord(text[error.start]):04X}, half of a character. Take it out."
        ) from None


def _position(model: Model, text: str, ids: list[int], position: int | None, bos: bool) -> int:
    if not ids:
        raise UsageError(f"The text {text!r} has no tokens." if text else "The text is empty.")
    if position is None:
        position = len(ids) - 1
    elif not 0 <= position < len(ids):
        raise UsageError(f"There is no position {position}: the text has {len(ids)} tokens, 0 to {len(ids) - 1}.")
    most, length = model.max_context, position + 1 + int(bos and model.bos_id is not None)
    if most is not None and length > most:
        raise UsageError(
            f"The text up to position {position} is {length} tokens long with its start token; {model.source} was built for "
            f"{most}. Shorten it, or choose an earlier position."
        )
    return position


def _token(model: Model, token: str | None) -> int | None:
    found = None if token is None else model.vocabulary.find(token)
    output = model.lm.get_output_embeddings()
    if found is not None and output is not None and found >= len(output.weight):
        raise UsageError(f"The token {token!r} is one the model cannot predict: its head has no row for it.")
    return found


def beyond(edit: Edit, length: int) -> str | None:
    """Why an edit cannot act on a text of this length, in tokens; None if it can."""
    if not edit.positions or edit.positions[-1] < length:
        return None
    return f"{edit.address} is edited at position {edit.positions[-1]}, but the text has {length} tokens, 0 to {length - 1}."


def check_positions(edits: Sequence[Edit], length: int) -> None:
    """Refuse an edit at a position that a text of this length does not have."""
    for edit in edits:
        if problem := beyond(edit, length):
            raise UsageError(problem)


def check_finite(model: Model, last: Tensor, *, edited: bool) -> None:
    """Refuse last residuals with numbers that overflowed."""
    if not bool(torch.isfinite(last).all()):
        raise not_finite(model, edited=edited)


def not_finite(model: Model, *, edited: bool) -> KeyholeError:
    """The error for numbers that overflowed: because of the edits, or without them."""
    if edited:
        return UsageError("With these edits the model's numbers are not finite any more. Use smaller scales.")
    return ModelError(
        f"{model.source} gives numbers that are not finite in {str(model.dtype).removeprefix('torch.')}. Load it in a wider "
        "type: dtype='float32', or bfloat16 instead of float16."
    )
