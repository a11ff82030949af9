"""The library has to be there: where tests run for a release its absence is a failure, elsewhere a reason to skip."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.peers import Hosts, RemoteNode
from kvbridge_mooncake import MooncakeBackend, MooncakeOptions
from kvbridge_mooncake.library import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True, scope="session")
def library() -> None:
    why = missing()
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.close()


@pytest.fixture
def peer(hosts: Hosts) -> Callable[..., Any]:
    """Start a node in a process of its own; it ends with the test."""

    def make(options: dict[str, Any] | None = None, **settings: Any) -> RemoteNode:
        return RemoteNode(hosts.get(), "mooncake", options or {}, settings)

    return make


@pytest.fixture
def backend() -> Iterator[Callable[..., MooncakeBackend]]:
    """Make instances in this process."""
    made: list[MooncakeBackend] = []

    def make(**options: Any) -> MooncakeBackend:
        made.append(MooncakeBackend(MooncakeOptions(**options)))
        return made[-1]

    yield make
    for one in made:
        one.close()
