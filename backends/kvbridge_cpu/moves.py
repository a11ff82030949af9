"""The two copies of a hand-over: the producer gathers into its pool, the consumer scatters out of it, overlapped.

A value in the pool starts with a small header: its mark, and how many of its bytes are in place. The consumer
follows the producer slice by slice, so that the second copy runs while the first is still going on.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvbridge.abc import Held, Landing, MoveState
from kvbridge.errors import LeaseExpiredError, ProtocolError, TransportError
from kvbridge.memory.copying import slices
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvbridge.memory import Payload, Spec

VALUE_HEADER = 64
"""Bytes in front of a value: mark, progress, and padding to a cache line."""

FAILED = (1 << 64) - 1
"""Progress of a value whose gathering failed."""

SLICE_BYTES = 4 << 20
"""Bytes of one slice: about a millisecond of copying, so that heartbeats go on and the consumer can follow."""

FOLLOW_WAIT = 0.00005
"""Seconds between two looks at the producer's progress."""

FOLLOW_LOOKS = 20
"""Looks before the thread turns to other work."""

_barrier = threading.Lock()


def _fence() -> None:
    """Order memory: what was written before is visible to other processes before what is written after.

    Releasing and taking a lock is a full barrier on every processor that CPython runs on.
    """
    with _barrier:
        pass


class Place(msgspec.Struct, frozen=True):
    """Where a value is in its producer's segment, in bytes, and the mark it carries."""

    offset: int
    nbytes: int
    mark: int


class PooledValue(Held):
    """A value in the producer's pool."""

    def __init__(self, payload: Payload, place: Place, pool: NDArray[np.uint8], free: Callable[[], None]) -> None:
        self.descriptor = msgspec.msgpack.encode(place)
        self._free = free
        start = place.offset + VALUE_HEADER
        self._header = pool[place.offset : start].view(np.uint64)
        self._header[:2] = (place.mark, 0)
        self._packed = pool[start : start + place.nbytes]
        self._slices = slices(payload, SLICE_BYTES)

    def step(self) -> MoveState:
        """Gather one slice."""
        part = next(self._slices, None)
        if part is None:
            return MoveState.DONE
        try:
            part.gather(self._packed)
        except Exception:
            self._header[1] = FAILED
            raise
        _fence()
        self._header[1] = part.start + part.nbytes
        if part.start + part.nbytes < len(self._packed):
            return MoveState.AGAIN
        self._slices = iter(())  # the caller's memory is his again: keep nothing of it
        return MoveState.DONE

    def release(self) -> None:
        """Give the place in the pool back."""
        self._header[:2] = (0, FAILED)
        self._slices = iter(())
        self._header, self._packed = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint8)
        self._free()


class FollowedValue(Landing):
    """A value on its way out of a producer's pool."""

    def __init__(self, memory: NDArray[np.uint8], descriptor: bytes, spec: Spec, out: Payload, skip: int) -> None:
        try:
            place = msgspec.msgpack.decode(descriptor, type=Place)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the producer described a value in a way unknown here: {error}") from error
        start = place.offset + VALUE_HEADER
        if place.offset < 0 or place.offset % 8 or place.nbytes != spec.nbytes or start + place.nbytes > len(memory):
            raise ProtocolError(f"the producer described a value outside of its memory: {place}")
        self._mark = place.mark
        self._header = memory[place.offset : start].view(np.uint64)
        self._packed = memory[start : start + place.nbytes]
        self._slices = slices(out, SLICE_BYTES, skip)
        self._next = next(self._slices, None)
        self._aborted = False

    def step(self) -> MoveState:
        """Scatter one slice, as soon as the producer has it in place."""
        if self._aborted:
            raise cancelled("the copy")
        if self._next is None:
            self._check()
            return MoveState.DONE
        if not self._there(self._next.start + self._next.nbytes):
            return MoveState.WAIT
        self._next.scatter(self._packed)
        self._next = next(self._slices, None)
        if self._next is not None:
            return MoveState.AGAIN
        _fence()
        self._check()
        return MoveState.DONE

    def abort(self) -> None:
        """End the copy at the next slice."""
        self._aborted = True

    def _there(self, needed: int) -> bool:
        for _ in range(FOLLOW_LOOKS):
            self._check()
            if int(self._header[1]) >= needed:
                _fence()
                return True
            time.sleep(FOLLOW_WAIT)
        return False

    def _check(self) -> None:
        if int(self._header[0]) != self._mark:
            raise LeaseExpiredError("the producer gave the value up while it was being copied: it was too slow")
        if int(self._header[1]) == FAILED:
            raise TransportError("the producer could not gather the value")
