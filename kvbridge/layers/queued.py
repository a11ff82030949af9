"""`QueuedBuffer`: any LookupBuffer, whose inserts end as soon as a copy of the value is in host memory.

The engine has its blocks back at once, however long the consumer takes. Where there is no room the value stays where
it is, as without this layer: a full queue holds the blocks, and nothing else.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kvbridge.errors import CapacityError, DuplicateKeyError, KeyDroppedError, KVBridgeError
from kvbridge.layers.packing import Packing, packed_pages
from kvbridge.layers.passing_buffer import WorkingBuffer
from kvbridge.memory.pages import Pages
from kvbridge.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.buffer import Key, LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload
    from kvbridge.memory.host_pool import HostBlock, HostPool


class QueuedBuffer(WorkingBuffer):
    """A buffer with a queue of copies. Close it: it closes the one inside, and the room.

    Args:
        inner: The buffer.
        endpoint: Whose thread copies, in slices between its other work.
        room: Host memory for the copies. It becomes the buffer's own.
    """

    def __init__(self, inner: LookupBuffer, endpoint: Endpoint, room: HostPool) -> None:
        self._room = room
        self._copies: dict[str, _Copy] = {}
        super().__init__(inner, endpoint)

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available. See `LookupBuffer.insert`; it ends when a copy is made, if there is room."""
        block = self._take(payload)
        if block is None:
            return self.inner.insert(key, payload, digest=digest, lease=lease, note=note)

        def hand_on(pages: Pages) -> Transfer[None]:
            return self.inner.insert(key, pages, digest=digest, lease=lease, note=note)

        copy = _Copy(self._endpoint, key.id, payload, block, hand_on)

        def over(done: Transfer[None]) -> None:
            del self._copies[key.id]
            self.counters["queued"] += done.error is None

        def start() -> None:
            if self.closed is not None:
                copy.stop(self.closed)
            elif key.id in self._copies:
                copy.stop(DuplicateKeyError(f"the key {key.id!r} has a value that is being copied, which stays"))
            else:
                self._copies[key.id] = copy
                copy.transfer.on_done(over)
                copy.start()

        try:
            self._endpoint.call_now(start)
        except KVBridgeError as error:
            copy.stop(error)
        return copy.transfer

    def _take(self, payload: Payload) -> HostBlock | None:
        if not isinstance(payload, Pages) or any(not len(ids) for ids in payload.block_ids):
            return None
        try:
            return self._room.allocate(payload.nbytes)
        except CapacityError:
            self.counters["queue_full"] += 1
        except KVBridgeError:
            return None  # closed: the buffer inside says so
        return None

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values, those included that are still being copied. See `LookupBuffer.drop`."""

        def drop() -> None:
            for key in keys:
                if key.id in self._copies:
                    why = KeyDroppedError(f"the value of {key.id!r} was dropped: nobody wanted it")
                    self._copies[key.id].stop(why)

        with contextlib.suppress(KVBridgeError):
            self._endpoint.call_soon(drop)
        self.inner.drop(keys)

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the buffer inside, and those of the queue."""
        counters = {name: float(count) for name, count in dict(self.counters).items()}
        return {**self.inner.stats(), **counters}

    def close(self) -> None:
        """Close the buffer inside, and the room. See `WorkingBuffer.close`."""
        super().close()
        self._room.close()

    def give_up(self, error: KVBridgeError) -> None:
        """Make no copies any more."""
        for copy in list(self._copies.values()):
            copy.stop(error)


class _Copy:
    """One insert: the value is copied, and the copy handed on."""

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        payload: Pages,
        block: HostBlock,
        hand_on: Callable[[Pages], Transfer[None]],
    ) -> None:
        self._endpoint = endpoint
        self._block = block
        self._spec = payload.spec
        self._hand_on = hand_on
        self._packing = Packing(endpoint, block.memory, payload, what=f"copying {name!r}", into=True)
        self.transfer: Transfer[None] = Transfer(f"inserting {name!r}", self._packing.transfer.cancel)
        self._packing.transfer.on_done(self._copied)

    def start(self) -> None:
        """Begin."""
        self._packing.start()

    def stop(self, error: KVBridgeError) -> None:
        """End, unless the copy was handed on."""
        self._packing.stop(error)

    def _copied(self, done: Transfer[None]) -> None:
        if done.error is not None:
            self._block.release()
            self.transfer.fail(done.error)
            return
        inserted = self._hand_on(packed_pages(self._block.memory, self._spec))
        inserted.on_done(lambda _: self._block.release())
        try:
            self._endpoint.call_soon(lambda: self._taken(inserted))  # by then it was taken, or refused
        except KVBridgeError as error:
            self.transfer.fail(error)

    def _taken(self, inserted: Transfer[None]) -> None:
        if inserted.error is not None:  # such as a duplicate
            self.transfer.fail(inserted.error)
        else:
            self.transfer.resolve(None)
