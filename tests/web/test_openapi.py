"""Schemathesis asks the server all that its description allows, and what it does not."""

from __future__ import annotations

from typing import Any

import explored
import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode

from keyhole.web import routes as web

HOST = {"Host": "localhost"}
OPERATIONS = {
    "GET /data/run.json",
    "GET /data/map.json",
    "GET /data/maps/{measure}.json",
    "GET /data/planes.json",
    "GET /data/figures.json",
    "GET /data/vocabulary.json",
    "GET /data/annotations.json",
    "GET /data/collections.json",
    "GET /data/kinds.json",
    "GET /data/layers/{layer}.json",
    "GET /data/cells/{layer}/{cell}.json",
    "GET /data/tokens/{page}.json",
    "GET /data/words/{bucket}.json",
    "GET /data/units/{page}.json",
    "GET /data/documents/{page}.json",
    "GET /data/passages/{passage}.json",
    "GET /api/status",
    "GET /api/coming",
    "GET /api/annotations",
    "POST /api/annotations",
    "POST /api/notes",
    "POST /api/marks",
    "GET /api/collections",
    "POST /api/collections",
    "POST /api/prompt",
    "POST /api/try",
    "POST /api/generate",
    "POST /api/prompt/ablation",
    "POST /api/prompt/layers",
    "POST /api/prompt/python",
    "POST /api/cells.parquet",
    "GET /data/table.json",
    "GET /data/columns/{column}/{block}.json",
    "POST /api/edits/load",
    "POST /api/nearest",
    "POST /api/edits",
    "GET /api/sets",
    "POST /api/sets",
}


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = explored.write(tmp_path_factory.mktemp("openapi"))
    app = web.create(run, model=explored.model())
    schema = schemathesis.openapi.from_asgi("/openapi.json", app=app, headers=HOST)
    checks = schema.config.checks
    checks.negative_data_rejection.expected_statuses = [*checks.negative_data_rejection.expected_statuses, "409", "413"]
    # a description cannot say that a cell is edited once, that a token is in the vocabulary, that a text has few tokens
    checks.positive_data_acceptance.expected_statuses = [
        *checks.positive_data_acceptance.expected_statuses,
        "413",
        "422",
    ]
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


def test_every_address_is_described(operations: dict[str, Any]) -> None:
    assert set(operations) == OPERATIONS


ASKED = [
    pytest.param(label, mode, id=f"{label} {mode.value}") for label in sorted(OPERATIONS) for mode in GenerationMode
]


@pytest.mark.parametrize(("label", "mode"), ASKED)
def test_the_server_is_what_it_says(operations: dict[str, Any], label: str, mode: GenerationMode) -> None:
    operation = operations[label]

    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=25 if operation.body else 10,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=HOST)

    ask()
