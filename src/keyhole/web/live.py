"""The requests that need the model: read a prompt, save edits. The model is loaded for the first of them.

One thread does this work: requests never share a forward pass, and the server goes on answering others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import KeyholeError, UsageError
from ..store.run import Run
from ..views.text import model_name
from . import schema
from .answers import Refused
from .schema import LIMITS

if TYPE_CHECKING:
    from ..models.model import Model

WAITING = 8
"""Upper bound on the prompts that are being read or wait for it."""
Read = Callable[..., Any]
Load = Callable[[Run], "Model"]
_Made = TypeVar("_Made")


class Live:
    """The model of a run, shared by all requests."""

    def __init__(
        self, run: Run, *, model: Model | None = None, read: Read | None = None, load: Load | None = None
    ) -> None:
        self.run, self._model, self._read, self._load = run, model, read, load
        self.limits = msgspec.structs.replace(LIMITS, prompt_tokens=min(LIMITS.prompt_tokens, run.room))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="keyhole-model")
        self._inside = 0

    def of(self, run: Run) -> Live:
        """The same for another run. A loaded model is kept if that run was made with it."""
        model, before = self._model, self.run.manifest["config"]["dtype"]
        if model and (model.fingerprint, before) != (
            run.manifest["model"]["fingerprint"],
            run.manifest["config"]["dtype"],
        ):
            model = None
        return Live(run, model=model, read=self._read, load=self._load)

    def status(self) -> schema.Status:
        return schema.Status(model_name(self.run), self._model is not None, self.limits)

    async def prompt(self, asked: dict[str, Any]) -> schema.Prompt:
        """A text, read through the model as `keyhole.prompt.read` does."""
        _only(asked, *schema.AskPrompt.__struct_fields__)
        text, position, token = asked.get("text"), asked.get("position"), asked.get("token")
        if not isinstance(text, str):
            raise _wrong("'text' must be a string.")
        if len(text) > self.limits.prompt_characters:
            raise _too_long("prompt_characters", "characters", len(text), self.limits.prompt_characters)
        if not (position is None or type(position) is int):
            raise _wrong("'position' must be a whole number, or null for the last token.")
        if not (token is None or isinstance(token, str)):
            raise _wrong("'token' must be a string, or null for the model's own choice.")
        edits = self._edits(asked)

        def work() -> schema.Prompt:
            length = len(self.run.vocabulary.tokenizer.encode(text, add_special_tokens=False).ids)
            if length > self.limits.prompt_tokens:
                raise _too_long("prompt_tokens", "tokens", length, self.limits.prompt_tokens)
            from ..models.intervene import parse

            parsed = parse(edits)
            view = self._reader()(
                self._loaded(), text, position=position, token=token, edits=parsed, bos=self._bos, run=self.run
            )
            return msgspec.convert(view if isinstance(view, dict) else view.to_json(), schema.Prompt)

        return await self._do(work)

    async def edits(self, asked: dict[str, Any]) -> schema.EditsFile:
        """Edits as the file that `keyhole.load(edits=…)` takes."""
        _only(asked, *schema.AskEdits.__struct_fields__)
        if "edits" not in asked:
            raise _wrong("'edits' is missing: a list, which may be empty.")
        edits = self._edits(asked)

        def work() -> schema.EditsFile:
            from ..models.intervene import dump, parse

            saved = dump(parse(edits), self._loaded())
            try:
                return msgspec.convert(saved, schema.EditsFile)
            except msgspec.ValidationError as error:  # a position that no prompt has, however long
                raise _wrong(f"These edits cannot be saved: {error}.") from None

        return await self._do(work)

    def _edits(self, asked: dict[str, Any]) -> list[Any]:
        edits = asked.get("edits", [])
        if not isinstance(edits, list):
            raise _wrong("'edits' must be a list.")
        if len(edits) > self.limits.edits:
            raise _too_long("edits", "edits", len(edits), self.limits.edits)
        total = 0
        for number, edit in enumerate(edits):
            positions = edit.get("positions") if isinstance(edit, dict) else None
            count = len(positions) if isinstance(positions, list) else 0
            if count > self.limits.prompt_tokens:
                raise _too_long("prompt_tokens", f"positions of edit {number}", count, self.limits.prompt_tokens)
            total += count
        if total > self.limits.positions:
            raise _too_long("positions", "positions of all edits together", total, self.limits.positions)
        return edits

    async def _do(self, work: Callable[[], _Made]) -> _Made:
        """Do work in the model's thread. Refused if too many requests wait for it already."""
        if self._inside >= WAITING:
            raise Refused(429, "busy", "Too many prompts wait for the model. Try again in a moment.", Retry_After="2")
        self._inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except UsageError as error:
            raise _wrong(str(error)) from None
        finally:
            self._inside -= 1

    def _loaded(self) -> Model:
        if self._model is None:
            from ..models.rerun import model_of

            try:
                self._model = (self._load or model_of)(self.run)
            except (KeyholeError, OSError) as error:
                raise Refused(503, "no_model", f"The model cannot be loaded: {error}", Retry_After="60") from None
        return self._model

    def _reader(self) -> Read:
        if self._read is None:
            from ..uses.prompt import read

            self._read = read
        return self._read

    @property
    def _bos(self) -> bool:
        return bool(self.run.manifest["config"]["bos"])


def _only(asked: dict[str, Any], *names: str) -> None:
    if unknown := [name for name in asked if name not in names]:
        raise _wrong(f"There is no field {unknown[0]!r:.60} here. The fields are: {', '.join(names)}.")


def _wrong(message: str) -> Refused:
    return Refused(422, "wrong_value", message)


def _too_long(limit: str, what: str, length: int, most: int) -> Refused:
    detail = {"limit": limit, "most": most, "given": length}
    return Refused(413, "too_long", f"{length:,} {what} are too many; at most {most:,} are taken.", detail=detail)
