"""`StoreBuffer`: a LookupBuffer on any store. The store keeps bytes by key; what they are and for how long is ours."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge import tracing
from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.buffers.keeper import Keeper
from kvbridge.buffers.limits import check_limits
from kvbridge.buffers.looking import Looking
from kvbridge.buffers.moving import Moving
from kvbridge.buffers.steps import Begin
from kvbridge.errors import BusyError, ClosedError, KVBridgeError, UnsupportedError
from kvbridge.memory.payload import check_claimed, check_destination
from kvbridge.transfer import Transfer, failed, run_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.store import Store, Stored
    from kvbridge.buffers.keeper import Header
    from kvbridge.buffers.looking import Found
    from kvbridge.buffers.moving import Ended
    from kvbridge.buffers.steps import Script
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload

T = TypeVar("T")

EXPIRE_AGAIN = 10.0
"""Seconds until a value whose lease has ended, and that could not be given up, is tried again."""

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for the endpoint's thread."""


class StoreClaim(Claim):
    """A value that was found, and stays readable until it is filled or released."""

    def __init__(self, buffer: StoreBuffer, key: str, header: Header, stored: Stored) -> None:
        self.spec = header.spec
        self.note = header.note
        self._buffer = buffer
        self._key = key
        self._stored = stored
        self._what = f"filling the claim of {key!r}"
        self._use = threading.Lock()

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Read the value into `out`, once. See `Claim.fill`."""
        try:
            check_destination(self.spec, out, skip)
            if not self._use.acquire(blocking=False):
                raise BusyError(f"{self._what}: the claim was filled or released before")
        except KVBridgeError as error:
            return failed(self._what, error)
        tracing.begin("fill", self._key, skip=skip)
        transfer = self._buffer.read(self._stored, self._what, out, skip)
        tracing.end_with("fill", self._key, transfer)
        return transfer

    def release(self) -> None:
        """Let go of the value. Idempotent."""
        if self._use.acquire(blocking=False):
            self._buffer.let_go(self._stored)


class StoreBuffer(LookupBuffer):
    """Keyed values in a store. See `LookupBuffer`; `Key.home` does not matter.

    Many operations are under way at one time; `Keeper` says which of them wait for each other.

    Args:
        store: The store.
        endpoint: Whose thread is used.
        lease: Default lease in seconds.
        timeout: Default deadline of a question or transfer in seconds.
        patient: Whether an insert for which there is no room waits for it.
    """

    def __init__(
        self, store: Store[Any], endpoint: Endpoint, *, lease: float, timeout: float, patient: bool = False
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._lease = lease
        self._timeout = timeout
        self._closed: ClosedError | None = None
        self._keeper = Keeper(store, self._expire_at, patient=patient)
        self._moving: set[Moving[Any]] = set()
        self._looking: set[Looking] = set()
        endpoint.call_soon(lambda: endpoint.on_close(self._finish))

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Store a value. See `LookupBuffer.insert`."""
        script = self._keeper.insert(key, payload, digest, lease or self._lease, note)
        tracing.begin("insert", key.id)
        transfer = self._run(f"inserting {key.id!r}", script)
        tracing.end_with("insert", key.id, transfer)
        return transfer

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values. See `LookupBuffer.drop`."""
        self._run("dropping keys", self._keeper.drop(keys))

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Find a value and keep it readable. See `LookupBuffer.claim`."""
        what, limit = f"claiming {key.id!r}", timeout or self._timeout

        def unwanted(found: Found) -> None:
            if take:
                self._keeper.counters["not_taken"] += 1
            run_callback(found[1].release)

        looking = Looking(
            self._endpoint,
            what,
            limit,
            lambda ended: self._new(what, self._keeper.find(key.id, digest, take=take), ended),
            lambda found: StoreClaim(self, key.id, *found),
            unwanted,
        )

        def start() -> None:
            try:
                check_limits([key], digest, limit)
                if take and not self._store.capabilities.takes:
                    raise UnsupportedError(f"the store {self._store.name!r} has no exclusive taking", flag="takes")
            except KVBridgeError as error:
                looking.stop(error)
            looking.start()

        tracing.begin("claim", key.id)
        tracing.end_with("claim", key.id, looking.transfer)
        self._looking.add(looking)
        looking.transfer.on_done(lambda _: self._looking.discard(looking))
        self._start(looking, start)
        return looking.transfer

    def read(self, stored: Stored, what: str, out: Payload, skip: int) -> Transfer[None]:
        """Read a claimed value; it is let go of when that has ended. For claims."""

        def script() -> Script[None]:
            check_claimed(out, self._store.capabilities)
            yield Begin(lambda: stored.read(out, skip), touches=True)

        return self._run(what, script(), lambda *_: stored.release(), self._timeout)

    def let_go(self, stored: Stored) -> None:
        """Let go of a claimed value. For claims."""
        with contextlib.suppress(KVBridgeError):
            self._endpoint.call_soon(stored.release)

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say which keys have a live value. See `LookupBuffer.contains`."""
        limit = timeout or self._timeout
        return self._run("asking which keys exist", self._keeper.alive(keys, limit), timeout=limit)

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
        for looking in list(self._looking):
            looking.stop(self._closed)
        for moving in list(self._moving):
            moving.stop(self._closed)

    def _expire_at(self, key: str, expires: float) -> None:
        self._endpoint.after(max(0.0, expires - time.time()), lambda: self._expire(key, expires))

    def _expire(self, key: str, expires: float) -> None:
        def ended(_: None, error: KVBridgeError | None) -> None:
            if error is not None:
                self._keeper.counters["failed_expiry"] += 1
                self._endpoint.after(EXPIRE_AGAIN, lambda: self._expire(key, expires))

        if self._keeper.knows(key, expires):
            self._new(f"giving up {key!r}", self._keeper.expire(key, expires), ended).start()

    def _new(self, what: str, script: Script[T], ended: Ended[T] | None = None) -> Moving[T]:
        def over(result: T | None, error: KVBridgeError | None) -> None:
            self._moving.discard(moving)
            if ended is not None:
                ended(result, error)

        moving = Moving(self._store, self._endpoint, what, script, over)
        self._moving.add(moving)
        return moving

    def _run(self, what: str, script: Script[T], ended: Ended[T] | None = None, timeout: float = 0.0) -> Transfer[T]:
        moving = self._new(what, script, ended)
        self._start(moving, lambda: moving.start(timeout))
        return moving.transfer

    def _start(self, one: Moving[Any] | Looking, start: Callable[[], None]) -> None:
        """Start something on the endpoint's thread. Once the buffer is closed it is stopped before."""

        def begin() -> None:
            if self._closed is not None:
                one.stop(self._closed)
            start()

        try:
            self._endpoint.call_soon(begin)
        except KVBridgeError as error:
            one.transfer.fail(error)
