"""`Catalog`: which key is in which slot. In the scheduler's process, so that looking up costs no message.

A slot is empty, being filled, or full. A full one can be pinned, so that it is not given up while a worker reads it.
All ranks of an engine use the same slots, each in its own pool, and one catalog speaks for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Place(NamedTuple):
    """A key and its slot. What a caller holds on to while he fills or reads it."""

    key: bytes
    slot: int


class Catalog(ABC):
    """Keys in slots. Called by one thread. Nothing here blocks, or raises for what another process did.

    Args:
        slots: Number of slots.

    Attributes:
        counters: `evicted`, keys that were given up for others; `no_room`, times that keys got no slot.
    """

    shared = False
    """Whether other processes give up keys too: what was found may be gone a moment later, unless it is pinned."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.counters: Counter[str] = Counter()
        self._full: dict[bytes, int] = {}
        self._filling: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return how many keys are here."""
        return len(self._full)

    def __contains__(self, key: bytes) -> bool:
        return key in self._full

    @property
    @abstractmethod
    def used(self) -> int:
        """Slots that are not empty."""

    @property
    @abstractmethod
    def pinned(self) -> int:
        """Pins of this process. 0 when it reads nothing."""

    @property
    @abstractmethod
    def filling(self) -> int:
        """Slots that this process fills."""

    def known(self, key: bytes) -> bool:
        """Whether a key is here, or is on its way."""
        return key in self._full or key in self._filling

    def leading(self, keys: Sequence[bytes], start: int = 0) -> int:
        """Count how many keys from `start` on are here, without a gap, as far as this process knows."""
        full, count = self._full, 0
        for index in range(start, len(keys)):
            if keys[index] not in full:
                break
            count += 1
        return count

    @abstractmethod
    def pin(self, keys: Sequence[bytes]) -> list[Place]:
        """Use keys, a prefix in order: they stay until `unpin`. Returns places of those that are here."""

    @abstractmethod
    def hold(self, keys: Iterable[bytes]) -> list[Place]:
        """Pin those keys that are here, without counting that as a use."""

    def use(self, places: Sequence[Place]) -> None:
        """Count a use of what is held. For catalogs that are shared."""
        del places

    @abstractmethod
    def unpin(self, places: Iterable[Place]) -> None:
        """Give pins back, each once."""

    @abstractmethod
    def reserve(self, keys: Iterable[bytes]) -> list[Place]:
        """Find slots for those keys that are neither here nor on their way.

        Where there is no room, others are given up; `drain` tells which. Where all are pinned, or being filled, the
        rest of the keys gets none, and is counted as `no_room`.
        """

    @abstractmethod
    def publish(self, places: Sequence[Place]) -> list[Place]:
        """Take note that slots were filled. Returns those whose keys can be found from now on."""

    @abstractmethod
    def abandon(self, places: Iterable[Place]) -> None:
        """Take note that slots could not be filled, and that nobody writes to them any more."""

    @abstractmethod
    def drain(self) -> list[bytes]:
        """Return the keys that were given up since the last call, those of `clear` left out."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all keys: they are not asked for again."""

    def short(self, share: int) -> bool:
        """Whether fewer than one slot in `share` is empty, or about to be, and others could be emptied."""
        del share
        return False

    def withdraw(self, share: int, most: int) -> list[Place]:
        """Choose keys to be given up, so that one slot in `share` comes free. They stay, pinned, until `give_up`."""
        del share, most
        return []

    def give_up(self, places: Iterable[Place]) -> None:
        """Give up what was withdrawn, unless it was used meanwhile: then it stays after all."""
        del places

    def joined(self, processes: Iterable[tuple[int, int]]) -> None:
        """Take note of workers that write to the slots, as `(process id, start time)`."""
        del processes

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of everything. Idempotent."""
