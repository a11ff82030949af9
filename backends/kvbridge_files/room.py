"""`Room`: files for values, and what has to go for them where the folder is full.

The order of going is exact: what was not used for longest goes first. To find it every file is looked at, once for
`LISTED` values that go: the list stays right, since what is used or put later is younger than all that are on it.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from kvbridge.errors import CapacityError
from kvbridge_files.census import room_of
from kvbridge_files.locks import SharedLock

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from kvbridge_files.census import Used
    from kvbridge_files.folder import Folder, Part

LISTED = 4096
"""Values on the list: about a MiB of memory."""

AT_ONCE = 64
"""Values that go while the ledger's lock is held once, about two milliseconds: then others have their turn."""

TRIES = 20
"""Times that room is made and somebody else has it."""


class Room:
    """Reserves files.

    Args:
        folder: The folder.
        closing: Set when the store is being closed.
        capacity: The cap in bytes.
        evict: Whether values go that are not abandoned.
        abandoned_after: Seconds without use after which one is.
    """

    def __init__(
        self, folder: Folder, closing: threading.Event, *, capacity: int, evict: bool, abandoned_after: float
    ) -> None:
        self.evicted = 0
        self._folder = folder
        self._capacity = capacity
        self._evict = evict
        self._abandoned_after = int(abandoned_after * 1e9)
        self._making = SharedLock(folder.root / "making-room", closing)
        self._oldest: deque[Used] = deque()

    def close(self) -> None:
        """Close what is open. Not while a method runs."""
        self._making.close()

    def reserve(self, nbytes: int) -> Part:
        """Make a file of so many bytes. On a pool's thread.

        Raises:
            CapacityError: There is no room, and none can be made.
            TransportError: A lock cannot be had.
            OSError: The system fails.
        """
        needed = room_of(nbytes)
        for _ in range(TRIES):
            part = self._folder.reserve(nbytes, self._capacity)
            if part is not None:
                return part
            if needed > self._capacity or not self._make(needed):
                break
        raise CapacityError(
            f"a file of {nbytes} bytes does not fit: {self._folder.used()} of the folder's {self._capacity} bytes "
            "(options.capacity) are in use" + ("" if self._evict else ', and options.when_full is "refuse"')
        )

    def _make(self, needed: int) -> bool:
        """Make room. Whether there was some, which somebody else may have by now."""
        with self._making.held():  # of many processes that find the folder full one makes room, the others have it
            if self._enough(needed):
                return True
            self._folder.sweep()
            if self._enough(needed):
                return True
            while True:
                new = not self._oldest
                if new:
                    self._oldest.extend(self._folder.oldest(LISTED))
                count, enough = self._give_up(needed)
                if enough or self._oldest or (new and not count):
                    return enough  # what is still on the list is not to go, what is on a new one cannot

    def _give_up(self, needed: int) -> tuple[int, bool]:
        """Give up what is on the list. How many went, and whether that is enough."""
        total = 0
        while True:
            listed = len(self._oldest)
            count, enough = self._folder.evict(islice(self._victims(), AT_ONCE), needed, self._capacity)
            total += count
            self.evicted += count
            if enough or len(self._oldest) == listed:
                return total, enough

    def _victims(self) -> Iterator[Used]:
        limit = time.time_ns() - self._abandoned_after
        while self._oldest and (self._evict or self._oldest[0].when < limit):
            yield self._oldest.popleft()

    def _enough(self, needed: int) -> bool:
        return self._folder.used() + needed <= self._capacity
