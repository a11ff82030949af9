"""How the tests share a machine: `make test` runs two of them at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.resources import own_temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep in one process what shares engines, and what runs the conformance suite; the rest goes by files."""
    for item in items:
        path = item.path.relative_to(TESTS)
        shares = {"plugins": "engines", "doors": "suite", "mutants": "suite"}
        item.add_marker(pytest.mark.xdist_group(shares.get(path.parts[0], str(path))))


@pytest.fixture(autouse=True, scope="session")
def own_folder() -> Iterator[None]:
    """A folder for temporary files of this process alone: tests look for files that were left."""
    with own_temporary_folder():
        yield
