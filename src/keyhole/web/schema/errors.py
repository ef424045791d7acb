"""Every error has one shape."""

from __future__ import annotations

from typing import Any, Literal

from .base import Record

Code = Literal[
    "bad_host",
    "bad_json",
    "bad_request",
    "busy",
    "failed",
    "no_model",
    "no_token",
    "not_allowed",
    "not_found",
    "not_json",
    "not_possible",
    "refused",
    "run_changed",
    "run_gone",
    "too_large",
    "too_long",
    "too_slow",
    "wrong_host",
    "wrong_origin",
    "wrong_value",
]


class Problem(Record):
    code: Code
    message: str
    detail: dict[str, Any]


class Error(Record):
    """Every error has this shape."""

    error: Problem
