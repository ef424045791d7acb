from __future__ import annotations

import pytest
from planted_runs import Planted, planted_run


@pytest.fixture(scope="session", params=[False, True], ids=["relu", "gated"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A run of which it is known what every key waits for."""
    return planted_run(tmp_path_factory.mktemp("planted"), request.param)
