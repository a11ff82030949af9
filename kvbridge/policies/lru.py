"""`Lru`: give up the key whose last use is longest ago."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvbridge.abc.policy import Policy
from kvbridge.policies.hand import take_oldest

if TYPE_CHECKING:
    from collections.abc import Container


class Lru(Policy):
    """Least recently used (Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970).

    It has no memory of the past, and one pass over many keys that come once takes everything else away.

    Cost: `insert`, `touch` and `discard` are O(1); `evict` too, but for pinned keys in the way, see
    `kvbridge.policies.hand`. Memory: 150 bytes a key at a million keys, up to 203 at other numbers; the keys' own bytes
    are not counted.

    Args:
        capacity: Not needed here.
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:  # noqa: ARG002 - every policy is made with it
        self._line: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes) -> None:
        """Put the key at the young end."""
        self._line[key] = None
        self._line.move_to_end(key)

    def touch(self, key: bytes) -> None:
        """Move the key to the young end."""
        if key in self._line:
            self._line.move_to_end(key)

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        """Take the oldest key that is not pinned."""
        return take_oldest(self._line, pinned, len(self._line))

    def discard(self, key: bytes) -> None:
        """Forget the key."""
        self._line.pop(key, None)

    def __len__(self) -> int:
        return len(self._line)
