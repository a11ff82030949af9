"""How the tests share a machine: `make test` runs two of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kvbridge.conformance.resources import own_temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile("kvbridge", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("kvbridge")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Keep in one process what shares engines, or what runs the conformance suite; the rest goes by files."""
    from tests.groups import Groups

    return Groups(config, log)


@pytest.fixture(autouse=True, scope="session")
def own_folder() -> Iterator[None]:
    """A folder for temporary files of this process alone: tests look for files that were left."""
    with own_temporary_folder():
        yield
