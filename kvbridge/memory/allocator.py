"""`Allocator`: offsets in a pool of bytes, best fit, neighbours merged on release, exact accounting."""

from __future__ import annotations

import bisect

from kvbridge.errors import CapacityError, KVBridgeError

ALIGNMENT = 4096
"""Bytes: a memory page, so that no two values share one and copies start aligned."""


class Allocator:
    """Hands out ranges of `[0, capacity)`. Not thread-safe: its owner calls it from one thread.

    Args:
        capacity: Bytes of the pool; rounded down to the alignment.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self._free: dict[int, int] = {0: self.capacity} if self.capacity else {}
        self._starts: list[int] = sorted(self._free)
        self._used: dict[int, int] = {}
        self.used = 0

    def allocate(self, nbytes: int) -> int:
        """Reserve a range and return its offset. The smallest hole that fits is taken, the lowest of equals.

        Raises:
            CapacityError: No hole is large enough.
        """
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        fits = [start for start in self._starts if self._free[start] >= size]
        if not fits:
            raise CapacityError(
                f"a value of {nbytes} bytes does not fit: {self.used} of {self.capacity} bytes are in use and the "
                f"largest hole has {max(self._free.values(), default=0)} bytes. Raise `capacity`, or shorten the lease"
            )
        start = min(fits, key=self._free.__getitem__)
        hole = self._free.pop(start)
        self._starts.remove(start)
        if hole > size:
            self._insert(start + size, hole - size)
        self._used[start] = size
        self.used += size
        return start

    def release(self, start: int) -> None:
        """Give a range back.

        Raises:
            KVBridgeError: Nothing is allocated at `start`: a bug of the caller, and the pool stays as it was.
        """
        size = self._used.pop(start, None)
        if size is None:
            raise KVBridgeError(f"nothing is allocated at offset {start}")
        self.used -= size
        index = bisect.bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start + size:
            size += self._free.pop(self._starts.pop(index))
        if index and self._starts[index - 1] + self._free[self._starts[index - 1]] == start:
            previous = self._starts[index - 1]
            self._free[previous] += size
            return
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._starts, start)
        self._free[start] = size
