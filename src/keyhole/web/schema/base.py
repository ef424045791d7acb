"""What the other types are made of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ... import cells

Count = Annotated[int, Meta(ge=0)]
Number = float | None
"""null: the number is not finite, or there is none"""
Address = Annotated[str, Meta(pattern=f"^{cells.ADDRESS.pattern}$")]
Said = tuple[str, Number]
"""a token, with its logit or probability"""
ById = Annotated[str, Meta(pattern="^[0-9]+$")]
"""a token or unit by its number, as a key of an object"""
PatternKind = Literal["shallow", "semantic"]
LayerNumber = Annotated[int, Meta(ge=0, extra_json_schema={"x-below": "layers"})]
"""openapi.py replaces `x-below` by the bound of the run that is served"""
CellNumber = Annotated[int, Meta(ge=0, extra_json_schema={"x-below": "cells"})]


class Record(Struct, forbid_unknown_fields=True):
    """A JSON object of these fields and no others."""


class Row(Struct, array_like=True, forbid_unknown_fields=True):
    """A JSON array of these fields, in this order."""
