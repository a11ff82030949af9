"""`Allocator`: offsets in a pool of bytes, best fit, neighbours merged on release, exact accounting."""

from __future__ import annotations

import bisect

from kvbridge.errors import CapacityError, ConfigError, KVBridgeError

ALIGNMENT = 4096
"""Bytes: a memory page, so that no two values share one and copies start aligned."""


class Allocator:
    """Hands out ranges of `[0, capacity)`. Not thread-safe: its owner calls it from one thread, or under a lock.

    Holes stand by size, then by start, so that the one that fits best is found by bisection, and their ends by
    position, so that a range finds its neighbours at once.

    Args:
        capacity: Bytes of the pool; rounded down to the alignment.
        alignment: Bytes, a power of two: every range starts at a multiple of it and takes a multiple of it.

    Attributes:
        capacity: Bytes of the pool.
        alignment: As given.
        used: Bytes in use, alignment included.

    Raises:
        ConfigError: The alignment is no power of two.
    """

    def __init__(self, capacity: int, alignment: int = ALIGNMENT) -> None:
        if alignment < 1 or alignment & (alignment - 1):
            raise ConfigError(f"the alignment is {alignment} bytes, expected a power of two such as {ALIGNMENT}")
        self.capacity = capacity // alignment * alignment
        self.alignment = alignment
        self.used = 0
        self._used: dict[int, int] = {}  # size by start
        self._holes: list[tuple[int, int]] = []  # size and start, sorted
        self._sizes: dict[int, int] = {}  # size of a hole by its start
        self._starts: dict[int, int] = {}  # start of a hole by its end
        if self.capacity > 0:
            self._add(0, self.capacity)

    @property
    def largest(self) -> int:
        """Bytes of the largest hole; 0 when the pool is full."""
        return self._holes[-1][0] if self._holes else 0

    @property
    def holes(self) -> int:
        """Number of holes: runs of free bytes between ranges in use."""
        return len(self._holes)

    def fits(self, nbytes: int) -> bool:
        """Whether `allocate` would find a hole."""
        return self.largest >= max(1, nbytes)  # holes are multiples of the alignment

    def allocate(self, nbytes: int) -> int:
        """Reserve a range and return its offset. The smallest hole that fits is taken, the lowest of equals.

        Raises:
            CapacityError: No hole is large enough.
        """
        if not self.fits(nbytes):
            raise self.refusal(nbytes)
        size = -(-max(1, nbytes) // self.alignment) * self.alignment
        hole, start = self._holes[bisect.bisect_left(self._holes, (size, 0))]
        self._remove(start)
        if hole > size:
            self._add(start + size, hole - size)
        self._used[start] = size
        self.used += size
        return start

    def refusal(self, nbytes: int) -> CapacityError:
        """Make the error that says why a value does not fit."""
        return CapacityError(
            f"a value of {nbytes} bytes does not fit: {self.used} of {self.capacity} bytes are in use and the "
            f"largest hole has {self.largest} bytes. Raise `capacity`, or shorten the lease"
        )

    def release(self, start: int) -> None:
        """Give a range back.

        Raises:
            KVBridgeError: Nothing is allocated at `start`: a bug of the caller, and the pool stays as it was.
        """
        size = self._used.pop(start, None)
        if size is None:
            raise KVBridgeError(f"nothing is allocated at offset {start}")
        self.used -= size
        if start + size in self._sizes:
            size += self._remove(start + size)
        if start in self._starts:
            start = self._starts[start]
            size += self._remove(start)
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        bisect.insort(self._holes, (size, start))
        self._sizes[start] = size
        self._starts[start + size] = start

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        del self._holes[bisect.bisect_left(self._holes, (size, start))]
        return size
