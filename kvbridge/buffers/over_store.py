"""`StoreBuffer`: a LookupBuffer on any store. The store keeps bytes by key; what they are and for how long is ours."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.buffers.chain import fill_claim
from kvbridge.buffers.keeper import Header, Keeper, decode
from kvbridge.buffers.limits import check_limits
from kvbridge.buffers.moving import Moving
from kvbridge.errors import BusyError, ClosedError, KeyUnknownError, KVBridgeError, UnsupportedError
from kvbridge.memory.payload import Spec, check_claimed, check_destination, check_source
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.store import Store, Stored
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload

T = TypeVar("T")

FIRST_LOOK, LAST_LOOK = 0.002, 0.1
"""Seconds between two looks for a key that is not there yet: they double from the first to the last."""

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for the endpoint's thread."""


class StoreClaim(Claim):
    """A value that was found, and stays readable until it is filled or released."""

    def __init__(self, buffer: StoreBuffer, spec: Spec, stored: Stored, what: str) -> None:
        self.spec = spec
        self._buffer = buffer
        self._stored = stored
        self._what = what
        self._use = threading.Lock()

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Read the value into `out`, once. See `Claim.fill`."""
        failed: Transfer[None] = Transfer(self._what)
        try:
            check_destination(self.spec, out, skip)
            if not self._use.acquire(blocking=False):
                raise BusyError(f"{self._what}: the claim was filled or released before")
        except KVBridgeError as error:
            failed.fail(error)
            return failed
        return self._buffer.read(self._stored, self._what, out, skip)

    def release(self) -> None:
        """Let go of the value. Idempotent."""
        if self._use.acquire(blocking=False):
            self._buffer.let_go(self._stored)


class StoreBuffer(LookupBuffer):
    """Keyed values in a store. See `LookupBuffer`; `Key.home` does not matter.

    Args:
        store: The store.
        endpoint: Whose thread is used.
        lease: Default lease in seconds.
        timeout: Default deadline of a question or transfer in seconds.
    """

    def __init__(self, store: Store[Any], endpoint: Endpoint, *, lease: float, timeout: float) -> None:
        self._store = store
        self._endpoint = endpoint
        self._lease = lease
        self._timeout = timeout
        self._closed: ClosedError | None = None
        self._keeper = Keeper(store, endpoint)
        self._moving: set[Moving] = set()
        self._asking: dict[Transfer[Claim], Key] = {}
        endpoint.call_soon(lambda: endpoint.on_close(self._finish))

    def insert(self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0) -> Transfer[None]:
        """Store a value. See `LookupBuffer.insert`."""
        nbytes, expires = 0, 0.0
        moving = self._new(f"inserting {key.id!r}", lambda error: self._keeper.put(key.id, nbytes, expires, error))

        def insert() -> None:
            nonlocal nbytes, expires
            check_limits([key], digest, lease)
            spec = check_source(payload, self._store.capabilities)
            nbytes, expires = spec.nbytes, time.time() + (lease or self._lease)
            self._keeper.make_room(key.id)
            header = Header(spec, digest, expires).encode()
            moving.start(lambda: self._store.put(key.id, header, payload))

        return self._start(moving.transfer, insert)

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values. See `LookupBuffer.drop`."""

        def drop() -> None:
            check_limits(keys, b"", 0)
            for key in keys:
                self._keeper.drop(key.id)

        self._start(Transfer("dropping keys"), drop)

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Find a value and keep it readable. See `LookupBuffer.claim`."""
        transfer: Transfer[Claim] = Transfer(f"claiming {key.id!r}", lambda: self._give_up_asking(transfer))
        limit = timeout or self._timeout

        def claim() -> None:
            check_limits([key], digest, limit)
            if take and not self._store.capabilities.takes:
                raise UnsupportedError(f"the store {self._store.name!r} has no exclusive taking", flag="takes")
            self._asking[transfer] = key
            self._look(key, digest, transfer, time.monotonic() + limit, FIRST_LOOK, take=take)

        return self._start(transfer, claim)

    def _give_up_asking(self, transfer: Transfer[Claim]) -> None:
        self._endpoint.call_soon(lambda: self._answer(transfer, cancelled(transfer.what)))

    def _look(
        self, key: Key, digest: bytes, transfer: Transfer[Claim], deadline: float, pause: float, *, take: bool
    ) -> None:
        if transfer not in self._asking:
            return
        try:
            stored = self._keeper.find(key.id, digest, take=take)
            if stored is not None:
                self._answer(transfer, StoreClaim(self, decode(stored.header).spec, stored, transfer.what))
                return
        except KVBridgeError as error:
            self._answer(transfer, error)
            return
        if time.monotonic() >= deadline:
            self._answer(transfer, KeyUnknownError(f"no value arrived under {key.id!r} in time"))
            return
        again = min(pause, max(0.0, deadline - time.monotonic()))
        later = min(2 * pause, LAST_LOOK)
        self._endpoint.after(again, lambda: self._look(key, digest, transfer, deadline, later, take=take))

    def _answer(self, transfer: Transfer[Claim], value: Claim | KVBridgeError) -> None:
        asked = self._asking.pop(transfer, None) is not None
        if isinstance(value, KVBridgeError):
            transfer.fail(value)
        elif asked:
            transfer.resolve(value)

    def drop_select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Take a value into `out`. See `LookupBuffer.drop_select`."""
        return fill_claim(self.claim(key, digest=digest, take=True, timeout=timeout), out, skip)

    def select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Copy a value into `out`. See `LookupBuffer.select`."""
        return fill_claim(self.claim(key, digest=digest, take=False, timeout=timeout), out, skip)

    def read(self, stored: Stored, what: str, out: Payload, skip: int) -> Transfer[None]:
        """Read a claimed value; it is let go of when the transfer ends. For claims."""
        moving = self._new(what, lambda _: stored.release())

        def read() -> None:
            try:
                check_claimed(out, self._store.capabilities)
            except KVBridgeError:
                stored.release()
                raise
            moving.start(lambda: stored.read(out, skip), self._timeout)

        return self._start(moving.transfer, read)

    def let_go(self, stored: Stored) -> None:
        """Let go of a claimed value. For claims."""
        with contextlib.suppress(KVBridgeError):
            self._endpoint.call_soon(stored.release)

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say which keys have a live value. See `LookupBuffer.contains`."""
        transfer: Transfer[list[bool]] = Transfer("asking which keys exist")

        def contains() -> None:
            check_limits(keys, b"", timeout)
            transfer.resolve(self._keeper.alive([key.id for key in keys]))

        return self._start(transfer, contains)

    def stats(self) -> Mapping[str, float]:
        """Return statistics. See `Keeper.stats`."""
        return self._keeper.stats()

    def close(self) -> None:
        """Finish every transfer. Values stay in the store. Idempotent, bounded."""
        done = threading.Event()
        with contextlib.suppress(KVBridgeError):
            self._endpoint.call_soon(lambda: self._finish(ClosedError("the buffer was closed")))
            self._endpoint.call_soon(done.set)
            done.wait(CLOSE_TIMEOUT)

    def _finish(self, error: KVBridgeError) -> None:
        self._closed = self._closed or ClosedError(str(error))
        for transfer in list(self._asking):
            self._answer(transfer, self._closed)
        for moving in list(self._moving):
            moving.stop(self._closed)

    def _new(self, what: str, ended: Callable[[KVBridgeError | None], None]) -> Moving:
        def over(error: KVBridgeError | None) -> None:
            self._moving.discard(moving)
            ended(error)

        moving = Moving(self._store, self._endpoint, what, over)
        moving.transfer.on_done(lambda _: self._moving.discard(moving))
        self._moving.add(moving)
        return moving

    def _start(self, transfer: Transfer[T], call: Callable[[], None]) -> Transfer[T]:
        """Run a call on the endpoint's thread; what it raises is how the transfer ends."""

        def guarded() -> None:
            try:
                if self._closed is not None:
                    raise self._closed
                call()
            except KVBridgeError as error:
                transfer.fail(error)

        try:
            self._endpoint.call_soon(guarded)
        except KVBridgeError as error:
            transfer.fail(error)
        return transfer
