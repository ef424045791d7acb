"""The requests that need the model: read a prompt, continue it, try a key on a text, save and load edits. The model is loaded for the first
of them.

One thread does this work: requests never share a forward pass, and the server goes on answering others. A continuation is made
token by token, and each token waits for its turn, so prompts are read in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import KeyholeError, UsageError
from ..searching.sets import cells_of
from ..store.run import Run
from ..views.text import model_name
from . import schema
from .answers import Refused
from .pack import short
from .program import program
from .schema import LIMITS

if TYPE_CHECKING:
    from ..models.intervene import Edit, Sorted
    from ..models.model import Model
    from ..uses.generate import Piece, Step

WAITING = 8
"""Upper bound on the prompts that are being read or wait for it."""
GENERATING = 4
"""Upper bound on the continuations that are being made."""
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
        self._inside = self._generating = 0

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
        chat = None
        if self._model is not None:
            from ..uses.generate import has_chat

            chat = has_chat(self._model)
        return schema.Status(model_name(self.run), self._model is not None, chat, self.limits)

    async def prompt(self, asked: dict[str, Any]) -> schema.Prompt:
        """A text, read through the model as `keyhole.prompt.read` does. Edits that are not possible are left out, and said."""
        where, edits = self._asked(asked, schema.AskPrompt), self._edits(asked)

        def work() -> schema.Prompt:
            sorted_out = self._sorted(where["text"], edits)
            view = self._reader()(self._loaded(), **where, edits=sorted_out.possible, bos=self._bos, run=self.run)
            found = msgspec.convert(view if isinstance(view, dict) else view.to_json(), schema.Prompt)
            return msgspec.structs.replace(found, problems=_problems(sorted_out))

        return await self._do(work)

    async def ablation(self, asked: dict[str, Any]) -> schema.Ablation:
        """Cells switched off, each on its own, as `keyhole.prompt.ablate` does."""
        where, edits = self._asked(asked, schema.AskAblation), self._edits(asked)
        cells, everywhere = asked.get("cells"), asked.get("everywhere", False)
        if not isinstance(cells, list) or not cells:
            raise _wrong("'cells' must be a list of at least one [layer, cell].")
        if len(cells) > schema.ABLATED:
            raise _too_long("ablated", "cells", len(cells), schema.ABLATED)
        if not isinstance(everywhere, bool):
            raise _wrong("'everywhere' must be true or false.")
        for each in cells:
            if not (isinstance(each, list) and len(each) == 2 and all(type(one) is int for one in each)):
                raise _wrong(f"A cell is [layer, cell], two whole numbers; this is {each!r:.60}.")

        def work() -> schema.Ablation:
            from ..uses.prompt import ablate

            total = len(cells) * self._short_enough(where["text"])
            if everywhere and total > self.limits.positions:
                raise _too_long("positions", "tokens, cells × tokens of the text,", total, self.limits.positions)
            possible = self._sorted(where["text"], edits).possible
            found = ablate(self._loaded(), **where, cells=cells, edits=possible, everywhere=everywhere, bos=self._bos)
            lost = [schema.Ablated(one.layer, one.cell, short(one.logit), short(one.log_p)) for one in found.cells]
            return schema.Ablation(found.piece, short(found.logit), short(found.p), everywhere, lost)

        return await self._do(work)

    async def layers(self, asked: dict[str, Any]) -> schema.LayerEffects:
        """What each layer does at every position, as `keyhole.prompt.by_layer` finds it."""
        where, edits = self._asked(asked, schema.AskLayers), self._edits(asked)

        def work() -> schema.LayerEffects:
            from ..uses.prompt import by_layer

            possible = self._sorted(where["text"], edits).possible
            found = by_layer(self._loaded(), where["text"], edits=possible, bos=self._bos)
            return msgspec.convert(found.to_json(), schema.LayerEffects)

        return await self._do(work)

    async def python(self, asked: dict[str, Any]) -> schema.PythonCode:
        """A prompt as a program that reads it."""
        where, edits = self._asked(asked, schema.AskPrompt), self._edits(asked)

        def work() -> schema.PythonCode:
            possible = self._sorted(where["text"], edits).possible
            return schema.PythonCode(program(self.run, self._loaded(), edits=possible, **where))

        return await self._do(work)

    async def try_key(self, asked: dict[str, Any]) -> schema.Tried:
        """One cell's coefficient at every token of a text."""
        _only(asked, *schema.AskTry.__struct_fields__)
        text, layer, cell = self._text(asked), asked.get("layer"), asked.get("cell")
        if type(layer) is not int or type(cell) is not int:
            raise _wrong("'layer' and 'cell' must be whole numbers.")
        if not self.run.cells.has(layer, cell):
            raise _wrong(f"There is no cell {cell} in layer {layer}: {self.run.cells.extent(layer)}.")

        def work() -> schema.Tried:
            self._short_enough(text)
            from ..uses.trying import try_key

            found = try_key(self.run, self._loaded(), layer, cell, text)
            return schema.Tried(layer, cell, found.tokens, [short(m) for m in found.coefficients])

        return await self._do(work)

    async def generate(self, asked: dict[str, Any]) -> Generation:
        """A text, continued as `keyhole.generate` does. The first token is there when this returns: what cannot be is refused
        before the answer begins."""
        _only(asked, *schema.AskGenerate.__struct_fields__)
        text, edits, chat = self._text(asked), self._edits(asked), asked.get("chat", False)
        if not isinstance(chat, bool):
            raise _wrong("'chat' must be true or false.")
        length = asked.get("length", 40)
        if type(length) is int and length > self.limits.generated_tokens:
            raise _too_long("generated_tokens", "tokens", length, self.limits.generated_tokens)
        temperature, seed = asked.get("temperature", 0.0), asked.get("seed", 0)
        if self._generating >= GENERATING:
            message = "Too many texts are being continued. Try again in a moment."
            raise Refused(429, "busy", message, Retry_After="5")

        def begin() -> tuple[list[Piece], Iterator[Step], Step]:
            self._short_enough(text)
            from ..models.intervene import parse
            from ..uses.generate import stream

            options: dict[str, Any] = {"length": length, "temperature": temperature, "seed": seed, "chat": chat}
            prompt, steps = stream(self._loaded(), text, edits=parse(edits), bos=self._bos, **options)
            return prompt, steps, next(steps)

        self._generating += 1
        try:
            return Generation(self, *await self._do(begin))
        except BaseException:
            self._generating -= 1
            raise

    async def nearest(self, asked: dict[str, Any]) -> schema.Nearest:
        """The cells nearest to a text."""
        _only(asked, "text")
        text = self._text(asked)

        def work() -> schema.Nearest:
            self._short_enough(text)
            from ..uses.nearest import nearest

            found = nearest(self.run, self._loaded(), text)
            address = self.run.cells.address
            keys, values = (
                [schema.Near(address(place), short(x, 4)) for place, x in each] for each in (found.keys, found.values)
            )
            return schema.Nearest(found.tokens, keys, values)

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

    async def load_edits(self, asked: dict[str, Any]) -> schema.LoadedEdits:
        """The edits of a file that `keyhole.load(edits=…)` takes. Those of another model are refused; one that is not possible is
        left out, and said."""
        _only(asked, *schema.AskLoad.__struct_fields__)
        text = asked.get("file")
        if not isinstance(text, str):
            raise _wrong("'file' must be a string: the text of the file.")

        def work() -> schema.LoadedEdits:
            from ..models import intervene

            name = "The file of edits"
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{name} is no JSON: {error}.") from None
            given, problems = intervene.unpack(value, self._loaded(), name), dict[int, str]()
            listed = intervene.spread(given, self.run.cells, self._cells_of, most=self.limits.edits, problems=problems)
            self._edits({"edits": [one.value for one in listed] if isinstance(listed, list) else listed})
            found = intervene.sort_out(listed, self._loaded(), self._too_far)
            found.problems.update(problems)
            return schema.LoadedEdits([schema.Edit(**edit.to_json()) for edit in found.possible], _problems(found))

        return await self._do(work)

    def _cells_of(self, name: str) -> list[int]:
        """The places of a set of cells of this run."""
        return cells_of(self.run, name)

    def _too_far(self, edit: Edit) -> str | None:
        """Why an edit has a position that no prompt has; None if it has none."""
        most = self.limits.prompt_tokens
        if not edit.positions or edit.positions[-1] < most:
            return None
        return f"{edit.address} is edited at position {edit.positions[-1]}, and a prompt has at most {most} tokens."

    def _asked(self, asked: dict[str, Any], kind: type[schema.Record]) -> dict[str, Any]:
        """The text, and the position and the token if this kind of request has them."""
        _only(asked, *kind.__struct_fields__)
        text, position, token = self._text(asked), asked.get("position"), asked.get("token")
        if "position" not in kind.__struct_fields__:
            return {"text": text}
        if not (position is None or type(position) is int):
            raise _wrong("'position' must be a whole number, or null for the last token.")
        if not (token is None or isinstance(token, str)):
            raise _wrong("'token' must be a string, or null for the model's own choice.")
        return {"text": text, "position": position, "token": token}

    def _text(self, asked: dict[str, Any]) -> str:
        text = asked.get("text")
        if not isinstance(text, str):
            raise _wrong("'text' must be a string.")
        if not text:
            raise _wrong("The text is empty: type a few words.")
        if len(text) > self.limits.prompt_characters:
            raise _too_long("prompt_characters", "characters", len(text), self.limits.prompt_characters)
        return text

    def _short_enough(self, text: str) -> int:
        """The number of its tokens, if they are not too many."""
        length = len(
            self.run.vocabulary.encode([text])[0]
        )  # as the model reads it: special tokens that are spelled out are text
        if length > self.limits.prompt_tokens:
            raise _too_long("prompt_tokens", "tokens", length, self.limits.prompt_tokens)
        return length

    def _sorted(self, text: str, edits: list[Any]) -> Sorted:
        """The edits that the model and the text have room for, and what is wrong with the others."""
        from ..models.intervene import parse, sort_out
        from ..uses.asked import beyond

        length = self._short_enough(text)
        return sort_out(parse(edits), self._loaded(), lambda edit: beyond(edit, length))

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
            return await self._soon(work)
        finally:
            self._inside -= 1

    async def _soon(self, work: Callable[[], _Made]) -> _Made:
        """Do work in the model's thread, after the work that waits already."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except UsageError as error:
            raise _wrong(str(error)) from None

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


class Generation:
    """A continuation that is being made. Nothing is computed beyond the token that is asked for."""

    def __init__(self, live: Live, prompt: list[Piece], steps: Iterator[Step], first: Step) -> None:
        self._live, self._prompt, self._steps, self._first = live, prompt, steps, first
        self._closed = False

    async def lines(self) -> AsyncIterator[schema.GenerateLine]:
        """The prompt, then each token when it is made. A request that fails here has begun to answer: the error is its last line."""
        yield schema.GenerateLine(prompt=[schema.PromptPiece(each.piece, each.special) for each in self._prompt])
        step: Step | None = self._first
        while step is not None:
            token = schema.GeneratedToken(step.side, step.piece, step.special, float(f"{step.p:.5g}"), step.end)
            yield schema.GenerateLine(token=token)
            try:
                step = await self._live._soon(lambda: next(self._steps, None))
            except Refused as refused:
                yield schema.GenerateLine(error=refused.error.error)
                return
            except KeyholeError as error:
                yield schema.GenerateLine(error=schema.Problem("not_possible", str(error), {}))
                return

    def close(self) -> None:
        """Make room for another."""
        if not self._closed:
            self._closed = True
            self._live._generating -= 1


def _only(asked: dict[str, Any], *names: str) -> None:
    if unknown := [name for name in asked if name not in names]:
        raise _wrong(f"There is no field {unknown[0]!r:.60} here. The fields are: {', '.join(names)}.")


def _problems(found: Sorted) -> list[schema.EditProblem]:
    return [schema.EditProblem(number, message) for number, message in sorted(found.problems.items())]


def _wrong(message: str) -> Refused:
    return Refused(422, "wrong_value", message)


def _too_long(limit: str, what: str, length: int, most: int) -> Refused:
    detail = {"limit": limit, "most": most, "given": length}
    return Refused(413, "too_long", f"{length:,} {what} are too many; at most {most:,} are taken.", detail=detail)
