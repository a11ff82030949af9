"""`OwnCatalog`: the catalog of an engine that keeps blocks for itself."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.reuse.catalog import Catalog, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbridge.abc.policy import Policy


class OwnCatalog(Catalog):
    """Keys in slots. See `Catalog`.

    Args:
        slots: Number of slots.
        policy: Chooses what is given up when there is no room.
    """

    def __init__(self, slots: int, policy: Policy) -> None:
        super().__init__(slots)
        self._given_up: list[bytes] = []
        self._policy = policy
        self._pins: dict[bytes, int] = {}
        self._leaving: set[bytes] = set()
        self._orphans: Counter[int] = Counter()
        self._free = list(range(slots - 1, -1, -1))

    @property
    def used(self) -> int:
        """Slots that are not empty."""
        return self.slots - len(self._free)

    @property
    def pinned(self) -> int:
        """Pins, those of cleared slots included. 0 when nothing is being read."""
        return sum(self._pins.values()) + self._orphans.total()

    @property
    def filling(self) -> int:
        """Slots that are being filled."""
        return len(self._filling)

    def pin(self, keys: Sequence[bytes]) -> list[Place]:
        """Use keys that are here, a prefix in order: they stay until `unpin`."""
        full, pins, leaving, touch = self._full, self._pins, self._leaving, self._policy.touch
        places = [Place(key, slot) for key in keys if (slot := full.get(key, -1)) >= 0]
        for key, _ in reversed(places):  # the start of a prefix is used last: without it the rest is of no use
            pins[key] = pins.get(key, 0) + 1
            if not leaving or key not in leaving:
                touch(key)
        return places

    def hold(self, keys: Iterable[bytes]) -> list[Place]:
        """Pin those keys that are here, without counting that as a use."""
        places = [Place(key, self._full[key]) for key in keys if key in self._full]
        for key, _ in places:
            self._pins[key] = self._pins.get(key, 0) + 1
        return places

    def unpin(self, places: Iterable[Place]) -> None:
        """Give pins back, each once."""
        for key, slot in places:
            if self._full.get(key) == slot and key in self._pins:
                left = self._pins[key] - 1
                if left:
                    self._pins[key] = left
                else:
                    del self._pins[key]
            elif slot in self._orphans:
                self._drop_orphan(slot)

    def short(self, share: int) -> bool:
        """Whether fewer than one slot in `share` is empty, or about to be, and others could be emptied."""
        return self._spare(share) > 0 and len(self._policy) > len(self._pins) - len(self._leaving)

    def withdraw(self, share: int, most: int) -> list[Place]:
        """Choose keys to be given up, so that one slot in `share` comes free. They stay, pinned, until `give_up`."""
        places: list[Place] = []
        for _ in range(min(most, self._spare(share))):
            key = self._policy.evict(self._pins)
            if key is None:
                break
            self._leaving.add(key)
            places.extend(self.hold([key]))
        return places

    def give_up(self, places: Iterable[Place]) -> None:
        """Give up what was withdrawn, unless it was used meanwhile: then it stays after all."""
        for place in places:
            if place.key not in self._leaving or self._full.get(place.key) != place.slot:
                self._drop_orphan(place.slot)
                continue
            self._leaving.discard(place.key)
            self.unpin([place])
            if place.key in self._pins:
                self._policy.insert(place.key)
            else:
                self.counters["evicted"] += 1
                self._empty(place.key)

    def _spare(self, share: int) -> int:
        return max(1, self.slots // share) - len(self._free) - len(self._leaving)

    def reserve(self, keys: Iterable[bytes]) -> list[Place]:
        """Find slots for those keys that are neither here nor on their way.

        Where there is no room, others are given up; `drain` tells which. Where all are pinned, or being
        filled, the rest of the keys gets none, and is counted as `no_room`.
        """
        places: list[Place] = []
        for key in keys:
            if self.known(key):
                continue
            if not self._free and not self._evict():
                self.counters["no_room"] += 1
                break
            slot = self._free.pop()
            self._filling[key] = slot
            places.append(Place(key, slot))
        return places

    def publish(self, places: Sequence[Place]) -> list[Place]:
        """Take note that slots were filled. Returns those whose keys can be found from now on."""
        published = []
        for place in reversed(places):  # as with `pin`
            if self._filling.get(place.key) == place.slot:
                del self._filling[place.key]
                self._full[place.key] = place.slot
                self._policy.insert(place.key)
                published.append(place)
            else:
                self._drop_orphan(place.slot)
        return published[::-1]

    def abandon(self, places: Iterable[Place]) -> None:
        """Take note that slots could not be filled, and that nobody writes to them any more."""
        for place in places:
            if self._filling.get(place.key) == place.slot:
                del self._filling[place.key]
                self._free.append(place.slot)
            else:
                self._drop_orphan(place.slot)

    def drain(self) -> list[bytes]:
        """Return the keys that were given up since the last call, those of `clear` left out."""
        found, self._given_up = self._given_up, []
        return found

    def clear(self) -> None:
        """Forget all keys. Slots that are being filled or read come free when that has ended."""
        for key, count in self._pins.items():
            self._orphans[self._full.pop(key)] += count
            self._policy.discard(key)
        for slot in self._filling.values():
            self._orphans[slot] += 1
        self._pins.clear()
        self._filling.clear()
        self._leaving.clear()
        for key in list(self._full):
            self._policy.discard(key)
            self._free.append(self._full.pop(key))

    def _evict(self) -> bool:
        if len(self._policy) <= len(self._pins) - len(self._leaving):
            return False  # a policy that finds nothing looks at everything: that takes long
        key = self._policy.evict(self._pins)
        if key is None:
            return False
        self.counters["evicted"] += 1
        self._empty(key)
        return True

    def _empty(self, key: bytes) -> None:
        slot = self._full.pop(key)
        self._free.append(slot)
        self._given_up.append(key)

    def _drop_orphan(self, slot: int) -> None:
        left = self._orphans[slot] - 1
        if left > 0:
            self._orphans[slot] = left
            return
        if self._orphans.pop(slot, 0):
            self._free.append(slot)
