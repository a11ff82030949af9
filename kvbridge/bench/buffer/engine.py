"""`Engine`: a real endpoint with its LookupBuffer, in a process of its own, and what is measured of it."""

from __future__ import annotations

import contextlib
import gc
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvbridge.abc import Key
from kvbridge.bench.buffer.still import Still, StillOptions
from kvbridge.bench.remote import Served
from kvbridge.control.endpoint import Endpoint
from kvbridge.control.link import PING_INTERVAL
from kvbridge.errors import CancelledError, KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.transfer import Transfer

LEASE = 86_000.0
"""Seconds: nothing that is only held expires while it is measured."""

DEADLINE = 120.0
"""Seconds that one operation may take."""

PATIENCE = 60.0
"""Seconds after which a peer counts as lost: the processes of a thousand of them share few cores."""

CHUNK = 10_000
"""Inserts that are under way at one time at most."""

BATCH = 500
"""Keys in one question, or in one order to drop."""

VALUE = np.zeros(64, dtype=np.uint8)
"""The payload of every key. It is neither kept nor moved."""

EXPIRES = 1.0
"""Seconds of the lease of keys that are to expire."""


class Spent(NamedTuple):
    """What operations took.

    Attributes:
        seconds: From the first one's beginning to the last one's end.
        cpu: Processor time of this process, all its threads.
        beats: How often it sent its heartbeats meanwhile.
    """

    seconds: float
    cpu: float
    beats: int = 0


class Standing(NamedTuple):
    """What a process takes for what it holds: bytes of its private memory, and open files."""

    nbytes: int
    files: int


def since(before: Spent, now: Spent) -> Spent:
    """Return what was spent between two looks."""
    return Spent(now.seconds - before.seconds, now.cpu - before.cpu, now.beats - before.beats)


def name_of(tag: str, index: int) -> str:
    """Name a key, as long as a UUID is."""
    return f"{tag}-{index:0{35 - len(tag)}d}"


class Engine(Served):
    """One endpoint and one buffer over a transport that moves nothing."""

    def __init__(self) -> None:
        more_files()
        self._plane = Still(StillOptions())
        self._endpoint = Endpoint(self._plane, peer_timeout=PATIENCE)
        self._beats = 0
        self._endpoint.call_soon(self._beat)
        self._early: dict[str, list[Transfer[None]]] = {}
        self._buffer = self._plane.open_buffer(self._endpoint, lease=LEASE, timeout=DEADLINE)
        self.insert("warm", 200)  # code is loaded, and memory taken, that every buffer needs
        self._buffer.drop([Key(name_of("warm", index)) for index in range(200)])
        self.insert("warmer", 1)  # it comes after the drop
        self._buffer.drop([Key(name_of("warmer", 0))])
        gc.collect()

    def address(self) -> str:
        """Return where it listens."""
        return self._endpoint.address

    def used(self) -> Spent:
        """Return what the process has spent since its start."""
        return Spent(time.monotonic(), time.process_time(), self._beats)

    def _beat(self) -> None:
        """Count heartbeats: they are sent as often, by a timer of the same thread."""
        self._beats += 1
        self._endpoint.after(PING_INTERVAL, self._beat)

    def standing(self) -> Standing:
        """Say what the process takes, garbage not counted."""
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="ascii")
        private = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
        return Standing(int(private.split()[1]) << 10, len(list(Path("/proc/self/fd").iterdir())))

    def collect(self) -> float:
        """Return the seconds of a full collection of garbage, in which nothing else runs."""
        started = time.monotonic()
        gc.collect()
        return time.monotonic() - started

    def idle(self, seconds: float) -> Spent:
        """Return what the process spends while nobody asks for anything."""
        before = self.used()
        time.sleep(seconds)
        return since(before, self.used())

    def dial(self, addresses: Sequence[str]) -> None:
        """Get to know peers."""
        for start in range(0, len(addresses), 100):
            links = [self._endpoint.dial(address) for address in addresses[start : start + 100]]
            for link in links:
                link.wait(DEADLINE)

    # -- operations -------------------------------------------------------------------------------------------

    def insert(self, tag: str, count: int, lease: float = 0.0) -> Spent:
        """Insert keys."""
        keys = [Key(name_of(tag, index)) for index in range(count)]
        before = self.used()
        for start in range(0, count, CHUNK):
            inserts = [self._buffer.insert(key, VALUE, lease=lease) for key in keys[start : start + CHUNK]]
            for insert in inserts:
                insert.wait(DEADLINE)
        return since(before, self.used())

    def contains(self, homes: Sequence[str], tags: Sequence[str], held: int, count: int, seed: int) -> Spent:
        """Ask for keys that are held, `BATCH` in each question, each question to a random one of some homes.

        Args:
            homes: Addresses.
            tags: Of the keys of each home.
            held: Keys of each tag.
            count: Keys in all questions.
            seed: Of what is asked for.

        Raises:
            KVBridgeError: One is not there.
        """
        batches = _batches(homes, tags, held, count, seed)
        before = self.used()
        for batch in batches:
            if not all(self._buffer.contains(batch).wait(DEADLINE)):
                raise KVBridgeError("a key that is held was not found")
        return since(before, self.used())

    def take(self, homes: Sequence[str], tags: Sequence[str], each: int, count: int, flight: int) -> Spent:
        """Take keys in random order, so many at a time: `drop_select`.

        Args:
            homes: Addresses.
            tags: Of the keys of each home.
            each: Keys of each tag.
            count: Keys that are taken.
            flight: Keys at a time.
        """
        keys = _keys(homes, tags, each, count)
        out = np.empty_like(VALUE)
        before = self.used()
        for start in range(0, count, flight):
            transfers = [self._buffer.drop_select(key, out) for key in keys[start : start + flight]]
            for transfer in transfers:
                transfer.wait(DEADLINE)
        return since(before, self.used())

    def ask_early(self, home: str, tag: str, count: int) -> Spent:
        """Begin to take keys that are not there yet; the home has heard of all of them at the end."""
        out = np.empty_like(VALUE)
        keys = [Key(name_of(tag, index), home) for index in range(count)]
        before = self.used()
        self._early[tag] = [self._buffer.drop_select(key, out) for key in keys]
        self._buffer.contains(keys[-1:]).wait(DEADLINE)
        return since(before, self.used())

    def await_early(self, tag: str) -> Spent:
        """Wait until the keys have come."""
        before = self.used()
        for transfer in self._early.pop(tag):
            transfer.wait(DEADLINE)
        return since(before, self.used())

    def cancel_early(self, home: str, tag: str, count: int) -> Spent:
        """Take the first of the questions back; the home has heard of that at the end."""
        transfers, self._early[tag] = self._early[tag][:count], self._early[tag][count:]
        before = self.used()
        for transfer in transfers:
            transfer.cancel()
        for transfer in transfers:
            with contextlib.suppress(CancelledError):
                transfer.wait(DEADLINE)
        self._buffer.contains([Key(name_of(tag, 0), home)]).wait(DEADLINE)
        return since(before, self.used())

    def drop(self, home: str, tag: str, count: int) -> Spent:
        """Give keys up; what comes after it on the same link is answered when that is done."""
        keys = [Key(name_of(tag, index), home) for index in range(count)]
        before = self.used()
        for start in range(0, count, BATCH):
            self._buffer.drop(keys[start : start + BATCH])
        if any(self._buffer.contains(keys[-1:]).wait(DEADLINE)):
            raise KVBridgeError("a key that was dropped is still there")
        return since(before, self.used())

    def expire(self, tag: str, count: int) -> Spent:
        """Let keys expire that were just inserted with `EXPIRES`; the time is that of the processor."""
        expired = self._buffer.stats().get("expired", 0.0)
        self.insert(tag, count, EXPIRES)
        cpu = time.process_time()
        deadline = time.monotonic() + DEADLINE
        time.sleep(EXPIRES)
        while self._buffer.stats().get("expired", 0.0) < expired + count:
            if time.monotonic() > deadline:
                raise KVBridgeError(f"keys did not expire {DEADLINE:g} s after the end of their lease")
            time.sleep(0.05)
        spent = time.process_time() - cpu
        return Spent(spent, spent)

    def close(self) -> None:
        """Give everything back."""
        self._buffer.close()
        self._endpoint.close(DEADLINE)
        self._plane.close()


def _keys(homes: Sequence[str], tags: Sequence[str], each: int, count: int) -> list[Key]:
    chosen = np.random.default_rng(0).permutation(each * len(homes))[:count].tolist()
    return [Key(name_of(tags[one % len(homes)], one // len(homes)), homes[one % len(homes)]) for one in chosen]


def _batches(homes: Sequence[str], tags: Sequence[str], held: int, count: int, seed: int) -> list[list[Key]]:
    chooser = np.random.default_rng(seed)
    whose = chooser.integers(0, len(homes), -(-count // BATCH)).tolist()
    return [
        [Key(name_of(tags[one], index), homes[one]) for index in chooser.integers(0, held, min(BATCH, count)).tolist()]
        for one in whose
    ]


def more_files() -> None:
    """Allow this process as many open files as it may have: a dialled peer takes several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
