"""Bytes on their way into files and out of them, on the threads of a pool, in slices between which they can be stopped.

Pages are gathered into a buffer and scattered out of one: a file is written and read in runs of some MiB, however small
its pages are. A tensor is written and read where it is. Files are never mapped: one that somebody cuts short would end
the process by a signal.
"""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kvbridge.abc import MoveState, Task
from kvbridge.errors import ClosedError, SpecMismatchError, UnsupportedError
from kvbridge.memory import Pages, Payload, spec_of
from kvbridge.memory.copying import slices
from kvbridge.memory.tensors import tensor_bytes
from kvbridge.transfer import cancelled
from kvbridge_files.head import PIECE_BYTES, DamagedError, Front, Sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvbridge.memory.copying import Slice
    from kvbridge.threads import Pool

T = TypeVar("T")

WINDOW_BYTES = 16 * PIECE_BYTES
"""Bytes that are written or read at a time, 4 MiB: about three milliseconds, after which an abort is heard."""

_scratch = threading.local()


class Stop:
    """What a call on a thread looks at between two slices.

    Args:
        what: What is being done, for messages.
        closing: Set when the store is being closed.
    """

    def __init__(self, what: str, closing: threading.Event) -> None:
        self.asked = False
        self._what = what
        self._closing = closing

    def check(self) -> None:
        """Return if it may go on.

        Raises:
            CancelledError: It was aborted.
            ClosedError: The store is being closed.
        """
        if self.asked:
            raise cancelled(self._what)
        if self._closing.is_set():
            raise ClosedError(f"{self._what}: the store was closed")


class Work(Task[T]):
    """A call on a pool's thread that hears of an abort between two slices.

    Args:
        pool: The pool.
        stop: What the call looks at.
        call: The call. When it has ended it uses no memory of the caller's any more.
    """

    def __init__(self, pool: Pool, stop: Stop, call: Callable[[], T]) -> None:
        self._stop = stop
        self._task = pool.run(call)

    def step(self) -> MoveState:
        """Look whether the call has ended."""
        state = self._task.step()
        if state is MoveState.DONE:
            self.result = self._task.result
        return state

    def abort(self) -> None:
        """Ask for an end. It comes with the next slice."""
        self._stop.asked = True
        self._task.abort()


def host_memory(payload: Payload) -> Payload:
    """Refuse what cannot be moved. A tensor becomes its bytes.

    Raises:
        UnsupportedError: It is on a device.
    """
    if not isinstance(payload, Pages):
        return tensor_bytes(payload)
    if any(region.host is None for region in payload.regions):
        raise UnsupportedError("the pages are on a device: this backend moves host memory only", flag="cuda")
    return payload


def write_value(fd: int, start: int, payload: Payload, sums: Sums, stop: Stop) -> None:
    """Write a value.

    Args:
        fd: The file.
        start: Where in the file the value begins.
        payload: What `host_memory` made of it.
        sums: Get the checksums.
        stop: Looked at between slices.
    """
    if not isinstance(payload, Pages):
        for first in range(0, payload.nbytes, WINDOW_BYTES):
            _write(fd, payload[first : first + WINDOW_BYTES], start + first, sums, stop)
        return
    buffer = _buffer(max([WINDOW_BYTES, *(region.page_bytes for region in payload.regions)]))
    at, filled = start, 0
    for part in slices(payload, PIECE_BYTES):
        if filled + part.nbytes > buffer.nbytes:
            _write(fd, buffer[:filled], at, sums, stop)
            at, filled = at + filled, 0
        replace(part, start=filled).gather(buffer)
        filled += part.nbytes
    _write(fd, buffer[:filled], at, sums, stop)


def read_value(fd: int, front: Front, out: Payload, skip: int, stop: Stop) -> None:
    """Read a value, and check every piece of which a byte is wanted.

    Args:
        fd: The file.
        front: Its beginning.
        out: Destination: what `host_memory` made of it. After an error it has whatever was read so far.
        skip: Blocks at the beginning of every region that are not wanted.
        stop: Looked at between slices.

    Raises:
        DamagedError: A piece is not what was written.
        SpecMismatchError: The destination is not as large as the value.
    """
    _check_size(front, out, skip)
    if not isinstance(out, Pages):
        for first in range(0, out.nbytes, WINDOW_BYTES):
            _read(fd, front, first, out[first : first + WINDOW_BYTES], stop)
        return
    window: list[Slice] = []
    low = high = 0
    for part in slices(out, PIECE_BYTES, skip):
        first = part.start // PIECE_BYTES * PIECE_BYTES
        last = min(front.head.nbytes, -(-(part.start + part.nbytes) // PIECE_BYTES) * PIECE_BYTES)
        if window and (first > high or last - low > WINDOW_BYTES):
            _scatter(fd, front, window, (low, high), stop)
            window = []
        low = low if window else first
        high = last
        window.append(part)
    if window:
        _scatter(fd, front, window, (low, high), stop)


def _check_size(front: Front, out: Payload, skip: int) -> None:
    if isinstance(out, Pages):
        wanted = sum(
            region.page_bytes * (len(ids) + skip) for region, ids in zip(out.regions, out.block_ids, strict=True)
        )
    else:
        wanted = spec_of(out).nbytes
    if wanted != front.head.nbytes:
        raise SpecMismatchError(
            f"the destination and what is skipped have {wanted} bytes, the value of {front.head.key!r} has "
            f"{front.head.nbytes}"
        )


def _scatter(fd: int, front: Front, window: list[Slice], bounds: tuple[int, int], stop: Stop) -> None:
    """Read the whole pieces between two offsets of the value, and copy slices out of them."""
    low, high = bounds
    buffer = _buffer(high - low)[: high - low]
    _read(fd, front, low, buffer, stop)
    for part in window:
        replace(part, start=part.start - low).scatter(buffer)


def _read(fd: int, front: Front, first: int, into: NDArray[np.uint8], stop: Stop) -> None:
    """Read whole pieces from an offset of the value on, and check them."""
    stop.check()
    view = into.data
    done = 0
    while done < view.nbytes:
        count = os.preadv(fd, [view[done:]], front.start + first + done)
        if not count:
            raise DamagedError(f"the file of {front.head.key!r} was cut short while it was read")
        done += count
    for start in range(0, view.nbytes, PIECE_BYTES):
        index = (first + start) // PIECE_BYTES
        if zlib.crc32(view[start : start + PIECE_BYTES]) != front.sums[index]:
            raise DamagedError(f"piece {index} of the file of {front.head.key!r} is not what was written")


def _write(fd: int, packed: NDArray[np.uint8], at: int, sums: Sums, stop: Stop) -> None:
    stop.check()
    sums.add(packed)
    write_all(fd, packed.data, at)


def write_all(fd: int, view: memoryview, at: int) -> None:
    """Write all of some bytes at an offset: a full disk takes the first of them before it says so."""
    while view.nbytes:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


def _buffer(nbytes: int) -> NDArray[np.uint8]:
    """Return this thread's buffer, made larger where it has to be: fresh memory costs as much as the copy into it."""
    found: NDArray[np.uint8] | None = getattr(_scratch, "buffer", None)
    if found is None or found.nbytes < nbytes:
        found = _scratch.buffer = np.empty(max(nbytes, WINDOW_BYTES), dtype=np.uint8)
    return found
