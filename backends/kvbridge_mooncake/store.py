"""`MooncakeStore`: values in Mooncake's distributed store, for several engines on several hosts.

A value is two objects of the library: its bytes, under a name that nobody else uses, and its *head* under its key,
which has the header and that name. The head is put last, and the library keeps the first one of a key, so that a value
is seen whole or not at all, and a key has one value. Who takes a value puts a mark under its name: the first one has
it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from kvbridge.abc import MoveState, Store, Stored, Task
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, DuplicateKeyError, KVBridgeError, LeaseExpiredError
from kvbridge.machine import has_rdma
from kvbridge.memory.copying import slices
from kvbridge.memory.payload import spec_of
from kvbridge.threads import Loop, Pool
from kvbridge_mooncake import library
from kvbridge_mooncake.client import Client, DownError, check_master
from kvbridge_mooncake.memory import Blocks, Memory
from kvbridge_mooncake.options import MooncakeStoreOptions
from kvbridge_mooncake.pieces import pieces, small

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvbridge.abc import Move
    from kvbridge.memory import Payload, Region

logger = logging.getLogger(__name__)

WORKERS = 8
"""Calls of the library at one time."""

SLICE_BYTES = 4 << 20
"""Bytes that are copied at a time, where values are copied."""

RENEWAL = 3.0
"""Seconds between two words to the library that what was found is still wanted. Its own lease is ten by default."""

CLOSE_TIMEOUT = 1.8
"""Seconds that `close` waits for the library."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What lies under a key.

    Attributes:
        name: Of the bytes.
        nbytes: How many there are; none are put for a value without any.
        header: The core's.
    """

    name: str
    nbytes: int
    header: bytes


_decoder = msgspec.msgpack.Decoder(Head)


class MooncakeStore(Store[MooncakeStoreOptions]):
    """Mooncake's store: capacity, eviction and replication are the library's."""

    name: ClassVar[str] = "mooncake-store"
    Options: ClassVar[type[msgspec.Struct]] = MooncakeStoreOptions

    def __init__(self, options: MooncakeStoreOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'mooncake-store' cannot work here: {found.reason}")
        self.client = Client(options)
        self.memory = Memory(self.client)
        self.pool = Pool("mooncake-store", WORKERS)
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()
        self._garbage: set[str] = set()
        self._closed = False
        self._woken = threading.Event()
        self._renewing = Loop("mooncake-store-renew", self._renew, self._woken.set)

    @classmethod
    def probe(cls, options: MooncakeStoreOptions) -> Probe:
        """Say whether the library is there, and a master."""
        if not sys.platform.startswith("linux"):
            return Probe(ok=False, reason="it needs Linux")
        why = library.missing()
        if not why and options.protocol == "rdma" and not has_rdma():
            why = "options.protocol is 'rdma' and this machine has no RDMA device: use 'tcp'"
        try:
            options.segment_bytes(), options.buffer_bytes()
            if not why:
                check_master(options.master)
        except KVBridgeError as error:
            why = str(error)
        if why:
            return Probe(ok=False, reason=why)
        return Probe(ok=True, reason=f"{library.package()} {library.version()}, master at {options.master}")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return Capabilities(
            buffer=True,
            takes=True,
            shared=True,
            tensors=True,
            pages=True,
            cross_process=True,
            cross_host=not self.options.master.startswith(("127.", "localhost:", "[::1]")),
            detaches=True,
        )

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions, once each: their pages are put and got without a copy here."""
        self.memory.keep(regions)

    def put(self, key: str, header: bytes, payload: Payload) -> Move:
        """Put the bytes, then the head."""
        nbytes = spec_of(payload).nbytes
        return self.pool.run(lambda: self._put(key, header, payload, nbytes))

    def find(self, key: str, *, take: bool) -> Task[Stored | None]:
        """Look at the head, and keep the bytes from being evicted."""
        return self.pool.run(lambda: self._find(key, take=take))

    def headers(self, keys: Sequence[str]) -> Task[list[bytes | None]]:
        """Look at heads, and whether their bytes are still there."""
        return self.pool.run(lambda: self._headers(keys))

    def remove(self, keys: Sequence[str]) -> Task[None]:
        """Remove heads, and bytes that nobody reads; the others later."""
        return self.pool.run(lambda: self._remove(keys))

    def close(self) -> None:
        """Leave the store. Values stay, but for those in this process's own segment. Idempotent."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT
        self._renewing.stop(0.0)
        leaving = self.pool.run(self._leave)
        while leaving.step() is not MoveState.DONE and time.monotonic() < deadline:
            time.sleep(0.005)
        self.pool.close(max(0.1, deadline - time.monotonic()))
        self._renewing.stop(max(0.1, deadline - time.monotonic()))

    # -- on the pool's threads --------------------------------------------------------------------------------

    def _put(self, key: str, header: bytes, payload: Payload, nbytes: int) -> None:
        if self._heads([key])[0] is not None:
            raise DuplicateKeyError(f"the key {key!r} has a value: use a new key")
        name = secrets.token_hex(16)
        if nbytes:
            self._put_bytes(self._bytes(name), payload, nbytes)
        head = msgspec.msgpack.encode(Head(name, nbytes, header))
        try:
            self.client.put(self._head(key), head)
            mine = self.client.get([self._head(key)])[0] == head
        except KVBridgeError:
            self._discard([name])
            raise
        if not mine:
            self._discard([name])
            raise DuplicateKeyError(f"the key {key!r} got a value from somebody else at the same time")

    def _put_bytes(self, name: str, payload: Payload, nbytes: int) -> None:
        blocks = Blocks(payload)
        target = pieces(blocks)
        if small(target):
            packed = np.empty(nbytes, dtype=np.uint8)
            for part in slices(payload, SLICE_BYTES):
                part.gather(packed)
            blocks = Blocks(packed)
            target = pieces(blocks)
        with self._registered(blocks):
            self.client.put_from(name, target)

    @contextlib.contextmanager
    def _registered(self, blocks: Blocks) -> Iterator[None]:
        lent = self.memory.lend(blocks)
        try:
            yield
        finally:
            self.memory.take_back(lent)

    def _find(self, key: str, *, take: bool) -> Stored | None:
        head = self._heads([key])[0]
        if head is None:
            return None
        if take:
            token = secrets.token_bytes(16)
            mark = self._mark(head.name)
            self.client.put(mark, token)
            if self.client.get([mark])[0] != token:
                return None
            if self._found([self._head(key)])[0] != head:  # who took it has let go of it since, and of its mark
                self._discard([head.name])
                return None
            self.client.remove([self._head(key)], force=True)
        with self._lock:
            self._held[head.name] = self._held.get(head.name, 0) + 1
        return MooncakeStored(self, head, taken=take)

    def _headers(self, keys: Sequence[str]) -> list[bytes | None]:
        return [None if head is None else head.header for head in self._heads(keys)]

    def _heads(self, keys: Sequence[str]) -> list[Head | None]:
        """Return heads whose bytes are there. Where the master does not answer there are none."""
        try:
            heads = self._found([self._head(key) for key in keys])
            names = [head.name for head in heads if head is not None and head.nbytes]
            there = dict(zip(names, self.client.exist(list(map(self._bytes, names))), strict=True)) if names else {}
        except DownError:
            return [None] * len(keys)
        evicted = [
            key for key, head in zip(keys, heads, strict=True) if head is not None and not there.get(head.name, True)
        ]
        if evicted:
            self.client.remove([self._head(key) for key in evicted], force=True)
        return [head if head is not None and there.get(head.name, True) else None for head in heads]

    def _found(self, keys: Sequence[str]) -> list[Head | None]:
        """Get heads, but ask first: of what cannot be got the library does not say why."""
        there = [key for key, exists in zip(keys, self.client.exist(keys), strict=True) if exists]
        found = dict(zip(there, self.client.get(there), strict=True)) if there else {}
        return [_decode(found.get(key, b"")) for key in keys]

    def _remove(self, keys: Sequence[str]) -> None:
        heads = self._heads(keys)
        there = [self._head(key) for key, head in zip(keys, heads, strict=True) if head is not None]
        if there:
            self.client.remove(there, force=True)
        with self._lock:
            self._garbage.update(head.name for head in heads if head is not None)
        self._sweep()

    def _sweep(self) -> None:
        """Remove bytes that are not wanted any more, as far as nobody reads them."""
        with self._lock:
            names = [name for name in self._garbage if name not in self._held]
        if names:
            gone = self.client.remove([self._bytes(name) for name in names], force=False)
            with self._lock:
                self._garbage.difference_update(name for name, over in zip(names, gone, strict=True) if over)

    def _discard(self, names: Sequence[str]) -> None:
        with contextlib.suppress(KVBridgeError):
            self.client.remove([key for name in names for key in (self._bytes(name), self._mark(name))], force=True)

    def _leave(self) -> None:
        with contextlib.suppress(KVBridgeError):
            self._sweep()
        self.client.close()

    # -- for what was found -----------------------------------------------------------------------------------

    def read(self, head: Head, out: Payload, skip: int) -> None:
        """Get the bytes of a value. On a pool's thread."""
        blocks = Blocks(out)
        target = pieces(blocks)
        if not skip and not small(target):
            with self._registered(blocks):
                self._get_bytes(head, target)
            return
        packed = np.empty(head.nbytes, dtype=np.uint8)
        whole = Blocks(packed)
        with self._registered(whole):
            self._get_bytes(head, pieces(whole))
        for part in slices(out, SLICE_BYTES, skip):
            part.scatter(packed)

    def _get_bytes(self, head: Head, target: tuple[list[int], list[int]]) -> None:
        code = self.client.get_into(self._bytes(head.name), target)
        if code < 0 and code not in (-704, -707, -800):
            self.client.check("getting a value", code)
        if code != head.nbytes:
            raise LeaseExpiredError(f"the store has given the value up while it was read (code {code})")

    def let_go(self, head: Head, *, taken: bool) -> None:
        """Let the store do with a value's bytes as it likes, or remove those of one that was taken."""
        with self._lock:
            self._held[head.name] -= 1
            if not self._held[head.name]:
                del self._held[head.name]
        if taken:
            with contextlib.suppress(KVBridgeError):  # closed: the store evicts it in time
                self.pool.run(lambda: self._discard([head.name]))

    def _renew(self) -> None:
        self._woken.wait(RENEWAL)
        with self._lock:
            names = list(self._held)
        with contextlib.suppress(KVBridgeError):
            if names and not self._closed:
                self.client.exist([self._bytes(name) for name in names])

    def _head(self, key: str) -> str:
        return f"{self.options.namespace}/h/{key}"

    def _bytes(self, name: str) -> str:
        return f"{self.options.namespace}/b/{name}"

    def _mark(self, name: str) -> str:
        return f"{self.options.namespace}/t/{name}"


class MooncakeStored(Stored):
    """A value in the store."""

    def __init__(self, store: MooncakeStore, head: Head, *, taken: bool) -> None:
        self.header = head.header
        self._store = store
        self._head = head
        self._taken = taken

    def read(self, out: Payload, skip: int) -> Move:
        """Get the bytes."""
        head, store = self._head, self._store

        def read() -> None:
            if head.nbytes:
                store.read(head, out, skip)

        return store.pool.run(read)

    def release(self) -> None:
        """Let go of it."""
        self._store.let_go(self._head, taken=self._taken)


def _decode(found: bytes) -> Head | None:
    if not found:
        return None
    try:
        return _decoder.decode(found)
    except msgspec.DecodeError:
        logger.warning("something that is not kvbridge's lies in the store under one of its keys")
        return None
