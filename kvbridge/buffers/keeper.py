"""`Keeper`: what a StoreBuffer knows of values: their headers, their leases, and why a key has none any more."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.buffers.limits import check_limits
from kvbridge.buffers.steps import Begin, Pause, Script
from kvbridge.buffers.tombstones import Tombstones
from kvbridge.buffers.turns import Turns
from kvbridge.errors import (
    BindingMismatchError,
    CapacityError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KVBridgeError,
    ProtocolError,
)
from kvbridge.memory.payload import Spec, check_source
from kvbridge.transfer import run_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.buffer import Key
    from kvbridge.abc.store import Store, Stored
    from kvbridge.memory import Payload


AGAIN = 0.05
"""Seconds until a value for which the store had no room is put again."""


class Header(msgspec.Struct, frozen=True):
    """What is put with a value.

    Attributes:
        spec: What the value is.
        digest: What it is KV of.
        expires: When its lease ends, in seconds of Unix time: processes of several hosts share a store.
        note: What its user says of it.
    """

    spec: Spec
    digest: bytes
    expires: float
    note: bytes = b""

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
    """Values of one store, as one process knows them. All methods belong to the endpoint's thread.

    What an operation does is a script for `Steps`. Those on one key come one after the other, in the order in which
    they began, so that what was read under a key is still so, as far as this process can tell, when something is done
    about it. But an insert may take long: who looks for its value meanwhile is told that there is none yet.

    Args:
        store: The store.
        lapses: Called with the key of a value that was inserted and the end of its lease: then `expire` is to be run.
        patient: Whether a value for which there is no room yet waits for it, as long as its lease lasts.
    """

    def __init__(self, store: Store[Any], lapses: Callable[[str, float], None], *, patient: bool = False) -> None:
        self.counters: Counter[str] = Counter()
        self._store = store
        self._lapses = lapses
        self._patient = patient
        self._turns = Turns()
        self._entries: dict[str, tuple[int, float]] = {}
        self._tombstones = Tombstones()

    def stats(self) -> dict[str, float]:
        """Return counters; `entries` and `bytes` are of what has a lease from here and is not known to be gone."""
        entries = list(self._entries.values())
        return {**self.counters, "entries": len(entries), "bytes": sum(nbytes for nbytes, _ in entries)}

    def knows(self, key: str, expires: float) -> bool:
        """Whether a value with this lease was inserted here and is not known to be gone."""
        return key in self._entries and self._entries[key][1] == expires

    def alive(self, keys: Sequence[Key], timeout: float) -> Script[list[bool]]:
        """Say for each key whether it has a live value."""
        check_limits(keys, b"", timeout)
        found = yield Begin(lambda: self._store.headers([key.id for key in keys]))
        now = time.time()
        return [header is not None and decode(header).expires > now for header in found]

    def insert(self, key: Key, payload: Payload, digest: bytes, lease: float, note: bytes = b"") -> Script[None]:
        """Put a value into the store.

        Raises:
            DuplicateKeyError: The key has a live value.
        """
        check_limits([key], digest, 0 if lease == math.inf else lease, note)
        spec = check_source(payload, self._store.capabilities)
        with self._turns.join(key.id, inserts=True) as turn:
            try:
                yield Begin(lambda: turn)
                yield from self._make_room(key.id)
                expires = time.time() + lease
                header = Header(spec, digest, expires, note).encode()
                yield from self._put(key.id, header, payload, expires)
            except DuplicateKeyError:
                self.counters["refused_duplicate"] += 1
                raise
            except KVBridgeError as error:
                self.counters["failed_insert"] += 1
                self._tombstones.set(key.id, KeyDroppedError(f"its insert failed: {error}"))
                raise
            self.counters["inserted"] += 1
            self._tombstones.discard(key.id)
            if lease != math.inf:  # else nobody tells when the store gives it up
                self._entries[key.id] = spec.nbytes, expires
                self._lapses(key.id, expires)

    def _put(self, key: str, header: bytes, payload: Payload, expires: float) -> Script[None]:
        for turn in itertools.count():
            try:
                yield Begin(lambda: self._store.put(key, header, payload), touches=True)
            except CapacityError:
                if not self._patient or time.time() + AGAIN >= expires:
                    raise
                self.counters["delayed_inserts"] += not turn
                yield Begin(lambda: Pause(AGAIN))
            else:
                return

    def drop(self, keys: Sequence[Key]) -> Script[None]:
        """Give up values that nobody wants."""
        check_limits(keys, b"", 0)
        ids = list(dict.fromkeys(key.id for key in keys))
        with self._turns.join(*ids) as turn:
            yield Begin(lambda: turn)
            found = yield Begin(lambda: self._store.headers(ids))
            there = [key for key, header in zip(ids, found, strict=True) if header is not None]
            if there:
                why = {key: KeyDroppedError(f"the value of {key!r} was dropped: nobody wanted it") for key in there}
                yield from self._give_up(why, "dropped")

    def expire(self, key: str, expires: float) -> Script[None]:
        """Give up the value with this lease, unless it is gone, or another has come in its place."""
        with self._turns.join(key) as turn:
            yield Begin(lambda: turn)
            header = yield from self._header(key)
            if header is not None and header.expires == expires:
                yield from self._lapse(key)
            elif self.knows(key, expires):
                del self._entries[key]

    def find(self, key: str, digest: bytes, *, take: bool) -> Script[tuple[Header, Stored] | None]:
        """Find a value that is alive and what was asked for; None if there is none yet.

        Raises:
            KVBridgeError: It will not come, or is something else.
        """
        if self._turns.inserting(key) and (yield from self._header(key)) is None:
            return None
        with self._turns.join(key) as turn:
            yield Begin(lambda: turn)
            header = yield from self._header(key)
            if header is None:
                why = self._tombstones.get(key)
                if why is not None:
                    raise why
                return None
            if header.expires <= time.time():
                yield from self._lapse(key)
                return None
            self._check(key, header, digest)
            stored = yield Begin(lambda: self._store.find(key, take=take))
            if stored is None:
                return None
            if take:
                self.counters["taken"] += 1
                self._entries.pop(key, None)
                self._tombstones.set(key, KeyConsumedError(f"the value of {key!r} was taken: keys are single-use"))
        try:
            header = decode(stored.header)  # another process may have replaced what was there a moment ago
            self._check(key, header, digest)
        except KVBridgeError:
            run_callback(stored.release)
            raise
        return header, stored

    def _check(self, key: str, header: Header, digest: bytes) -> None:
        if header.digest != digest:
            self.counters["refused_binding"] += 1
            raise BindingMismatchError(f"the value of {key!r} is KV of something else than asked for")

    def _header(self, key: str) -> Script[Header | None]:
        found = yield Begin(lambda: self._store.headers([key]))
        return None if found[0] is None else decode(found[0])

    def _make_room(self, key: str) -> Script[None]:
        header = yield from self._header(key)
        if header is None:
            return
        if header.expires > time.time():
            raise DuplicateKeyError(f"the key {key!r} has a live value, which stays: use a new id")
        yield from self._lapse(key)

    def _lapse(self, key: str) -> Script[None]:
        why = KeyExpiredError(f"nobody took the value of {key!r} before its lease ended")
        yield from self._give_up({key: why}, "expired")

    def _give_up(self, why: Mapping[str, KVBridgeError], counter: str) -> Script[None]:
        yield Begin(lambda: self._store.remove(list(why)))
        for key, error in why.items():
            self.counters[counter] += 1
            self._entries.pop(key, None)
            self._tombstones.set(key, error)
