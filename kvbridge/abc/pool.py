"""`SlotPool`: memory of one worker that mirrors its KV cache, for blocks that may be wanted again.

A pool has the same regions as the cache, page for page, with a number of blocks of its own: its *slots*. So a block in
a slot is `Pages` like any other, and a store can read it from there and write it there. Which key is in which slot is
not the pool's business: that stands in a catalog, in the scheduler's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc.backend import Move
    from kvbridge.memory import Pages, Region


class SlotPool(ABC):
    """Slots, and the copies between them and the cache. Made by `Backend.open_pool`.

    Threads: one thread calls everything here and on the moves, the worker's.
    """

    regions: Sequence[Region]
    """One for each region of the cache, with equal `page_bytes`, in host memory. Its block ids are slots, from 0."""

    used_bytes: int
    """Bytes that the slots take, alignment and copies of them included."""

    @abstractmethod
    def copy(self, source: Pages, target: Pages) -> Move:
        """Start to copy pages of the cache into slots, or slots into pages of the cache.

        It returns at once; the bytes move by themselves, whether `step` is called or not. Copies may overtake each
        other. On a GPU they are ordered after all work that was queued on the cache before this call.

        Args:
            source: From where. It must not change until the move has ended.
            target: Where to, with as many blocks of the same page sizes. It belongs to the move until that has ended.
                No block of it is named twice.

        Returns:
            A move. Aborted, it ends soon: by `CancelledError`, or by DONE where all bytes are there.

        Raises:
            SpecMismatchError: Source and target do not have the same pages.
            ClosedError: The pool is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """End all copies, then give the memory back. Idempotent; it takes two seconds at most.

        Copies that were under way have ended, as if aborted: nothing touches the cache, or memory that was given, any
        more.
        """
