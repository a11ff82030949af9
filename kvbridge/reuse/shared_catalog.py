"""`SharedCatalog`: one catalog for all engines of a host that compute the same KV, in memory that they share.

The truth is a table with a row for each slot, changed only under a lock that the kernel gives back when a process
dies. Each process has a copy of it as a dict, brought up to date by what changed since it last looked; so looking up
takes no lock, and what it finds is checked when it is pinned. A process may die at any point: its pins count no more,
and slots that it was filling come free once its workers are dead too, for until then they may still write.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvbridge.errors import BusyError
from kvbridge.reuse.catalog import Catalog, Place
from kvbridge.reuse.processes import lives, this_process
from kvbridge.reuse.table import EMPTY, FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvbridge.reuse.common import CommonSlots

LOCK_TRIES = 20
"""Tries to get the lock, 0.1 ms apart. Who has it needs less; one who is stopped in the middle is not waited for."""

SWEEP = 1.0
"""Seconds between two looks at whether other processes still live."""

ENTER = 5.0
"""Seconds that an engine waits for the table when it starts."""

AHEAD = 128
"""One slot of so many is emptied at a time, so that choosing costs little for each."""


class SharedCatalog(Catalog):
    """Keys in slots that other processes use too. See `Catalog`. The least recently used key is given up.

    Args:
        common: What the engines have in common. The catalog closes it.

    Raises:
        TransportError: Too many engines share it already.
        BusyError: A process that has the table was stopped: end it, or start this engine without sharing.
    """

    shared = True

    def __init__(self, common: CommonSlots) -> None:
        super().__init__(common.slots)
        self._common = common
        self._table = common.table()
        self._lock = common.memory.reopened()
        self._workers: set[tuple[int, int]] = set()
        self._mine: dict[bytes, int] = {}
        self._at: dict[int, bytes] = {}
        self._lost: list[bytes] = []
        self._late: list[Callable[[], object]] = []
        self._pinned = 0
        self._seen = 0
        self._swept = 0.0
        self._me = self._enter()

    def _enter(self) -> int:
        deadline = time.monotonic() + ENTER
        while True:
            try:
                with self._locked():
                    self._table.sweep(-1, lives)
                    row = self._table.enter(this_process())
                    self._refresh()
                    return row
            except BusyError:
                if time.monotonic() > deadline:
                    raise

    @property
    def used(self) -> int:
        """Slots that are not empty, whoever uses them, as far as this process knows."""
        self._refresh()
        return len(self._at)

    @property
    def pinned(self) -> int:
        """Pins of this process."""
        return self._pinned

    @property
    def filling(self) -> int:
        """Slots that this process fills."""
        return len(self._mine)

    @property
    def _ready(self) -> bool:
        """Whether all who write for this engine are known: else nobody could tell when a slot is safe again."""
        return len(self._workers) >= self._common.ranks

    def leading(self, keys: Sequence[bytes], start: int = 0) -> int:
        """Count how many keys from `start` on are here, as far as this process knows."""
        self._refresh()
        return super().leading(keys, start)

    def pin(self, keys: Sequence[bytes]) -> list[Place]:
        """Use keys: they stay until `unpin`. Returns places of those that are here."""
        places = self.hold(keys)
        self.use(places)
        return places

    def use(self, places: Sequence[Place]) -> None:
        """Count a use of what is held."""
        now = time.monotonic_ns()
        for index, (_, slot) in enumerate(places):
            self._table.used[slot] = now - index  # the start of a prefix is used last

    def hold(self, keys: Iterable[bytes]) -> list[Place]:
        """Pin those keys that are here, without counting that as a use. None while somebody else is at the table."""
        places: list[Place] = []
        try:
            with self._locked():
                for key in keys:
                    slot = self._full.get(key, -1)
                    if slot >= 0 and self._table.has(slot, key, FULL):
                        self._table.pins[self._me, slot] += 1
                        self._pinned += 1
                        places.append(Place(key, slot))
        except BusyError:
            self.counters["busy"] += 1
        return places

    def unpin(self, places: Iterable[Place]) -> None:
        """Give pins back, each once. The row of pins is this process's own: it needs no lock."""
        pins = self._table.pins[self._me]
        for _, slot in places:
            if pins[slot]:
                pins[slot] -= 1
                self._pinned -= 1

    def reserve(self, keys: Iterable[bytes]) -> list[Place]:
        """Find slots for those keys that are neither here nor on their way, for whichever engine."""
        places: list[Place] = []
        try:
            with self._locked():
                self._sweep()
                self._refresh()
                wanted = [key for key in dict.fromkeys(keys) if not self.known(key)] if self._ready else []
                slots = self._empty(len(wanted))
                if len(slots) < len(wanted):
                    self.counters["no_room"] += 1
                for key, slot in zip(wanted, slots, strict=False):
                    self._table.fill(slot, key, self._me)
                    self._filling[key] = self._mine[key] = slot
                    self._at[slot] = key
                    places.append(Place(key, slot))
        except BusyError:
            self.counters["busy"] += 1
        return places

    def publish(self, places: Sequence[Place]) -> list[Place]:
        """Take note that slots were filled."""
        return self._settle(places, FULL)

    def abandon(self, places: Iterable[Place]) -> None:
        """Take note that slots could not be filled, and that nobody writes to them any more."""
        self._settle(list(places), EMPTY)

    def _settle(self, places: Sequence[Place], state: int) -> list[Place]:
        try:
            with self._locked():
                settled = [place for place in places if self._mine.pop(place.key, -1) == place.slot]
                now = time.monotonic_ns()
                for index, (_, slot) in enumerate(settled):
                    self._table.used[slot] = now - index
                    self._table.change(slot, state)
                self._refresh()
                return settled
        except BusyError:
            self.counters["busy"] += 1
            self._late.append(lambda: self._settle(places, state))
            return []

    def drain(self) -> list[bytes]:
        """Return the keys that this process has seen go since the last call, whoever gave them up."""
        found, self._lost = self._lost, []
        return found

    def clear(self) -> None:
        """Do nothing: this engine asks for other keys from now on, and the others' are still right."""

    def joined(self, processes: Iterable[tuple[int, int]]) -> None:
        """Take note of workers that write to the slots."""
        new = set(processes) - self._workers
        try:
            with self._locked():
                for process in new:
                    self._table.add_process(self._me, process)
                    self._workers.add(process)
        except BusyError:
            self._late.append(lambda: self.joined(new))

    def close(self) -> None:
        """Leave. Slots that are still being filled come free when this engine's processes have ended. Idempotent."""
        if self._lock >= 0:
            self._table.pins[self._me] = 0
            self._pinned = 0
            os.close(self._lock)
            self._lock = -1
            self._common.close()

    # -- inside -----------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the table for oneself.

        Raises:
            BusyError: Somebody else has it, for longer than he should.
        """
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.0001)
        else:
            raise BusyError("another process has the shared catalog")
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        late, self._late = self._late, []
        for call in late:
            call()

    def _refresh(self) -> None:
        """Bring the dicts up to date with what changed in the table."""
        last, changed = self._table.since(self._seen)
        for slot, state, key in changed:
            before = self._at.pop(slot, None)
            if state == EMPTY or before != key:
                self._forget(before, slot)
            if state != EMPTY:
                self._at[slot] = key
                (self._full if state == FULL else self._filling)[key] = slot
                if state == FULL:
                    self._filling.pop(key, None)
        self._seen = last

    def _sweep(self) -> None:
        """Look from time to time whether other engines still live. Under the lock."""
        if time.monotonic() > self._swept + SWEEP:
            self._swept = time.monotonic()
            self._table.sweep(self._me, lives)

    def _forget(self, key: bytes | None, slot: int) -> None:
        if key is None:
            return
        if self._full.get(key) == slot:
            del self._full[key]
            self._lost.append(key)
        if self._filling.get(key) == slot:
            del self._filling[key]

    def _empty(self, count: int) -> list[int]:
        """Find empty slots; give keys up where there are too few. Under the lock."""
        slots = self._table.empty(count)
        if len(slots) < count:
            evicted = self._table.evict(max(count - len(slots), self.slots // AHEAD))
            self.counters["evicted"] += evicted
            self._refresh()
            slots = self._table.empty(count)
        return slots
