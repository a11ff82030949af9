"""What `kvbridge bench transfer` hands over: values of a size, in a layout, some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from kvbridge.memory import Pages, Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = 16 << 10
"""Bytes of a page."""

MOST = 256 << 20
"""Bytes that are in flight at one time at most."""

Layout = Literal["contiguous", "paged", "scattered"]


class Case(msgspec.Struct, frozen=True):
    """One kind of value.

    Attributes:
        nbytes: Bytes of a value.
        layout: `"contiguous"`, a tensor; `"paged"`, adjacent pages of 16 KiB in order; `"scattered"`, such pages in
            random order on both sides.
        flight: Values that are handed over at one time.
        repeats: How often that is done in a round, one after the other.
    """

    nbytes: int
    layout: Layout
    flight: int = 1
    repeats: int = 1

    def payload(self, memory: NDArray[np.uint8], seed: int, index: int) -> Any:
        """Make a value (or its destination) over a process's memory."""
        if self.layout == "contiguous":
            return memory[index * self.nbytes : (index + 1) * self.nbytes]
        return Pages.of([region_of(memory)], self.pages(memory, seed, index))

    def pages(self, memory: NDArray[np.uint8], seed: int, index: int = 0) -> NDArray[np.int64]:
        """Name the pages of a value."""
        count = self.nbytes // PAGE
        own = slice(index * count, (index + 1) * count)
        if self.layout != "scattered":
            return np.arange(own.start, own.stop)
        return np.random.default_rng(seed).permutation(memory.nbytes // PAGE)[own]

    def same(self, source: NDArray[np.uint8], memory: NDArray[np.uint8]) -> bool:
        """Say whether all values arrived as they were sent: both sides' memory is made from one seed."""
        for index in range(self.flight):
            sent, got = (_bytes(self.payload(*where, index)) for where in ((source, 1), (memory, 2)))
            if not np.array_equal(sent, got):
                return False
        return True


def region_of(memory: NDArray[np.uint8]) -> Region:
    """Return a process's memory as one region. The backend knows it beforehand, as it knows an engine's cache."""
    return Region.over(memory, PAGE)


def _bytes(payload: Any) -> Any:
    if isinstance(payload, Pages):
        return payload.regions[0].rows()[payload.block_ids[0]]
    return payload


QUICK = [
    Case(size, layout, repeats=10 if size <= PAGE else 1)
    for layout in ("contiguous", "scattered")
    for size in (PAGE, 64 << 10, 1 << 20, 16 << 20, MOST)
]
"""Two minutes for each backend at most."""

NIGHTLY = [
    Case(size, layout, flight, repeats=20 if size <= 1 << 20 else 1)
    for layout in ("contiguous", "paged", "scattered")
    for size in (PAGE, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, MOST)
    for flight in (1, 8, 64)
    if size * flight <= MOST
]
"""All that can be compared."""

PROFILES = {"quick": QUICK, "nightly": NIGHTLY}
