"""`Node`: backend, endpoint and buffer, as an engine's worker owns them, with verbs that a test can order by name.

A node lives in the test's process or in one of its own (`tests.peers.Peer`). Values are named by a seed, so that both
sides know every byte without sending it.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Claim, Key, RecvPipe, SendPipe
from kvbridge.control.endpoint import Endpoint
from kvbridge_cpu import CpuOptions
from tests.gated import GatedCpuBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvbridge.control.link import Link
    from kvbridge.memory import Pages
    from kvbridge.transfer import Transfer

MIB = 1 << 20

SLICE = 2 * MIB
"""Bytes of a slice of the `cpu` backend in tests: gates count slices."""


def pattern(seed: int, nbytes: int) -> NDArray[np.uint8]:
    """Bytes that differ everywhere for two seeds."""
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8).copy()


def content(value: Pages) -> list[bytes]:
    """The bytes of pages, region by region."""
    return [region.rows()[ids].tobytes() for region, ids in zip(value.regions, value.block_ids, strict=True)]


def set_constants(constants: dict[str, Any]) -> None:
    """Set `module:NAME` to values, in a process of its own."""
    for where, value in constants.items():
        module, _, name = where.partition(":")
        target = importlib.import_module(module)
        if not hasattr(target, name):
            raise AttributeError(where)
        setattr(target, name, value)


def eventually(holds: Callable[[], bool], timeout: float, otherwise: Callable[[], str]) -> None:
    """Wait until something holds, at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s: {otherwise()}")
        time.sleep(0.005)


class Node:
    """One peer. Every verb has a deadline."""

    def __init__(
        self,
        *,
        capacity: int | str = "64MiB",
        lease: float = 60.0,
        timeout: float = 30.0,
        patient: bool = False,
        **endpoint: Any,
    ):
        self.backend = GatedCpuBackend(CpuOptions(capacity=capacity))
        self.endpoint = Endpoint(self.backend, **endpoint)
        self.buffer = self.backend.open_buffer(self.endpoint, lease=lease, timeout=timeout, patient=patient)
        self.links: list[Link] = []
        self.endpoint.call_soon(lambda: self.endpoint.on_link(self.links.append))
        self.flush()  # before anybody knows the address
        self.transfers: dict[str, tuple[Transfer[Any], Any]] = {}
        self.claims: dict[str, Claim] = {}
        self.pipes: dict[str, SendPipe | RecvPipe] = {}

    # -- facts ------------------------------------------------------------------------------------------------

    def where(self) -> tuple[str, int]:
        return self.endpoint.address, self.endpoint.here.generation

    def stats(self) -> dict[str, float]:
        return dict(self.buffer.stats())

    def used(self) -> int:
        return self.backend._allocator.used

    def counters(self) -> dict[str, int]:
        return dict(self.endpoint.counters)

    def await_used(self, nbytes: int, timeout: float = 2.0) -> None:
        """Wait until exactly `nbytes` of the pool are in use."""
        eventually(lambda: self.used() == nbytes, timeout, lambda: f"{self.used()} bytes in use: {self.stats()}")

    def await_stats(self, timeout: float = 2.0, **expected: float) -> None:
        """Wait until statistics have these values: a consumer is done before its producer hears of it."""
        eventually(
            lambda: {name: self.stats().get(name, 0.0) for name in expected} == expected,
            timeout,
            lambda: f"found {self.stats()}, expected {expected}",
        )

    # -- buffer -----------------------------------------------------------------------------------------------

    def insert(self, key: str, seed: int, nbytes: int, *, digest: bytes = b"", lease: float = 0.0) -> None:
        self.buffer.insert(Key(key), pattern(seed, nbytes), digest=digest, lease=lease).wait(10)

    def begin_insert(self, name: str, key: str, seed: int, nbytes: int, *, lease: float = 0.0) -> None:
        self.transfers[name] = self.buffer.insert(Key(key), pattern(seed, nbytes), lease=lease), None

    def begin(self, name: str, verb: str, key: Key, seed: int, nbytes: int, **options: Any) -> None:
        """Start a `select` or `drop_select` of the value of a seed."""
        out = np.zeros(nbytes, dtype=np.uint8)
        self.transfers[name] = getattr(self.buffer, verb)(key, out, **options), (out, seed)

    def end(self, name: str, timeout: float = 10.0) -> None:
        """Wait for what was begun; check every byte that came."""
        transfer, expected = self.transfers.pop(name)
        transfer.wait(timeout)
        if expected is not None:
            out, seed = expected
            if not np.array_equal(out, pattern(seed, out.nbytes)):
                raise AssertionError(f"{name}: the bytes are not those of seed {seed}")

    def take(self, key: Key, seed: int, nbytes: int, *, verb: str = "drop_select", **options: Any) -> None:
        self.begin("take", verb, key, seed, nbytes, **options)
        self.end("take")

    def claim(self, name: str, key: Key, **options: Any) -> None:
        self.claims[name] = self.buffer.claim(key, **options).wait(10)

    def begin_fill(self, name: str, claim: str, seed: int, nbytes: int) -> None:
        out = np.zeros(nbytes, dtype=np.uint8)
        self.transfers[name] = self.claims[claim].fill(out), (out, seed)

    def release(self, name: str) -> None:
        self.claims[name].release()

    # -- pipes ------------------------------------------------------------------------------------------------

    def dial(self, address: str, generation: int = 0) -> Link:
        return self.endpoint.dial(address, generation).wait(10)

    def link(self, timeout: float = 5.0) -> Link:
        """The first link, dialled by whichever side."""
        eventually(lambda: bool(self.links), timeout, lambda: "no peer came")
        return self.links[0]

    def connect(self, address: str) -> None:
        self.dial(address)

    def open_pipe(self, channel: str, end: str) -> None:
        """Open the end `"send"` or `"recv"` of a channel on the first link."""
        self.pipes[channel] = getattr(self.backend, f"open_{end}")(self.link(), channel)
        self.flush()

    def begin_send(self, name: str, channel: str, seed: int, nbytes: int) -> None:
        self.transfers[name] = self.pipes[channel].post(pattern(seed, nbytes)), None

    def send(self, channel: str, seed: int, nbytes: int, timeout: float = 10.0) -> None:
        self.pipes[channel].send_tensor(pattern(seed, nbytes), timeout)

    def recv(self, channel: str, seed: int, nbytes: int, timeout: float = 10.0) -> None:
        found = self.pipes[channel].recv_tensor(timeout=timeout)
        if not np.array_equal(found, pattern(seed, nbytes)):
            raise AssertionError(f"the bytes on {channel} are not those of seed {seed}")

    def await_offer(self, channel: str, timeout: float = 10.0) -> None:
        if self.pipes[channel].peek(timeout) is None:
            raise AssertionError(f"no offer came on {channel}")

    def begin_recv(self, name: str, channel: str, nbytes: int) -> None:
        self.await_offer(channel)
        offer = self.pipes[channel].peek()
        self.transfers[name] = self.pipes[channel].accept(offer, np.zeros(nbytes, dtype=np.uint8)), None

    def close_pipe(self, channel: str) -> None:
        self.pipes[channel].close()

    # -- control ----------------------------------------------------------------------------------------------

    def gate(self, which: str, slices: int | None) -> None:
        """Shut a gate of the backend after some slices; None opens it."""
        gate = getattr(self.backend, which)
        gate.open() if slices is None else gate.shut_after(slices)

    def await_gate(self, which: str, timeout: float = 10.0) -> None:
        if not getattr(self.backend, which).reached.wait(timeout):
            raise AssertionError(f"no copy reached the gate {which}")

    def flush(self) -> None:
        """Return when the endpoint's thread has done what it was told before."""
        done = threading.Event()
        self.endpoint.call_soon(done.set)
        if not done.wait(10):
            raise AssertionError("the endpoint's thread hangs")

    def close(self) -> float:
        """Close all; return how long it took."""
        start = time.monotonic()
        self.buffer.close()
        self.endpoint.close()
        self.backend.close()
        return time.monotonic() - start
