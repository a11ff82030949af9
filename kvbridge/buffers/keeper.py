"""`Keeper`: what a StoreBuffer knows of values: their headers, their leases, and why a key has none any more."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.buffers.tombstones import Tombstones
from kvbridge.control.attempt import attempt
from kvbridge.errors import (
    BindingMismatchError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KVBridgeError,
    ProtocolError,
)
from kvbridge.memory.payload import Spec  # noqa: TC001 - msgspec looks at it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc.store import Store, Stored
    from kvbridge.control.endpoint import Endpoint


class Header(msgspec.Struct, frozen=True):
    """What is put with a value.

    Attributes:
        spec: What the value is.
        digest: What it is KV of.
        expires: When its lease ends, in seconds of Unix time: processes of several hosts share a store.
    """

    spec: Spec
    digest: bytes
    expires: float

    def encode(self) -> bytes:
        """Return it as the bytes that a store keeps."""
        return msgspec.msgpack.encode(self)


_decoder = msgspec.msgpack.Decoder(Header)


def decode(header: bytes) -> Header:
    """Read a header.

    Raises:
        ProtocolError: It is none.
    """
    try:
        return _decoder.decode(header)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the store gave a header that no kvbridge wrote: {error}") from error


class Keeper:
    """Values of one store, as one process knows them. All methods belong to the endpoint's thread."""

    def __init__(self, store: Store[Any], endpoint: Endpoint) -> None:
        self.counters: Counter[str] = Counter()
        self._store = store
        self._endpoint = endpoint
        self._entries: dict[str, tuple[int, float]] = {}
        self._tombstones = Tombstones()

    def stats(self) -> dict[str, float]:
        """Return counters; `entries` and `bytes` are of what was inserted here and is not known to be gone."""
        entries = list(self._entries.values())
        return {**self.counters, "entries": len(entries), "bytes": sum(nbytes for nbytes, _ in entries)}

    def alive(self, keys: Sequence[str]) -> list[bool]:
        """Say for each key whether it has a live value."""
        now = time.time()
        found = attempt(self._store, lambda: self._store.headers(keys))
        return [header is not None and decode(header).expires > now for header in found]

    def make_room(self, key: str) -> None:
        """Give up a value whose time is over, so that its key is free.

        Raises:
            DuplicateKeyError: The key has a live value.
        """
        header = self._header(key)
        if header is None:
            return
        if header.expires > time.time():
            self.counters["refused_duplicate"] += 1
            raise DuplicateKeyError(f"the key {key!r} has a live value, which stays: use a new id")
        self._give_up(key, "expired", KeyExpiredError(f"the lease of {key!r} had ended"))

    def put(self, key: str, nbytes: int, expires: float, error: KVBridgeError | None) -> None:
        """Take note of how an insert ended."""
        if error is None:
            self.counters["inserted"] += 1
            self._tombstones.discard(key)
            self._entries[key] = nbytes, expires
            self._endpoint.after(max(0.0, expires - time.time()), lambda: self._expire(key, expires))
        elif isinstance(error, DuplicateKeyError):
            self.counters["refused_duplicate"] += 1
        else:
            self.counters["failed_insert"] += 1
            self._tombstones.set(key, KeyDroppedError(f"its insert failed: {error}"))

    def drop(self, key: str) -> None:
        """Give a value up that nobody wants."""
        if self._header(key) is not None:
            self._give_up(key, "dropped", KeyDroppedError(f"the value of {key!r} was dropped: nobody wanted it"))

    def find(self, key: str, digest: bytes, *, take: bool) -> Stored | None:
        """Find a value that is alive and what was asked for; None if there is none yet.

        Raises:
            KVBridgeError: It will not come, or is something else.
        """
        header = self._header(key)
        if header is None:
            why = self._tombstones.get(key)
            if why is not None:
                raise why
            return None
        if header.expires <= time.time():
            self._give_up(key, "expired", KeyExpiredError(f"the lease of {key!r} has ended"))
            return None
        if header.digest != digest:
            self.counters["refused_binding"] += 1
            raise BindingMismatchError(f"the value of {key!r} is KV of something else than asked for")
        stored = attempt(self._store, lambda: self._store.find(key, take=take))
        if stored is not None and take:
            self.counters["taken"] += 1
            self._entries.pop(key, None)
            self._tombstones.set(key, KeyConsumedError(f"the value of {key!r} was taken: keys are single-use"))
        return stored

    def _header(self, key: str) -> Header | None:
        found = attempt(self._store, lambda: self._store.headers([key]))[0]
        return None if found is None else decode(found)

    def _expire(self, key: str, expires: float) -> None:
        entry = self._entries.get(key)
        if entry is None or entry[1] != expires:
            return
        header = self._header(key)
        if header is None or header.expires != expires:  # taken or dropped elsewhere, or another value by now
            del self._entries[key]
            return
        self._give_up(key, "expired", KeyExpiredError(f"nobody took the value of {key!r} before its lease ended"))

    def _give_up(self, key: str, counter: str, why: KVBridgeError) -> None:
        attempt(self._store, lambda: self._store.remove([key]))
        self.counters[counter] += 1
        self._entries.pop(key, None)
        self._tombstones.set(key, why)
