"""`S3Fifo`: a short queue sorts out keys that come once, before they take the place of those that are used."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvbridge.abc.policy import Policy
from kvbridge.policies.hand import take_from_either

if TYPE_CHECKING:
    from collections.abc import Container

MOST_USES = 3
"""Where a key's count of uses ends: two bits."""
USES_TO_STAY = 2
"""Uses in the small queue after which a key goes on to the main queue instead of leaving."""
SMALL_SHARE = 10
"""One part in this many of the tier is the small queue's."""


class S3Fifo(Policy):
    """Three static FIFO queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

    New keys enter the small queue, a tenth of the tier. At its end a key that was used twice moves to the main queue,
    its count cleared; any other is given up and remembered by the ghost queue, which holds as many keys as the main
    queue. Who comes back while it is remembered enters the main queue. At the end of that, a key with uses on its
    count pays one and enters again; one without is given up and not remembered.

    The small queue gives the victims while it holds its tenth or more (algorithm 1 of the paper), and the main queue
    as soon as keys that moved there made the small one shorter.

    Cost: `insert`, `touch` and `discard` are O(1); `evict` is amortised: its steps are paid by uses and by keys that
    moved on; for pinned keys in the way, see `kvbridge.policies.hand`. Memory: 296 bytes for each key of a capacity
    of a million, half of them for one that is remembered; up to 355 at other capacities. The keys' own bytes are not
    counted; those of remembered keys stay.

    Args:
        capacity: Keys that the tier holds at most.
    """

    name = "s3fifo"

    def __init__(self, capacity: int) -> None:
        self._small_size = max(1, capacity // SMALL_SHARE)
        self._ghost_size = capacity - self._small_size
        self._small: OrderedDict[bytes, int] = OrderedDict()  # to uses, as in main
        self._main: OrderedDict[bytes, int] = OrderedDict()
        self._ghost: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes) -> None:
        """Put a new key into the small queue, one that is remembered into the main queue."""
        if key in self._small or key in self._main:
            self.touch(key)
        elif key in self._ghost:
            del self._ghost[key]
            self._main[key] = 0
        else:
            self._small[key] = 0

    def touch(self, key: bytes) -> None:
        """Count a use."""
        queue = self._main if key in self._main else self._small
        uses = queue.get(key)
        if uses is not None and uses < MOST_USES:
            queue[key] = uses + 1

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        """Take a key from the small queue where that is full, else from the main queue."""
        if len(self._small) >= self._small_size or not self._main:
            return take_from_either(self._take_small, self._take_main, len(self), pinned)
        return take_from_either(self._take_main, self._take_small, len(self), pinned)

    def _take_small(self, pinned: Container[bytes], limit: int) -> bytes | None:
        passed = 0
        while passed < min(limit, len(self._small)):
            key, uses = self._small.popitem(last=False)
            if key in pinned:
                self._small[key] = uses
                passed += 1
            elif uses < USES_TO_STAY:
                self._remember(key)
                return key
            else:
                self._main[key] = 0
                passed = 0
                if len(self._small) < self._small_size:
                    return self._take_main(pinned, limit)
        return None

    def _take_main(self, pinned: Container[bytes], limit: int) -> bytes | None:
        passed = 0
        while passed < min(limit, len(self._main)):
            key = next(iter(self._main))
            uses = self._main[key]
            if key in pinned:
                passed += 1
            elif uses == 0:
                del self._main[key]
                return key
            else:
                self._main[key] = uses - 1
                passed = 0
            self._main.move_to_end(key)
        return None

    def _remember(self, key: bytes) -> None:
        self._ghost[key] = None
        if len(self._ghost) > self._ghost_size:
            self._ghost.popitem(last=False)

    def discard(self, key: bytes) -> None:
        """Forget the key, remembered or inside."""
        for queue in (self._small, self._main, self._ghost):
            queue.pop(key, None)

    def __len__(self) -> int:
        return len(self._small) + len(self._main)
