"""`PipeBuffer`: a LookupBuffer on any transport. Values wait at their producer and move when they are asked for.

Under it runs the same rendezvous as under a pipe: the answer to a `Select` is an offer, whose tag is the question.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge import tracing
from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.buffers.consumer import Seeker
from kvbridge.buffers.limits import check_limits
from kvbridge.buffers.producer import Shelf, Value
from kvbridge.control.messages import MAX_KEYS
from kvbridge.errors import ClosedError, ConfigError, KVBridgeError
from kvbridge.memory.payload import spec_of
from kvbridge.transfer import Transfer, failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.backend import Transport
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload

_T = TypeVar("_T")

CHANNEL = "buffer"
"""Channel of the buffer's messages: one buffer an endpoint."""

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for the endpoint's thread."""


class PipeBuffer(LookupBuffer):
    """Keyed values over a transport. See `LookupBuffer`.

    Args:
        backend: The transport.
        endpoint: The control plane; one buffer an endpoint.
        lease: Default lease in seconds.
        timeout: Default deadline of a question or transfer in seconds.
        patient: Whether an insert for which there is no room waits for it.
    """

    def __init__(
        self, backend: Transport[Any], endpoint: Endpoint, *, lease: float, timeout: float, patient: bool = False
    ) -> None:
        self._endpoint = endpoint
        self._lease = lease
        self._timeout = timeout
        self._closed = False  # nothing more is taken
        self._finished = False  # everything that was taken has been finished
        self._shelf = Shelf(backend, endpoint, CHANNEL, patient=patient)
        self._seeker = Seeker(backend, endpoint, CHANNEL, timeout)
        endpoint.call_soon(self._connect)

    def _connect(self) -> None:
        self._endpoint.serve(CHANNEL, self._shelf.received)
        self._endpoint.on_close(self._finish)

    def _finish(self, error: KVBridgeError) -> None:
        self._closed = self._finished = True
        self._seeker.close(error)
        self._shelf.close()

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available. See `LookupBuffer.insert`."""
        transfer: Transfer[None] = Transfer(f"inserting {key.id!r}", lambda: self._take_back(key, transfer))
        if not self._is_here(key):
            transfer.fail(ConfigError(f"the key {key.id!r} lives at {key.home}: insert it there"))
            return transfer

        def insert() -> None:
            check_limits([key], digest, lease, note)
            value = Value(key.id, spec_of(payload), digest, note)
            self._shelf.insert(value, payload, lease or self._lease, transfer)

        return self._start(transfer, insert)

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask the producer to hold a value. See `LookupBuffer.claim`."""
        cancels: list[Callable[[], None]] = []

        def cancel() -> None:
            for call in cancels:
                call()

        transfer: Transfer[Claim] = Transfer(f"claiming {key.id!r}", lambda: self._endpoint.call_soon(cancel))
        tracing.begin("claim", key.id, home=key.home)
        tracing.end_with("claim", key.id, transfer)

        def claim() -> None:
            limit = timeout or self._timeout
            check_limits([key], digest, limit)
            cancels.append(self._seeker.claim(key, digest, take=take, timeout=limit, transfer=transfer))

        return self._start(transfer, claim)

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say which keys have a live value. See `LookupBuffer.contains`."""
        transfer: Transfer[list[bool]] = Transfer("asking which keys exist")
        homes = {(key.home, key.generation) for key in keys}
        if len(homes) != 1 or len(keys) > MAX_KEYS:
            found = f"found {len(keys)} of {len(homes)}"
            return failed(transfer.what, ConfigError(f"ask for 1 to {MAX_KEYS} keys of one home at a time; {found}"))

        def contains() -> None:
            check_limits(keys, b"", timeout)
            self._seeker.contains(list(keys), timeout or self._timeout, transfer)

        return self._start(transfer, contains)

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values. See `LookupBuffer.drop`."""
        here: list[str] = []
        homes: dict[tuple[str, int], list[Key]] = {}
        for key in keys:
            if self._is_here(key):
                here.append(key.id)
            else:
                homes.setdefault((key.home, key.generation), []).append(key)

        def drop() -> None:
            check_limits(keys, b"", 0)
            self._shelf.drop(here)
            for there in homes.values():
                for first in range(0, len(there), MAX_KEYS):
                    self._seeker.drop(there[first : first + MAX_KEYS])

        if not self._closed:
            with contextlib.suppress(KVBridgeError):  # best effort: the endpoint may be closing
                self._endpoint.call_soon(drop)

    def _is_here(self, key: Key) -> bool:
        return key.home in ("", self._endpoint.address)

    def _take_back(self, key: Key, transfer: Transfer[None]) -> None:
        self._endpoint.call_soon(lambda: self._shelf.take_back(key.id, transfer))

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges. See `LookupBuffer.stats`."""
        return {
            **{name: float(count) for name, count in dict(self._shelf.counters).items()},
            "entries": float(self._shelf.entries),
            "bytes": float(self._shelf.nbytes),
            "delayed": float(self._shelf.delayed),
        }

    def close(self) -> None:
        """Finish every transfer and give up every value. Idempotent, bounded."""
        if self._closed:
            return
        self._closed = True
        done: Transfer[None] = Transfer("closing the buffer")

        def close() -> None:
            self._finish(ClosedError("the buffer was closed"))
            done.resolve(None)

        try:
            self._endpoint.call_soon(close)
            done.wait(CLOSE_TIMEOUT)
        except KVBridgeError:
            return  # the endpoint is closed or stuck: it has told the peers, or they will miss its heartbeats

    def _start(self, transfer: Transfer[_T], call: Callable[[], None]) -> Transfer[_T]:
        if self._closed:
            transfer.fail(ClosedError("the buffer was closed"))
            return transfer

        def guarded() -> None:
            try:
                if self._finished:  # meanwhile
                    raise ClosedError("the buffer was closed")
                call()
            except KVBridgeError as error:
                transfer.fail(error)

        try:
            self._endpoint.call_soon(guarded)
        except KVBridgeError as error:
            transfer.fail(error)
        return transfer
