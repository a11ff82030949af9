"""`Arc`: keys that came once and keys that came again share the tier, and the share follows what is asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvbridge.abc.policy import Policy
from kvbridge.policies.hand import take_from_either, take_oldest

if TYPE_CHECKING:
    from collections.abc import Container


class Arc(Policy):
    """Adaptive replacement cache (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003).

    The paper's names: T1 holds keys that came once, T2 those that were used again; B1 and B2 remember keys that were
    given up from them. T1 should hold `p` keys: a key that comes back and stands in B1 says that T1 was too short, one
    that stands in B2 that T2 was.

    Two things differ from figure 4 of the paper, because the tier asks for a victim before it says which key comes:
    `p` changes after that victim was chosen and not before, and where T1 holds exactly `p` keys, T2 gives the victim
    whatever comes. On the traces of `kvbridge bench policies` that moves the hit rate by half a point at most.
    T1 and B1 together hold at most `capacity` keys, all four twice that.

    Cost: `insert`, `touch` and `discard` are O(1) amortised; `evict` too, but for pinned keys in the way, see
    `kvbridge.policies.hand`. Memory: 240 bytes for each key of a capacity of a million, nearly half of them for one
    that is remembered; up to 310 at other capacities. The keys' own bytes are not counted; those of remembered keys
    stay.

    Args:
        capacity: Keys that the tier holds at most.
    """

    name = "arc"

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._p = 0.0
        self._t1: OrderedDict[bytes, None] = OrderedDict()
        self._t2: OrderedDict[bytes, None] = OrderedDict()
        self._b1: OrderedDict[bytes, None] = OrderedDict()
        self._b2: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes) -> None:
        """Put a new key into T1, one that is remembered into T2."""
        if key in self._t1 or key in self._t2:
            self.touch(key)
        elif key in self._b1:
            self._p = min(self._p + max(len(self._b2) / len(self._b1), 1.0), float(self._capacity))
            del self._b1[key]
            self._t2[key] = None
        elif key in self._b2:
            self._p = max(self._p - max(len(self._b1) / len(self._b2), 1.0), 0.0)
            del self._b2[key]
            self._t2[key] = None
        else:
            self._t1[key] = None
            self._drop_ghosts()

    def _drop_ghosts(self) -> None:
        while self._b1 and len(self._t1) + len(self._b1) > self._capacity:
            self._b1.popitem(last=False)
        while self._b2 and len(self) + len(self._b1) + len(self._b2) > 2 * self._capacity:
            self._b2.popitem(last=False)

    def touch(self, key: bytes) -> None:
        """Move the key to the young end of T2."""
        if key in self._t2:
            self._t2.move_to_end(key)
        elif key in self._t1:
            del self._t1[key]
            self._t2[key] = None

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        """Take the oldest key of T1 where T1 is longer than `p`, else of T2, and remember it."""
        if len(self._t1) > self._p:
            return take_from_either(self._take_t1, self._take_t2, len(self), pinned)
        return take_from_either(self._take_t2, self._take_t1, len(self), pinned)

    def _take_t1(self, pinned: Container[bytes], limit: int) -> bytes | None:
        key = take_oldest(self._t1, pinned, limit)
        if key is not None:
            self._b1[key] = None
        return key

    def _take_t2(self, pinned: Container[bytes], limit: int) -> bytes | None:
        key = take_oldest(self._t2, pinned, limit)
        if key is not None:
            self._b2[key] = None
        return key

    def discard(self, key: bytes) -> None:
        """Forget the key, remembered or inside."""
        for line in (self._t1, self._t2, self._b1, self._b2):
            line.pop(key, None)

    def __len__(self) -> int:
        return len(self._t1) + len(self._t2)
