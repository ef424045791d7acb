"""A prompt as a Python program: what the page shows, in the reader's own session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..store.run import Run

if TYPE_CHECKING:
    from ..models.intervene import Edit
    from ..models.model import Model


def program(run: Run, model: Model, text: str, position: int | None, token: str | None, edits: Iterable[Edit]) -> str:
    """A program that loads the model and reads the prompt. Every string in it is a literal: text cannot become code."""
    config = run.manifest["config"]
    options: dict[str, Any] = {"dtype": str(config["dtype"]), "revision": model.revision}
    if model.control is not None:
        options |= {"control": model.control.kind, "control_seed": model.control.seed}
    if model.edits:
        options["edits"] = [each.to_json() for each in model.edits]
    load = [repr(model.source), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
    asked = {"position": position, "token": token, "bos": bool(config["bos"])}
    changed = [f"        {_edit(each)}," for each in edits]
    lines = [
        "import keyhole",
        "",
        f"model = keyhole.load({', '.join(load)})",
        "view = keyhole.prompt.read(",
        "    model,",
        f"    {text!r},",
        *(f"    {name}={value!r}," for name, value in asked.items() if value is not None),
        *(["    edits=[", *changed, "    ],"] if changed else []),
        *([f"    run=keyhole.open({str(run.path.resolve())!r}),  # the signs of its cells"] if run.gated else []),
        ")",
        "for piece, p in view.prediction:",
        '    print(f"{p:7.2%} {piece!r}")',
    ]
    return "\n".join(lines) + "\n"


def _edit(edit: Edit) -> str:
    optional = {name: getattr(edit, name) for name in ("positions", "value", "towards", "by")}
    more = "".join(f", {name}={value!r}" for name, value in optional.items() if value is not None)
    return f"keyhole.Edit(layer={edit.layer}, cell={edit.cell}, scale={edit.scale!r}{more})"
