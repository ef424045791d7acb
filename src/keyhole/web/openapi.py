"""The server's description, OpenAPI 3.1: made from the types of schema/, with the bounds of the run that is served."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import __version__
from . import addresses, schema
from .answers import LINES
from .contract import Explorer
from .served import HEADER

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"
EVERY = ("409", "410")
"""statuses that every operation may answer with"""
POSTED = ("400", "403", "413", "415", "422")
"""statuses that every POST may answer with"""
ERRORS = {
    "400": "The request is not JSON, or has no Host header that can be read.",
    "403": "The request comes from another site.",
    "404": "There is no such cell, layer, token or unit.",
    "409": "Another run has replaced the one this request means. Nothing was saved.",
    "410": "The run is no longer there. Nothing was saved.",
    "413": "The request, the text, the list of edits or their positions are too long.",
    "415": "The request does not say that it is JSON.",
    "422": "A value is not possible; the message says which.",
    "429": "Too many prompts wait already.",
    "500": "The server failed.",
    "503": "The model cannot be loaded, or the tables are being written.",
}


def describe(explorer: Explorer) -> dict[str, Any]:
    """The description of this server."""
    paths: dict[str, Any] = {}
    for name, data in addresses.DATA.items():
        if not explorer.has(name):
            continue
        numbers = "".join(f"/{{{number}}}" for number in data.numbers)
        bounds = dict(zip(data.numbers, explorer.bounds(name), strict=True))
        paths[f"/data/{name}{numbers}.json"] = {"get": _data(data, bounds)}
    for operation in addresses.API:
        paths.setdefault(f"/api/{operation.path}", {})[operation.method] = _api(operation)
    _, schemas = msgspec.json.schema_components(addresses.TYPES, ref_template=REF)
    layers, cells = explorer.bounds("cells")
    _bind(schemas, {"layers": layers, "cells": cells})
    errors = {code: {"description": text} | _json(schema.Error) for code, text in ERRORS.items()}
    run = {
        "name": HEADER,
        "in": "header",
        "required": False,
        "schema": {"const": explorer.run.manifest["checksum"]},
        "description": "The run this request means, by the checksum in data/run.json; if left out, the one served.",
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyhole's explorer",
            "version": __version__,
            "description": "A run's cells, and its model. Every error has one shape.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": errors, "parameters": {"Run": run}},
    }


def _data(data: addresses.Data, bounds: dict[str, int]) -> Schema:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": bound - 1},
        }
        for name, bound in bounds.items()
    ]
    summary = (data.answer.__doc__ or "").partition("\n")[0]
    return _operation(summary, data.answer, ["503", *(["404"] if bounds else [])], parameters)


def _api(operation: addresses.Operation) -> Schema:
    if operation.asked is None:
        return _operation(operation.summary, operation.answer, ["503", *operation.errors])
    found = _operation(operation.summary, operation.answer, [*POSTED, *operation.errors])
    if operation.streamed:
        line = found["responses"]["200"]["content"].pop("application/json")
        found["responses"]["200"] = {"description": "Lines of JSON.", "content": {LINES: line}}
    if operation.media:
        binary = {"schema": {"type": "string", "format": "binary"}}
        found["responses"]["200"] = {"description": "A file.", "content": {operation.media: binary}}
    return found | {"requestBody": {"required": True} | _json(operation.asked)}


def _operation(
    summary: str, answer: type[schema.Record], errors: list[str], parameters: list[Schema] | None = None
) -> Schema:
    responses: Schema = {"200": {"description": "The answer."} | _json(answer)}
    responses |= {code: {"$ref": f"#/components/responses/{code}"} for code in sorted({*errors, *EVERY})}
    shared = {"$ref": "#/components/parameters/Run"}
    return {"summary": summary, "parameters": [*(parameters or []), shared], "responses": responses}


def _json(made: type[schema.Record]) -> Schema:
    return {"content": {"application/json": {"schema": {"$ref": REF.format(name=made.__name__)}}}}


def _bind(value: Any, bounds: dict[str, int]) -> None:
    """Replace each `x-below` by the bound of this run."""
    if isinstance(value, dict):
        if (below := value.pop("x-below", None)) is not None:
            value["maximum"] = bounds[below] - 1
        for each in value.values():
            _bind(each, bounds)
    elif isinstance(value, list):
        for each in value:
            _bind(each, bounds)
