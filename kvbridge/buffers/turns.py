"""`Turns`: operations on one key, one after the other, in the order in which they began."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvbridge.abc.backend import MoveState
from kvbridge.abc.store import Task
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self


class Turn(Task[None]):
    """A wait for the turn of one operation, which lasts as long as the context that this is.

    It is in line from its making on, and for all of its keys at once, so that no two wait for each other.
    """

    result = None

    def __init__(self, lines: dict[str, deque[Turn]], keys: Iterable[str], *, inserts: bool) -> None:
        self.inserts = inserts
        self._lines = lines
        self._keys = tuple(dict.fromkeys(keys))
        self._aborted = False
        for key in self._keys:
            lines.setdefault(key, deque()).append(self)

    def step(self) -> MoveState:
        """Look whether it is the turn of this operation."""
        if self._aborted:
            raise cancelled("waiting for another operation on the same key")
        return MoveState.DONE if all(self._lines[key][0] is self for key in self._keys) else MoveState.WAIT

    def abort(self) -> None:
        """Wait no longer."""
        self._aborted = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._keys:
            line = self._lines[key]
            line.remove(self)
            if not line:
                del self._lines[key]


class Turns:
    """The operations on each key that are under way in this process. Belongs to one thread."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Turn]] = {}

    def join(self, *keys: str, inserts: bool = False) -> Turn:
        """Get in line for keys."""
        return Turn(self._lines, keys, inserts=inserts)

    def inserting(self, key: str) -> bool:
        """Whether an insert of a key is under way, or in line."""
        return any(turn.inserts for turn in self._lines.get(key, ()))
