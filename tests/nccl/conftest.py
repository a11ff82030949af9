"""torch has to be there: where tests run for a release its absence is a failure, elsewhere a reason to skip."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.node import Node
from kvbridge.conformance.peers import Hosts, RemoteNode
from kvbridge_nccl.library import missing

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
        return RemoteNode(hosts.get(), "nccl", options or {}, settings)

    return make


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Make nodes in this process."""
    made: list[Node] = []

    def make(options: dict[str, Any] | None = None, **settings: Any) -> Node:
        made.append(Node("nccl", options or {}, **settings))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close()
