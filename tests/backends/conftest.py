"""Nodes and peers that are closed after each test, whatever it did."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_cpu import CpuBackend, CpuOptions, moves
from kvbridge_nccl import NcclBackend, NcclOptions
from tests.nodes import SLICE, Node
from tests.peers import Peer
from tests.sides import Side, two_sides
from tests.slow_store import Process, SlowStore, ThreadedStore

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


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Make processes on slow stores. Whatever a test did, each value that was found is released once, at their end."""
    made: list[Process] = []
    before = set(threading.enumerate())

    def make(store: SlowStore, **options: Any) -> Process:
        made.append(Process(store, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert [stored.releases for stored in one.store.given] == [1] * len(one.store.given)
        assert not one.endpoint.counters["internal_errors"]
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("kvbridge-")]
    assert not left


@pytest.fixture(params=[SlowStore, ThreadedStore])
def slow(request: pytest.FixtureRequest, process: Callable[..., Process]) -> Process:
    """A process whose store can be aborted, then one whose store works on threads and cannot."""
    return process(request.param())


@pytest.fixture
def stepped(process: Callable[..., Process]) -> Process:
    """A process whose store works in steps, on the endpoint's thread alone."""
    return process(SlowStore())


@pytest.fixture(params=["cpu", "nccl"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    """Two ends of a backend that copies what it holds, and then of one that does not."""

    def make() -> Any:
        return CpuBackend(CpuOptions(capacity="64MiB")) if request.param == "cpu" else NcclBackend(NcclOptions())

    with two_sides(make(), make()) as both:
        yield both
