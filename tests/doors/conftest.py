"""The doors, with an odd backend behind them."""

from __future__ import annotations

import pytest

from tests.doors.running import Doors


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    return Doors(tmp_path_factory.mktemp("doors"), tmp_path_factory.getbasetemp() / "bytecode")
