"""Help texts: a list of commands in whole sentences, and options that name the analyses. The records are read when the help is asked
for, so that no command waits for them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

SENTENCE = 1000
"""Longer than any first sentence."""


class Sentences(TyperGroup):
    """A list of commands, each with the whole first sentence of its help; the library's own cuts it at the end of a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, each.get_short_help_str(SENTENCE)) for name, each in found.items() if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class FromRecords(TyperCommand):
    """A command in whose help {steps}, {held_out} and {cells} stand for the names of analyses."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from ..analyses import registry

        listed = registry.analyses()
        words = {
            "steps": ", ".join(registry.steps()),
            "held_out": _and([each.name for each in listed if each.needs_held_out]),
            "cells": _and([each.name for each in listed if "cells" in each.needs]),
        }
        options: list[Any] = [each for each in self.params if getattr(each, "help", None)]
        written = [(each, str(each.help)) for each in options]
        try:
            for parameter, text in written:
                parameter.help = text.format(**words)
            super().format_help(ctx, formatter)
        finally:
            for parameter, text in written:
                parameter.help = text


def _and(names: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
