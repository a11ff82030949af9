"""A control message that is lost ends in an error or in the right bytes, never in a transfer that does not end.

Connections of TCP do not lose messages, but queues that are full do, and a peer that is stopped for a while answers
what nobody asks any more. Whatever moves the bytes, each end has to come to its end without the other's last word.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers import producer as shelf
from kvbridge.control import outbound
from kvbridge.control.endpoint import Endpoint
from kvbridge.control.messages import decode
from kvbridge.errors import KVBridgeError
from tests.direct import DirectBackend, DirectOptions
from tests.nodes import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

NBYTES = 20_000
EVERYTHING = 1 << 30
TYPES = ("Hello", "Welcome", "Select", "Offer", "Accept", "Landed", "Done", "Renew", "Renewed", "Abort", "Withdrawn")
ALL_TYPES = (*TYPES, "Ping", "Pong", "Bye", "Fence", "Fenced")


class LosingEndpoint(Endpoint):
    """Loses the first so many messages of some types that it receives."""

    def __init__(self, backend: Any, to_lose: dict[str, int], peer_timeout: float) -> None:
        self.to_lose = to_lose
        self.lost: Counter[str] = Counter()
        super().__init__(backend, peer_timeout=peer_timeout)

    def _received(self, origin: Any, frame: bytes | None) -> None:
        if frame is not None:
            kind = type(decode(frame)).__name__
            if self.to_lose.get(kind, 0) > 0:
                self.to_lose[kind] -= 1
                self.lost[kind] += 1
                return
        super()._received(origin, frame)


class Lossy:
    """A producer and a consumer, and what they lose together."""

    def __init__(self, mover: Any, to_lose: dict[str, int], timeout: float, peer_timeout: float = 6.0) -> None:
        self.to_lose = dict(to_lose)
        self.backends = [DirectBackend(DirectOptions(mover)) for _ in range(2)]
        self.endpoints = [LosingEndpoint(backend, self.to_lose, peer_timeout) for backend in self.backends]
        self.buffers = [
            backend.open_buffer(end, lease=3, timeout=timeout)
            for backend, end in zip(self.backends, self.endpoints, strict=True)
        ]
        self.source = np.arange(NBYTES, dtype=np.uint8)
        self.out = np.zeros_like(self.source)
        self.inserted = self.buffers[0].insert(Key("k"), self.source)

    def claim(self) -> Any:
        there = self.endpoints[0]
        return self.buffers[1].claim(Key("k", there.address, there.here.generation), timeout=1.0).wait(8)

    def given_back(self) -> bool:
        return self.inserted.poll() and all(held.released for held in self.backends[0].held)

    def close(self) -> None:
        self.backends[0].gate.open()
        for buffer in self.buffers:
            buffer.close()
        for end in self.endpoints:
            end.close(10)  # a busy machine
        for backend in self.backends:
            backend.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "VALID", 0.6)
    monkeypatch.setattr(outbound, "HANDSHAKE_TIMEOUT", 0.5)


@pytest.fixture
def lossy() -> Iterator[list[Lossy]]:
    made: list[Lossy] = []
    yield made
    for one in made:
        one.close()


def cases() -> Iterator[Any]:
    for mover in ("consumer", "producer", "both"):
        for kind in TYPES:
            yield pytest.param(mover, {kind: 1}, id=f"{mover}-{kind}")
        yield pytest.param(mover, dict.fromkeys(TYPES, 2), id=f"{mover}-all")
        for first, second in (("Landed", "Landed"), ("Accept", "Abort"), ("Landed", "Abort"), ("Accept", "Renew")):
            yield pytest.param(mover, {first: 3, second: 3}, id=f"{mover}-{first}-{second}")


@pytest.mark.parametrize(("mover", "to_lose"), list(cases()))
def test_a_transfer_ends_whatever_message_is_lost(lossy: list[Lossy], mover: str, to_lose: dict[str, int]) -> None:
    sides = Lossy(mover, to_lose, timeout=1.0)
    lossy.append(sides)
    try:
        filled = sides.claim().fill(sides.out)
        eventually(filled.poll, 10, lambda: f"the transfer goes on and on, without {dict(sides.endpoints[1].lost)}")
        if filled.error is None:
            assert (sides.out == sides.source).all()
    except KVBridgeError:
        pass  # it was told
    eventually(sides.given_back, 10, lambda: f"the producer keeps the memory: {sides.buffers[0].stats()}")
    assert not any(end.counters["internal_errors"] or end.counters["quarantined"] for end in sides.endpoints)


@pytest.mark.parametrize("kind", ["Ping", "Fence", "Fenced"])
def test_memory_in_quarantine_comes_back_whatever_message_is_lost(lossy: list[Lossy], kind: str) -> None:
    """The producer writes while the two are cut off from each other; then it stops, and one message is lost."""
    sides = Lossy("producer", {}, timeout=60, peer_timeout=1.0)
    lossy.append(sides)
    sides.backends[0].gate.shut_after(1)
    filled = sides.claim().fill(sides.out)
    assert sides.backends[0].gate.reached.wait(5)
    sides.to_lose.update(dict.fromkeys(ALL_TYPES, EVERYTHING))
    eventually(lambda: sides.endpoints[1].counters["quarantined"] == 1, 12, lambda: "the loss was not noticed")
    sides.to_lose.clear()
    sides.to_lose[kind] = 1
    sides.backends[0].gate.open()
    began = time.monotonic()
    eventually(filled.poll, 10, lambda: f"still in quarantine {time.monotonic() - began:.0f} s after the last fault")
    assert sides.endpoints[1].counters["quarantined"] == 0
