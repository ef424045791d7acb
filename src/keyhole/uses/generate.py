"""A prompt, continued token by token: without edits, and with them beside it.

Greedy (temperature 0), or sampled with a seed. Sampling adds Gumbel noise to logits / temperature and takes the largest: this
draws from the softmax exactly. The noise depends on the seed and on how many tokens were made before, on nothing else, so both
sides get the same noise at the same step. Their tokens then differ only if the edits changed the logits enough, and a
continuation is the same every time.

An edit without positions acts on every token, new ones included. One with positions acts on those tokens of the text only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..common.checks import whole
from ..errors import UsageError
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from ..models.patches import without_readbacks
from .asked import check_positions, check_text, not_finite

LENGTH = 40
MOST_SEED = 2**53 - 1
"""The largest seed: JSON and JavaScript have no larger whole number."""
MOST_TEMPERATURE = 100.0

Side = Literal["original", "edited"]
End = Literal["token", "length", "context"]


@dataclass(frozen=True)
class Piece:
    """A token, readable. A special token is one that the tokenizer lists as such: a start, an end, the mark of a turn."""

    token: int
    piece: str
    special: bool


@dataclass(frozen=True)
class Step(Piece):
    """A token that was made."""

    side: Side
    p: float
    """its probability, by the model (temperature 1)"""
    end: End | None
    """why this side ends with it: an end token, the length asked for, or the model's context is full; None: it goes on"""


@dataclass(frozen=True)
class Generated:
    """A continuation, and the tokens it continues; `edited` is None if there were no edits."""

    prompt: list[Piece]
    original: list[Step]
    edited: list[Step] | None

    @property
    def differs(self) -> int | None:
        """The first token that differs between the sides, counted from 0."""
        sides = [[step.token for step in side] for side in (self.original, self.edited or self.original)]
        longest = max(map(len, sides))
        return next((at for at in range(longest) if sides[0][at : at + 1] != sides[1][at : at + 1]), None)


def generate(
    model: Model,
    text: str,
    *,
    edits: Iterable[Edit] = (),
    length: int = LENGTH,
    temperature: float = 0.0,
    seed: int = 0,
    chat: bool = False,
    bos: bool = True,
) -> Generated:
    """Continue a text by at most `length` tokens; with edits, once without and once with them.

    `chat` formats the text as a user's turn, by the tokenizer's chat template. `bos` puts the model's start token before a text
    that is not formatted. The edits act on this call only. `stream` gives the same, token by token.
    """
    prompt, steps = stream(
        model, text, edits=edits, length=length, temperature=temperature, seed=seed, chat=chat, bos=bos
    )
    made: dict[Side, list[Step]] = {"original": [], "edited": []}
    for step in steps:
        made[step.side].append(step)
    return Generated(prompt, made["original"], made["edited"] or None)


def stream(
    model: Model,
    text: str,
    *,
    edits: Iterable[Edit] = (),
    length: int = LENGTH,
    temperature: float = 0.0,
    seed: int = 0,
    chat: bool = False,
    bos: bool = True,
) -> tuple[list[Piece], Iterator[Step]]:
    """The tokens that are continued, and the new ones as they are made: the sides take turns, the original first.

    The arguments are checked at once. The model is held only while a token is computed, so others may use it in between.
    """
    if model.split:
        raise UsageError(
            "A continuation needs the model on one device: load it with device='cuda' or 'cpu', not split."
        )
    edits = intervene.check(edits, model)
    length = whole("length", length, 1, 1 << 20)
    seed = whole("seed", seed, 0, MOST_SEED)
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature <= MOST_TEMPERATURE:  # NaN fails this comparison too
        raise UsageError(
            f"The temperature is {temperature!r:.60}; it must be a number from 0 (greedy) to {MOST_TEMPERATURE:g}."
        )
    ids, n_before = _start(model, text, edits, chat, bos)
    if model.max_context is not None and len(ids) > model.max_context:
        raise UsageError(
            f"The text is {len(ids)} tokens long with its special tokens; {model.source} was built for {model.max_context}. "
            "Shorten it."
        )
    sampler = _Sampler(temperature, seed)
    sides = [_Continued(model, ids, "original", (), n_before, length, sampler)]
    if edits:
        sides.append(_Continued(model, ids, "edited", tuple(edits), n_before, length, sampler))
    return [_piece(model, token) for token in ids], _turns(sides)


def _turns(sides: list[_Continued]) -> Iterator[Step]:
    while sides:
        for side in list(sides):
            step = side.next()
            if step.end:
                sides.remove(side)
            yield step


# The text as tokens


def has_chat(model: Model) -> bool:
    """Whether its tokenizer has a chat template."""
    return bool(getattr(model.tokenizer, "chat_template", None))


def _start(model: Model, text: str, edits: list[Edit], chat: bool, bos: bool) -> tuple[list[int], int]:
    """The tokens to continue, and how many of them are before the text's own first."""
    check_text(text)
    (own,) = model.tokenize([text])
    if not own:
        raise UsageError(f"The text {text!r} has no tokens." if text else "The text is empty.")
    check_positions(edits, len(own))
    if not chat:
        batch = model.batch([own], bos=bos)
        return batch.ids[0].tolist(), batch.n_special
    ids, n_before = _as_turn(model, text, own)
    model.check_ids(max(ids))
    placed = next((edit for edit in edits if edit.positions is not None), None)
    if placed and ids[n_before : n_before + len(own)] != own:
        raise UsageError(
            f"{placed.address} is edited at chosen positions, and the chat template reads the text as other tokens than those "
            "of the prompt. Edit it everywhere, or leave the template out."
        )
    return ids, n_before


def _as_turn(model: Model, text: str, own: list[int]) -> tuple[list[int], int]:
    """The text as a user's turn, and where it begins. Special tokens that are spelled out in it count as such, as they do in
    transformers."""
    if not has_chat(model):
        raise UsageError(f"The tokenizer of {model.source} has no chat template. Continue the text as it is.")
    marked = _templated(model, MARK)
    rendered = _templated(model, text)
    encoded = model.tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    ids = [int(token) for token in encoded["input_ids"]]
    begin = marked.find(MARK)
    n_before = next((at for at, (start, _) in enumerate(encoded["offset_mapping"]) if start >= begin), len(ids))
    return ids, n_before


MARK = "⟦text⟧"
"""Stands for the text, to see where a template puts it."""


def _templated(model: Model, text: str) -> str:
    turn = [{"role": "user", "content": text}]
    try:
        return str(model.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # a template is a program of its own and can fail in any way
        raise UsageError(
            f"The chat template of {model.source} failed: {str(error)[:300] or type(error).__name__}. Continue the text as it is."
        ) from error


def _piece(model: Model, token: int) -> Piece:
    return Piece(token, model.vocabulary.piece(token), _is_special(model, token))


def _is_special(model: Model, token: int) -> bool:
    added = model.tokenizer.added_tokens_decoder.get(token)
    return bool(added is not None and added.special)


def _ends(model: Model) -> frozenset[int]:
    """The end tokens: those of the model's generation settings, and the tokenizer's."""
    settings = getattr(model.lm, "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    found = [*(named if isinstance(named, (list, tuple)) else [named]), model.tokenizer.eos_token_id]
    return frozenset(int(token) for token in found if token is not None)


# One token after another


class _Sampler:
    """Chooses a token from logits; the same noise for the same step."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature, self.seed = temperature, seed

    def __call__(self, logits: np.ndarray[Any, Any], step: int) -> int:
        if self.temperature:
            noise = np.random.default_rng([self.seed, step]).gumbel(size=len(logits))
            with np.errstate(over="ignore"):  # a tiny temperature: all but the largest become −∞
                logits = (logits - logits.max()) / self.temperature + noise
        return int(logits.argmax())  # of equals the first, as torch


class _Continued:
    """One side: the model with its edits, and a cache of the tokens it has run."""

    def __init__(
        self,
        model: Model,
        ids: list[int],
        side: Side,
        edits: tuple[Edit, ...],
        n_before: int,
        length: int,
        sampler: _Sampler,
    ) -> None:
        self.model, self.side, self.edits, self.n_before, self.length = model, side, edits, n_before, length
        self.sampler, self.ends = sampler, _ends(model)
        self.ids, self.given = ids, len(ids)
        self.cache: Any = None

    def next(self) -> Step:
        """Run the tokens that were not run yet, and choose the next one."""
        done = 0 if self.cache is None else len(self.ids) - 1
        logits = self._logits(torch.tensor([self.ids[done:]])).double().cpu().numpy()
        if not np.isfinite(logits).all():
            raise not_finite(self.model, edited=bool(self.edits))
        made = len(self.ids) - self.given
        token = self.sampler(logits, made)
        end: End | None = None
        if token in self.ends:
            end = "token"
        elif made + 1 == self.length:
            end = "length"
        elif len(self.ids) == self.model.max_context:
            end = "context"
        p = math.exp(logits[token] - np.logaddexp.reduce(logits))
        self.ids = [*self.ids, token]
        found = _piece(self.model, token)
        return Step(found.token, found.piece, found.special, self.side, p, end)

    @torch.inference_mode()
    def _logits(self, ids: Tensor) -> Tensor:
        """[vocabulary] what the model predicts after these tokens and those in the cache."""
        model = self.model
        with intervene.applied(model, self.edits, self.n_before), without_readbacks():
            seen = model.lm(
                input_ids=ids.to(model.device), past_key_values=self.cache, use_cache=True, logits_to_keep=1
            )
        self.cache = seen.past_key_values
        logits: Tensor = seen.logits[0, -1]
        return logits
