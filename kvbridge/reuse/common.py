"""`CommonSlots`: what engines of one host that compute the same KV have in common: a table, and slots for each rank.

All of it is one piece of memory, so that it lives and dies as one: a table never speaks of slots that are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.memory.shared import SharedMemory
from kvbridge.memory.slots import ALIGNMENT, slots_bytes
from kvbridge.reuse.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class CommonSlots:
    """A part of the memory that one process has.

    Args:
        name: Digest of everything that gives the bytes of a slot their meaning.
        page_bytes: Bytes of a block in each region of a rank's cache.
        slots: Number of slots.
        ranks: Number of workers of an engine.

    Raises:
        TransportError: The memory cannot be had.
    """

    def __init__(self, name: str, page_bytes: Sequence[int], slots: int, ranks: int) -> None:
        self.slots = slots
        self.ranks = ranks
        self._table_bytes = -(-Table.nbytes(slots) // ALIGNMENT) * ALIGNMENT
        self._rank_bytes = slots_bytes(page_bytes, slots)
        sizes = ",".join(map(str, page_bytes))
        self.memory = SharedMemory(f"{name} {sizes} {slots} {ranks}", self._table_bytes + ranks * self._rank_bytes)

    def table(self) -> Table:
        """Return a view of the table."""
        return Table(self.memory.memory[: self._table_bytes], self.slots)

    def of_rank(self, rank: int) -> NDArray[np.uint8]:
        """Return the memory of one rank's slots."""
        start = self._table_bytes + rank * self._rank_bytes
        return self.memory.memory[start : start + self._rank_bytes]

    def close(self) -> None:
        """Let go of it. Idempotent, bounded."""
        self.memory.close()
