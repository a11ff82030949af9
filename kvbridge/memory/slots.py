"""How slots lie in memory: region after region, each at the start of a page of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.errors import ConfigError
from kvbridge.memory.region import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

ALIGNMENT = 4096
"""Bytes: a page of memory, as files and registrations of devices want it."""


def slots_bytes(page_bytes: Sequence[int], slots: int) -> int:
    """Return the bytes that slots take, alignment included.

    Args:
        page_bytes: Bytes of a block in each region of the cache.
        slots: Number of slots.
    """
    return sum(_aligned(size * slots) for size in page_bytes)


def slot_regions(memory: NDArray[np.uint8], page_bytes: Sequence[int], slots: int) -> tuple[Region, ...]:
    """Cut memory into regions of slots. The memory stays the caller's; the regions keep it alive.

    Raises:
        ConfigError: It is too small, or there is to be no slot.
    """
    wanted = slots_bytes(page_bytes, slots)
    if slots < 1 or memory.nbytes < wanted:
        raise ConfigError(f"{slots} slots take {wanted} bytes; found memory of {memory.nbytes} bytes")
    regions, start = [], 0
    for size in page_bytes:
        regions.append(Region.over(memory[start : start + size * slots], size))
        start += _aligned(size * slots)
    return tuple(regions)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
