"""How the tests share a machine: `make test` runs two of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.resources import own_temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Keep in one process what shares engines, and what runs the conformance suite; the rest goes by files."""
    from tests.groups import Groups

    return Groups(config, log)


@pytest.fixture(autouse=True, scope="session")
def own_folder() -> Iterator[None]:
    """A folder for temporary files of this process alone: tests look for files that were left."""
    with own_temporary_folder():
        yield
