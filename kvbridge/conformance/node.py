"""`Node`: backend, endpoint and buffer as an engine's worker owns them, with verbs that a test can order by name.

A node lives in the test's process, or in one of its own (`kvbridge.conformance.peers`). Every verb has a deadline.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvbridge.abc import Claim, Key, RecvPipe, SendPipe, Transport
from kvbridge.conformance.checks import eventually, require
from kvbridge.conformance.values import (
    MARK,
    Cache,
    Geometry,
    PagesValue,
    TensorValue,
    Value,
    check_tensor_marked,
    make_tensor,
    mark_tensor,
    packed,
    require_same,
    tensor_content,
)
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import KVBridgeError
from kvbridge.layers.faulty import Fault, Faults, FaultyTransport
from kvbridge.layers.metered import Meter, MeteredTransport
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.control.link import Link
    from kvbridge.control.messages import Message
    from kvbridge.layers.faulty import Kind, When
    from kvbridge.memory import Payload
    from kvbridge.transfer import Transfer

WAIT = 20.0
"""Seconds that a verb waits for what has to come."""

_STOPS = {
    "hold": "nobody asked the held payload for a slice",
    "land": "nobody asked the landing for a slice",
    "write": "nobody asked the producer's move for a slice",
}

SOON = 5.0
"""Seconds within which peers hear of each other."""


class Node:
    """One peer.

    Attributes:
        wait: Seconds that a verb waits where it is not told.

    Args:
        backend: Name of the backend.
        options: Its options.
        lease: Default lease of the buffer, in seconds.
        timeout: Default deadline of a transfer, in seconds.
        faults: For each of `"hold"`, `"land"`, `"write"` the faults of a transport's steps: as `(kind, at)`, or as
            `(kind, when)` for the first, `(kind, when, 0)` for all, or a dict of the seed and rates of random ones.
        metered: Whether calls into a transport are timed.
        echo: Whether every control message is sent twice.
        scope: What comes before the names of this node's keys.
        **endpoint: Of `Endpoint`.
    """

    wait: ClassVar[float] = WAIT

    def __init__(
        self,
        backend: str,
        options: Mapping[str, Any],
        *,
        lease: float = 60.0,
        timeout: float = 30.0,
        faults: Mapping[str, Any] | None = None,
        metered: bool = False,
        echo: bool = False,
        scope: str = "",
        **endpoint: Any,
    ) -> None:
        self.backend = create_backend(backend, options)
        self.faults = {where: _plan(found) for where, found in (faults or {}).items()}
        if self.faults and isinstance(self.backend, Transport):
            self.backend = FaultyTransport(self.backend, **self.faults)
        self.meter = Meter()
        if metered and isinstance(self.backend, Transport):
            self.backend = metered_backend = MeteredTransport(self.backend)
            self.meter = metered_backend.meter
        self.endpoint = Endpoint(self.backend, **endpoint)
        if self.backend.capabilities.buffer:
            self.buffer = self.backend.open_buffer(self.endpoint, lease=lease, timeout=timeout)
        self.links: list[Link] = []
        self.endpoint.call_soon(lambda: self.endpoint.on_link(self._linked))
        self._echo = echo
        self._scope = scope
        self.flush()  # before anybody knows the address
        self.pipes: dict[str, Any] = {}
        self.claims: dict[str, Claim] = {}
        self._transfers: dict[str, tuple[Transfer[Any], Callable[[], None]]] = {}
        self._caches: dict[Geometry, Cache] = {}
        self._sources: dict[str, tuple[Value, Payload]] = {}
        self._outs: dict[str, tuple[Value, Payload, Sequence[int] | None]] = {}
        self._marked_at_once: dict[str, threading.Event] = {}

    def _linked(self, link: Link) -> None:
        self.links.append(link)
        if self._echo:
            send = link.send

            def twice(message: Message) -> None:
                send(message)
                send(message)

            link.send = twice  # type: ignore[method-assign]

    # -- facts ------------------------------------------------------------------------------------------------

    def where(self) -> tuple[str, int]:
        """Address and generation."""
        return self.endpoint.address, self.endpoint.here.generation

    def stats(self) -> dict[str, float]:
        """Statistics of the buffer."""
        return dict(self.buffer.stats())

    def counters(self) -> dict[str, int]:
        """Counters of the endpoint."""
        return dict(self.endpoint.counters)

    def await_stats(self, timeout: float = SOON, **expected: float) -> None:
        """Wait until statistics have these values: a consumer is done before its producer hears of it.

        A store that is shared does not hear of it at all: what it holds is not known here.
        """
        if self.backend.capabilities.shared:
            expected = {name: value for name, value in expected.items() if name not in ("entries", "bytes")}
        eventually(
            lambda: {name: self.stats().get(name, 0.0) for name in expected} == expected,
            timeout,
            lambda: f"the statistics are {self.stats()}, expected {expected}",
        )

    def flush(self) -> None:
        """Return when the endpoint's thread has done what it was told before."""
        done = threading.Event()
        self.endpoint.call_soon(done.set)
        require(
            done.wait(self.wait), f"the endpoint's thread did nothing for {self.wait} s: a call into the backend hangs"
        )

    # -- values -----------------------------------------------------------------------------------------------

    def source(self, value: Value) -> Payload:
        """Make a payload with its value."""
        if isinstance(value, TensorValue):
            return make_tensor(value, filled=True)
        cache = self._cache(value.geometry)
        cache.write(value.ids, packed(value))
        return cache.pages(value.ids)

    def destination(self, value: Value, into: Sequence[int] | None = None, skip: int = 0) -> Payload:
        """Make room for a value, with the canary in it."""
        if isinstance(value, TensorValue):
            return make_tensor(value, filled=False)
        ids = value.ids[skip:] if into is None else into
        cache = self._cache(value.geometry)
        cache.write(ids, None)
        return cache.pages(ids)

    def check(self, value: Value, out: Payload, into: Sequence[int] | None = None, skip: int = 0) -> None:
        """Check every byte of a value that came, and that nothing else was written."""
        if isinstance(value, TensorValue):
            require_same(tensor_content(out), packed(value), "the tensor that came")
            return
        ids = value.ids[skip:] if into is None else into
        self._cache(value.geometry).check(ids, _less(value, skip), "the pages that came")

    def overwrite(self, name: str) -> None:
        """Write other bytes over a source."""
        value, payload = self._sources[name]
        self._mark(value, payload, None)

    def mark(self, name: str) -> None:
        """Write over a destination, as an engine does that got its memory back."""
        self._mark(*self._outs[name])

    def require_marked(self, name: str) -> None:
        """Check that nothing was written to a destination since it was marked."""
        value, out, into = self._outs[name]
        what = "memory that was given back, and written to afterwards"
        if name in self._marked_at_once:
            require(self._marked_at_once[name].wait(SOON), "nobody was told that the transfer is over")
            if isinstance(value, TensorValue):
                check_tensor_marked(out, what)
            else:
                self._cache(value.geometry).check_marked(value.ids if into is None else into, what)
        elif isinstance(value, TensorValue):
            require_same(tensor_content(out), np.full(value.nbytes, MARK, dtype=np.uint8), what)
        else:
            ids = value.ids if into is None else into
            self._cache(value.geometry).check(ids, np.full(value.nbytes, MARK, dtype=np.uint8), what)

    def _mark(self, value: Value, payload: Payload, into: Sequence[int] | None) -> None:
        if isinstance(value, TensorValue):
            tensor_content(payload)[:] = MARK
        else:
            ids = value.ids if into is None else into
            self._cache(value.geometry).write(ids, np.full(value.nbytes, MARK, dtype=np.uint8))

    def _cache(self, geometry: Geometry) -> Cache:
        if geometry not in self._caches:
            cache = self._caches[geometry] = Cache(geometry)
            self.backend.register(cache.regions)
        return self._caches[geometry]

    # -- transfers --------------------------------------------------------------------------------------------

    def keep(self, name: str, transfer: Transfer[Any], then: Callable[[], None] = lambda: None) -> None:
        """Remember a transfer, and what is to be checked when it succeeds."""
        self._transfers[name] = transfer, then

    def end(self, name: str, timeout: float = 0.0) -> Any:
        """Wait for what was begun, check what came and return its result."""
        transfer, then = self._transfers[name]
        result = transfer.wait(timeout or self.wait)
        then()
        return result if isinstance(result, list) else None

    def over(self, name: str) -> bool:
        """Whether what was begun is finished."""
        return self._transfers[name][0].poll()

    def await_over(self, name: str, timeout: float = 0.0) -> str:
        """Wait until what was begun is finished; return its error's code, or nothing."""
        transfer = self._transfers[name][0]
        timeout = timeout or self.wait
        with contextlib.suppress(KVBridgeError):
            transfer.wait(timeout)
        require(transfer.poll(), f"{transfer.what} did not finish within {timeout:g} s, neither in success nor failure")
        return "" if transfer.error is None else transfer.error.code

    def cancel(self, name: str) -> None:
        """Cancel what was begun."""
        self._transfers[name][0].cancel()

    # -- buffer -----------------------------------------------------------------------------------------------

    def begin_insert(self, name: str, key: str, value: Value, **options: Any) -> None:
        """Start an insert. Options are those of `LookupBuffer.insert`."""
        payload = self.source(value)
        self._sources[name] = value, payload
        self.keep(name, self.buffer.insert(Key(self._scope + key), payload, **options))

    def insert(self, key: str, value: Value, **options: Any) -> None:
        """Insert a value; wait for its end where the backend detaches. What refuses it is raised in any case."""
        self.begin_insert(key, key, value, **options)
        if not self.backend.capabilities.detaches:
            self.flush()
        if self.backend.capabilities.detaches or self.over(key):
            self.end(key)

    def begin(
        self,
        name: str,
        verb: str,
        key: Key,
        value: Value,
        *,
        into: Sequence[int] | None = None,
        skip: int = 0,
        **options: Any,
    ) -> None:
        """Start a `select` or `drop_select`."""
        out = self.destination(value, into, skip)
        self._outs[name] = value, out, into
        transfer = getattr(self.buffer, verb)(key, out, skip=skip, **options)
        self.keep(name, transfer, lambda: self.check(value, out, into, skip))

    def take(self, key: Key, value: Value, verb: str = "drop_select", **options: Any) -> None:
        """Take a value and check it."""
        self.begin("take", verb, key, value, **options)
        self.end("take")

    def begin_claim(self, name: str, key: Key, **options: Any) -> None:
        """Start a claim."""
        transfer = self.buffer.claim(key, **options)
        self.keep(name, transfer, lambda: self.claims.__setitem__(name, transfer.result()))

    def claim(self, name: str, key: Key, **options: Any) -> None:
        """Claim a value."""
        self.begin_claim(name, key, **options)
        self.end(name)

    def begin_fill(self, name: str, claim: str, value: Value, *, into: Sequence[int] | None = None) -> None:
        """Start to fill a claim."""
        out = self.destination(value, into)
        self.keep(name, self.claims[claim].fill(out), lambda: self.check(value, out, into))

    def fill(self, claim: str, value: Value) -> None:
        """Fill a claim and check what came."""
        self.begin_fill("fill", claim, value)
        self.end("fill")

    def release(self, claim: str) -> None:
        """Give a claim back."""
        self.claims[claim].release()

    def contains(self, keys: Sequence[Key]) -> list[bool]:
        """Ask which keys have a value."""
        return self.buffer.contains(keys).wait(self.wait)

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values."""
        self.buffer.drop(keys)

    # -- pipes ------------------------------------------------------------------------------------------------

    def connect(self, address: str, generation: int = 0) -> None:
        """Dial a peer."""
        self.endpoint.dial(address, generation).wait(self.wait)

    def open_pipe(self, channel: str, end: str) -> None:
        """Open the end `"send"` or `"recv"` of a channel on the first link."""
        eventually(lambda: bool(self.links), self.wait, lambda: "no peer came")
        self.pipes[channel] = getattr(self.backend, f"open_{end}")(self.links[0], channel)
        self.flush()

    def sending(self, channel: str) -> SendPipe:
        """Return a sending end; for tests in this process."""
        found: SendPipe = self.pipes[channel]
        return found

    def receiving(self, channel: str) -> RecvPipe:
        """Return a receiving end; for tests in this process."""
        found: RecvPipe = self.pipes[channel]
        return found

    def post(self, name: str, channel: str, value: Value, tag: int = 0) -> None:
        """Post a value."""
        payload = self.source(value)
        self._sources[name] = value, payload
        self.keep(name, self.pipes[channel].post(payload, tag))

    def send(self, channel: str, value: Value, timeout: float = 0.0) -> None:
        """Send a tensor and wait until the receiver has it."""
        self.pipes[channel].send_tensor(self.source(value), timeout or self.wait)

    def recv(self, channel: str, value: Value, timeout: float = 0.0) -> None:
        """Receive a tensor and check it."""
        self.check(value, self.pipes[channel].recv_tensor(timeout=timeout or self.wait))

    def peek(self, channel: str, timeout: float = 0.0) -> tuple[int, int, int] | None:
        """Look at the next offer: its number, tag and bytes."""
        found = self.pipes[channel].peek(timeout)
        return None if found is None else (found.seq, found.tag, found.spec.nbytes)

    def accept(
        self, name: str, channel: str, value: Value, *, into: Sequence[int] | None = None, skip: int = 0
    ) -> None:
        """Take the next offer into memory of one's own."""
        offer = self.pipes[channel].peek(self.wait)
        require(offer is not None, f"no offer came on {channel} within {self.wait} s")
        out = self.destination(value, into, skip)
        self.keep(name, self.pipes[channel].accept(offer, out, skip), lambda: self.check(value, out, into, skip))

    def decline(self, channel: str) -> None:
        """Refuse the next offer."""
        offer = self.pipes[channel].peek(self.wait)
        require(offer is not None, f"no offer came on {channel} within {self.wait} s")
        self.pipes[channel].decline(offer)

    def close_pipe(self, channel: str) -> None:
        """Close an end."""
        self.pipes[channel].close()

    # -- faults and the end -----------------------------------------------------------------------------------

    def await_paused(self, where: str) -> None:
        """Wait until a step is paused."""
        require(
            self.faults[where].reached.wait(self.wait),
            f"the transfer never came to where the test stops it: {_STOPS[where]}, or it did and nothing came of it",
        )

    def expect_pause(self, where: str) -> None:
        """Forget that a step was paused before: another one is to be."""
        self.faults[where].reached.clear()

    def cancel_when_paused(self, name: str, where: str) -> None:
        """Cancel what was begun at the moment when a step is paused, on its thread, and with bytes in motion."""
        cancel = self._transfers[name][0].cancel
        self.faults[where].on_reached = cancel
        if self.faults[where].reached.is_set():
            cancel()

    def mark_when_over(self, name: str) -> None:
        """Write over a destination at the moment when its transfer is over, as the fastest engine would."""
        value, out, into = self._outs[name]
        marked = self._marked_at_once[name] = threading.Event()

        def mark(_: object) -> None:
            if isinstance(value, TensorValue):
                mark_tensor(out)
            else:
                self._cache(value.geometry).mark(value.ids if into is None else into)
            marked.set()

        self._transfers[name][0].on_done(mark)

    def overwrite_when_over(self, name: str) -> None:
        """Write other bytes over a source at the moment when its insert is over."""
        self._transfers[name][0].on_done(lambda _: self.overwrite(name))

    def resume(self, where: str) -> None:
        """Let paused steps go on."""
        self.faults[where].open()

    def close_buffer(self) -> None:
        """Close the buffer alone."""
        self.buffer.close()

    def close_endpoint(self) -> None:
        """Close the endpoint alone."""
        self.endpoint.close()

    def close_backend(self) -> float:
        """Close all in order; return how many seconds the backend alone took. Idempotent."""
        if self.backend.capabilities.buffer:
            self.buffer.close()
        self.endpoint.close()
        start = time.monotonic()
        self.backend.close()
        return time.monotonic() - start

    def close(self) -> float:
        """Close all in order; return how many seconds it took. Idempotent."""
        start = time.monotonic()
        self.close_backend()
        return time.monotonic() - start


def _less(value: PagesValue, skip: int) -> Any:
    """Return a value's packed bytes without the first blocks of every region."""
    content = packed(value)
    parts = []
    start = 0
    for size in value.geometry.page_bytes:
        end = start + size * len(value.ids)
        parts.append(content[start + skip * size : end])
        start = end
    return np.concatenate(parts) if parts else content


def _plan(faults: dict[str, Any] | Sequence[tuple[Any, Any]]) -> Faults:
    if isinstance(faults, dict):
        return Faults(**faults)
    return Faults(*(_fault(*one) for one in faults))


def _fault(kind: Kind, where: int | When, count: int = 1) -> Fault:
    return Fault(kind, at=where) if isinstance(where, int) else Fault(kind, when=where, count=count)
