"""Who wants to hear which blocks are kept, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Kept:
    """A block that is kept: its key, and which block of which request it was."""

    key: bytes
    origin: Any
    index: int


class Observer:
    """Hears which blocks come and go. It must not raise. Does nothing itself."""

    def kept(self, blocks: Sequence[Kept]) -> None:
        """Blocks came into slots, and can be found."""

    def gone(self, keys: Iterable[bytes]) -> None:
        """Slots gave blocks up."""

    def back(self, keys: Iterable[bytes]) -> None:
        """Blocks came back into slots from a lower tier."""

    def kept_below(self, keys: Iterable[bytes]) -> None:
        """Blocks are in a lower tier now."""

    def gone_below(self, keys: Iterable[bytes]) -> None:
        """Blocks are not in any lower tier, as far as is known."""

    def cleared(self) -> None:
        """Nothing that was kept, in slots or below, is asked for again."""
