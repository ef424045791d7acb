"""What the server answers, described: data/… and api/… as OpenAPI 3.1, with the bounds of the run that is served."""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..store.annotations import DESCRIPTION, LEAST, NOTE, PATTERNS
from .contract import Explorer
from .live import LIMITS
from .served import HEADER

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": ["number", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
ADDRESS: Schema = {"type": "string", "pattern": "^L[0-9]+\\.[0-9]+$"}


def listed(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def row(*items: Schema) -> Schema:
    """An array of so many items, of these kinds. (`prefixItems` would say in which order; tools stumble over it.)"""
    kinds = [kind for i, kind in enumerate(items) if kind not in items[:i]]
    return listed(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}, minItems=len(items), maxItems=len(items))


def made(properties: dict[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    """An object of these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def mapping(values: Schema, names: str | None = None) -> Schema:
    found: Schema = {"type": "object", "additionalProperties": values}
    return found | {"propertyNames": {"pattern": names}} if names else found


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def describe(explorer: Explorer) -> dict[str, Any]:
    """The description of this server."""
    run, search = explorer.run, explorer.search

    def below(limit: int) -> Schema:
        return {"type": "integer", "minimum": 0, "maximum": limit - 1}

    layer, cell = below(run.layers), below(max(run.cells.size(layer) for layer in range(run.layers)))
    data = {
        "run": ("What was scanned.", _about(), {}),
        "map": ("Every cell, a byte a measure.", _map(), {}),
        "figures": ("The paper's figures for this model.", _figures(), {}),
        "vocabulary": ("The tokens, by their numbers.", made({"pieces": listed(STRING)}), {}),
        "annotations": ("What people found, and their notes.", ref("Annotations"), {}),
        "layers/{layer}": ("The cells of a layer, a column a measure.", _layer(), {"layer": layer}),
        "cells/{layer}/{cell}": ("A cell.", ref("Cell"), {"layer": layer, "cell": cell}),
        "tokens/{page}": ("Whose values promote and demote 64 tokens.", _tokens(), {"page": below(search.token_pages)}),
        "words/{bucket}": ("Units with triggers, by word.", _words(), {"bucket": below(search.buckets)}),
        "units/{page}": ("64 units: their text and whose triggers.", _units(), {"page": below(search.unit_pages)}),
    }
    paths: dict[str, Any] = {f"/data/{path}.json": {"get": _get(*about)} for path, about in data.items()}
    paths["/api/status"] = {"get": _get("Whether the model is loaded, and what a prompt may be.", _status(), {})}
    paths["/api/annotations"] = {
        "get": _get("What people found, and their notes.", ref("Annotations"), {}),
        "post": _post(
            "Save what one annotator says of one cell; the newest counts.",
            ref("Annotation"),
            made({"saved": {"const": True}, "annotation": ref("Annotation")}),
        ),
    }
    paths["/api/notes"] = {
        "post": _post(
            "Save a note on a cell; an empty one takes it away.",
            ref("Note"),
            made({"saved": {"const": True}, "note": ref("Note")}),
        )
    }
    paths["/api/prompt"] = {
        "post": _post("Read a text through the model.", ref("Ask"), ref("Prompt"), "413", "429", "500", "503")
    }
    asked = made({"edits": ref("Edits")})
    paths["/api/edits"] = {
        "post": _post("Edits as the file that keyhole.load takes.", asked, ref("EditsFile"), "413", "429", "503")
    }
    for operations in paths.values():
        for operation in operations.values():
            operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/Run"})
            operation["responses"] |= {code: _refused(code) for code in ("409", "410")}
    named = {"name": HEADER, "in": "header", "required": False, "schema": {"const": run.manifest["checksum"]}}
    named["description"] = "The run this request means, by the checksum in data/run.json; if left out, the one served."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Keyhole's explorer",
            "version": __version__,
            "description": "A run's cells, and its model. Every error has one shape.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(layer, cell), "responses": _errors(), "parameters": {"Run": named}},
    }


# Operations


def _get(summary: str, answer: Schema, parameters: dict[str, Schema]) -> Schema:
    found: Schema = {"summary": summary, "responses": {"200": _ok(answer), "503": _refused("503")}}
    if parameters:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name, schema in parameters.items()
        ]
        found["responses"]["404"] = _refused("404")
    return found


def _post(summary: str, asked: Schema, answer: Schema, *more: str) -> Schema:
    codes = sorted({"400", "403", "413", "415", "422", *more})
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {"200": _ok(answer)} | {code: _refused(code) for code in codes},
    }


def _ok(schema: Schema) -> Schema:
    return {"description": "The answer.", "content": {"application/json": {"schema": schema}}}


def _refused(code: str) -> Schema:
    return {"$ref": f"#/components/responses/{code}"}


def _errors() -> Schema:
    said = {
        "400": "The request is no JSON, or has no Host that can be read.",
        "403": "The request comes from another site.",
        "404": "There is no such cell, layer, token or unit.",
        "409": "Another run has taken the place of the one this request means. Nothing was saved.",
        "410": "The run is no longer there. Nothing was saved.",
        "413": "The request, the text, the list of edits or their positions are too long.",
        "415": "The request does not say that it is JSON.",
        "422": "A value cannot be; the message says which.",
        "429": "Too many prompts wait already.",
        "500": "The server failed.",
        "503": "The model cannot be loaded, or the tables are being written.",
    }
    content = {"application/json": {"schema": ref("Error")}}
    return {code: {"description": text, "content": content} for code, text in said.items()}


# What is answered


def _about() -> Schema:
    model = {"name": STRING, "family": STRING, "layers": COUNT, "cells": COUNT, "signed": {"type": "boolean"}}
    counts = ("documents", "units", "tokens", "distinct_prefixes", "scanned_prefixes")
    return made(
        {
            "keyhole": STRING,
            "live": {"type": "boolean"},
            "checksum": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "model": made(model),
            "corpus": made({"sources": listed(STRING), **dict.fromkeys(counts, COUNT)}),
            "config": made({"top": COUNT, "per": STRING, "unit": STRING, "context": COUNT}),
            "lenses": listed(STRING),
            "lens": {"type": ["string", "null"]},
            "shading": {"type": "boolean"},
            "worth": listed(ADDRESS),
            "words": COUNT,
            "dead": COUNT,
        }
    )


def _map() -> Schema:
    measure = {"name": STRING, "title": STRING, "lo": NUMBER, "hi": NUMBER, "scale": {"enum": ["linear", "log"]}}
    kinds = {"kinds": listed(STRING), "data": {"type": "string", "contentEncoding": "base64"}}
    return made({"layers": COUNT, "cells": COUNT, "measures": listed(made(measure | kinds, optional=("kinds",)))})


def _figures() -> Schema:
    verdict = made({"claim": STRING, "verdict": STRING, "why": STRING, "test": STRING})
    texts = ("name", "label", "title", "caption", "note", "finding", "published")
    figure = dict.fromkeys(texts, STRING) | {"spec": {"type": "object"}, "verdicts": listed(verdict)}
    return made({"figures": listed(made(figure))})


def _layer() -> Schema:
    text: Schema = {"type": ["string", "null"]}
    always = {"active": NUMBER, "max": NUMBER, "min": NUMBER, "trigger": text, "last": text, "next": text}
    said = {"promotes": listed(STRING), "agreement": NUMBER, "max_prob": NUMBER, "norm": NUMBER}
    columns = {name: listed(schema) for name, schema in (always | {"dead": {"enum": [0, 1]}} | said).items()}
    return made({"layer": COUNT, "columns": made(columns, optional=tuple(said))})


def _tokens() -> Schema:
    speakers = mapping(listed(row(COUNT, {"type": "number"}, COUNT)), "^[0-9]+$")
    return made({"promoted": speakers, "demoted": speakers})


def _words() -> Schema:
    return made({"words": mapping(listed(COUNT))})


def _units() -> Schema:
    unit = made({"text": STRING, "cells": listed(row(COUNT, COUNT, {"const": -1}) | {"minItems": 2})})
    return made({"units": mapping(unit, "^[0-9]+$")})


def _status() -> Schema:
    return made({"model": STRING, "loaded": {"type": "boolean"}, "limits": made(dict.fromkeys(LIMITS, COUNT))})


def _cell() -> dict[str, Schema]:
    agreement = maybe(made({"token": STRING, "hits": COUNT, "of": COUNT}))
    said = listed(row(STRING, NUMBER))
    value = {"lens": STRING, "norm": NUMBER, "max_prob": NUMBER, "entropy": NUMBER, "promoted": said, "demoted": said}
    value |= {"agreement": agreement, "negative_agreement": agreement, "rank": {"type": ["integer", "null"]}}
    tokens: Schema = {"anyOf": [STRING, listed(STRING)]}
    trigger = row(NUMBER, COUNT, COUNT, COUNT, COUNT, COUNT, tokens, STRING) | {"minItems": 7}
    histogram = made({"edges": row(NUMBER, NUMBER), "counts": listed(COUNT), "n": COUNT})
    stats = {"n": COUNT, "active": COUNT, "mean": NUMBER, "std": NUMBER, "max": NUMBER, "min": NUMBER}
    cell = {
        "address": ADDRESS,
        "layer": COUNT,
        "cell": COUNT,
        "dead": {"type": "boolean"},
        "stats": made(stats),
        "histogram": maybe(histogram),
        "triggers": listed(ref("Trigger")),
        "negative": listed(ref("Trigger")),
        "values": listed(made(value)),
        "similar_keys": listed(row(ADDRESS, COUNT)),
        "similar_values": listed(row(ADDRESS, NUMBER)),
    }
    return {"Cell": made(cell), "Trigger": trigger}


def _prompt() -> Schema:
    predicted = listed(row(STRING, NUMBER))
    one = made({"cell": COUNT, "m": NUMBER, "strength": NUMBER, "effect": NUMBER})
    layer = {
        "layer": COUNT,
        "before": predicted,
        "after": predicted,
        "strongest": listed(one),
        "effective": listed(one),
    }
    chosen = {"piece": STRING, "logit": NUMBER, "p": NUMBER, "original_logit": NUMBER, "original_p": NUMBER}
    return made(
        {
            "tokens": listed(STRING),
            "position": COUNT,
            "token": STRING,
            "edited": {"type": "boolean"},
            "prediction": predicted,
            "original": predicted,
            "chosen": made(chosen),
            "layers": listed(made(layer)),
        }
    )


def _schemas(layer: Schema, cell: Schema) -> Schema:
    """What is answered more than once, and all that can be asked."""
    most = LIMITS["prompt_tokens"]
    positions: Schema = maybe(listed(COUNT | {"maximum": most - 1}, minItems=1, maxItems=most, uniqueItems=True))
    edit = made(
        {"layer": layer, "cell": cell, "scale": {"type": "number"}, "positions": positions}, optional=("positions",)
    )
    pattern: dict[str, Schema] = {
        "triggers": listed(COUNT, minItems=LEAST, uniqueItems=True),
        "description": {"type": "string", "minLength": 1, "maxLength": DESCRIPTION},
        "kind": {"enum": ["shallow", "semantic"]},
    }
    annotation: dict[str, Schema] = {
        "annotator": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"},
        "layer": layer,
        "cell": cell,
        "patterns": listed(ref("Pattern"), maxItems=PATTERNS),
        "skipped": {"type": "boolean"},
    }
    asked: dict[str, Schema] = {
        "text": {"type": "string", "minLength": 1, "maxLength": LIMITS["prompt_characters"]},
        "position": {"type": ["integer", "null"], "minimum": 0},
        "token": {"type": ["string", "null"]},
        "edits": ref("Edits"),
    }
    about: dict[str, Schema] = {"fingerprint": STRING, "layers": COUNT, "cells": COUNT}
    error: dict[str, Schema] = {"code": STRING, "message": STRING, "detail": {"type": "object"}}
    return _cell() | {
        "Error": made({"error": made(error)}),
        "Edit": edit,
        "Edits": listed(ref("Edit"), maxItems=LIMITS["edits"]),
        "EditsFile": made({"keyhole": {"const": 1}, "model": made(about), "edits": listed(ref("Edit"))}),
        "Ask": made(asked, optional=("position", "token", "edits")),
        "Prompt": _prompt(),
        "Pattern": made(pattern),
        "Annotation": made(annotation, optional=("skipped",)),
        "Annotations": made({"annotations": listed(ref("Annotation")), "notes": mapping(STRING, ADDRESS["pattern"])}),
        "Note": made({"layer": layer, "cell": cell, "text": {"type": "string", "maxLength": NOTE}}),
    }
