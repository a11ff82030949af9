"""Nodes and peers that are closed after each test, whatever it did."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_cpu import moves
from tests.nodes import SLICE, Node
from tests.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def known_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of one size, whatever the backend's author finds fastest."""
    monkeypatch.setattr(moves, "SLICE_BYTES", SLICE)


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Make nodes in this process. None of their threads may survive their close."""
    made: list[Node] = []
    before = set(threading.enumerate())

    def make(**options: Any) -> Node:
        made.append(Node(**options))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close()
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("kvbridge-")]
    assert not left


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """Make nodes in processes of their own."""
    made: list[Peer] = []

    def make(constants: dict[str, Any] | None = None, **options: Any) -> Peer:
        made.append(Peer(constants, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def pair(node: Callable[..., Node]) -> tuple[Node, Node]:
    """A producer and a consumer in this process."""
    return node(name="producer"), node(name="consumer")
