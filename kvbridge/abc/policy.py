"""`Policy`: which key a tier of memory gives up next. A third party's comes in by the entry points `kvbridge.policies`.

A policy knows keys and nothing else: no bytes, no places, no time. It is told what is in the tier, what was used, and
is asked for a victim.

    [project.entry-points."kvbridge.policies"]
    mine = "my_package:MyPolicy"

Threads: one thread calls it, the scheduler's. Every method is in the path of scheduling: it takes a microsecond or
so, however many keys there are. None raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Container


class Policy(ABC):
    """The order in which keys are given up.

    A full tier asks for a victim before it says which key comes in. Blocks of one prompt are told from the last to the
    first: whoever needs a block needs those before it too, so the first has to be given up last.

    Args:
        capacity: Keys that the tier holds at most, at least 1.
    """

    name: ClassVar[str]
    """The name by which a configuration asks for it."""

    @abstractmethod
    def __init__(self, capacity: int) -> None: ...

    @abstractmethod
    def insert(self, key: bytes) -> None:
        """Take note of a key that came into the tier. It is not in it, but may have been before."""

    @abstractmethod
    def touch(self, key: bytes) -> None:
        """Take note that a key in the tier was used."""

    @abstractmethod
    def evict(self, pinned: Container[bytes]) -> bytes | None:
        """Choose the key to be given up, and take it out.

        A policy with a memory of the past may remember that it was there.

        Args:
            pinned: Keys that must stay: they are being read or written.

        Returns:
            The key; None where all keys are pinned, or there is none. To find that all are pinned costs a walk over
            all of them: do not ask again before one is released.
        """

    @abstractmethod
    def discard(self, key: bytes) -> None:
        """Forget a key altogether: its value is not valid any more. It may be unknown."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many keys are in the tier, those remembered from the past not counted."""
