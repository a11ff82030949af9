"""The table of a shared catalog: a row for each slot and one for each engine, as arrays in shared memory.

Whoever changes it has the lock. Who only reads may read at any time: a change of a slot is written first, then its
stamp, then the count of all changes, and read in the opposite order, so that a change that is missed now is seen the
next time. A process that dies between two writes leaves at worst a slot that nobody finds until it is given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.errors import TransportError
from kvbridge.reuse.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

EMPTY, FILLING, FULL = 0, 1, 2
"""States of a slot."""

ENGINES = 32
"""Engines that can share at one time."""

PROCESSES = 65
"""Processes of an engine: its scheduler's, then its workers'."""

HEAD = 8
"""Numbers in front: how many changes there were, and spare ones."""

ROOM = 4
"""How many times more keys than needed are looked at when some are chosen to be given up: some may be pinned."""


class Table:
    """Views of the arrays.

    Args:
        memory: At least `nbytes` bytes, zero at first.
        slots: Number of slots.

    Attributes:
        state: Of each slot.
        used: When each slot was last used, in nanoseconds of the host's monotonic clock.
        pins: For each engine and slot how often it is pinned. Each engine writes its own row alone.
    """

    def __init__(self, memory: NDArray[np.uint8], slots: int) -> None:
        self._memory = memory
        self._start = 0
        self._head = self._take(np.int64, HEAD)
        self._engines = self._take(np.int64, ENGINES, PROCESSES, 2)
        self.used = self._take(np.int64, slots)
        self._stamp = self._take(np.int64, slots)
        self._key = self._take(np.uint8, slots, KEY_BYTES)
        self.pins = self._take(np.uint16, ENGINES, slots)
        self._owner = self._take(np.int16, slots)
        self.state = self._take(np.uint8, slots)

    @staticmethod
    def nbytes(slots: int) -> int:
        """Return the bytes that a table takes."""
        return 8 * HEAD + 16 * ENGINES * PROCESSES + slots * (8 + 8 + KEY_BYTES + 2 * ENGINES + 2 + 1) + 64

    def _take(self, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        part = self._memory[self._start : self._start + nbytes]
        self._start += -(-nbytes // 8) * 8
        return part.view(dtype).reshape(shape)

    def has(self, slot: int, key: bytes, state: int) -> bool:
        """Whether a slot is in this state, with this key."""
        return int(self.state[slot]) == state and self._key[slot].tobytes() == key

    def fill(self, slot: int, key: bytes, engine: int) -> None:
        """Give an empty slot to an engine."""
        self._key[slot] = np.frombuffer(key, dtype=np.uint8)
        self._owner[slot] = engine
        self.change(slot, FILLING)

    def change(self, slot: int, state: int) -> None:
        """Change the state of a slot."""
        count = int(self._head[0]) + 1
        self.state[slot] = state
        self._stamp[slot] = count
        self._head[0] = count

    def since(self, seen: int) -> tuple[int, list[tuple[int, int, bytes]]]:
        """Return the count of changes, and slot, state and key of the slots that changed after `seen` of them."""
        last = int(self._head[0])
        if last == seen:
            return last, []
        slots = np.flatnonzero(self._stamp > seen)
        states = self.state[slots].tolist()
        keys = self._key[slots].tobytes()
        found = [
            (slot, state, keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
            for index, (slot, state) in enumerate(zip(slots.tolist(), states, strict=True))
        ]
        return last, found

    def empty(self, count: int) -> list[int]:
        """Return up to `count` empty slots, ascending."""
        found: list[int] = np.flatnonzero(self.state == EMPTY)[:count].tolist()
        return found

    def evict(self, count: int) -> int:
        """Empty up to `count` slots that nobody pins, the least recently used first. Returns how many."""
        full = np.flatnonzero(self.state == FULL)
        looked = min(len(full), count * ROOM)
        if looked == 0:
            return 0
        used = self.used[full]
        oldest = full[np.argpartition(used, looked - 1)[:looked]] if looked < len(full) else full
        free = oldest[~self.pins[:, oldest].any(axis=0)]
        if len(free) < count and looked < len(full):
            free = full[~self.pins[:, full].any(axis=0)]
        chosen = free[np.argsort(self.used[free], kind="stable")][:count].tolist()
        for slot in chosen:
            self.change(slot, EMPTY)
        return len(chosen)

    def enter(self, process: tuple[int, int]) -> int:
        """Take a row for an engine whose scheduler is this process.

        Raises:
            TransportError: There are too many already.
        """
        for row in range(ENGINES):
            if int(self._engines[row, 0, 0]) == 0:
                self.pins[row] = 0
                self._engines[row] = 0
                self._engines[row, 0] = process
                return row
        raise TransportError(f"{ENGINES} engines share this catalog already")

    def add_process(self, engine: int, process: tuple[int, int]) -> None:
        """Take note of a worker of an engine."""
        place = int(np.flatnonzero(self._engines[engine, :, 0] == 0)[0])
        self._engines[engine, place] = process

    def sweep(self, me: int, lives: Callable[[int, int], bool]) -> None:
        """Forget engines that are dead. What they were filling comes free once none of their processes lives."""
        for row in range(ENGINES):
            processes = [(pid, start) for pid, start in self._engines[row].tolist() if pid]
            if row == me or not processes or lives(*processes[0]):
                continue
            if self.pins[row].any():
                self.pins[row] = 0
            if not any(lives(*process) for process in processes):
                for slot in np.flatnonzero((self.state == FILLING) & (self._owner == row)).tolist():
                    self.change(slot, EMPTY)
                self._engines[row] = 0
