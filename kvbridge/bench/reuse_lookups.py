"""What it costs to look blocks up, and what memory their names take."""

from __future__ import annotations

import gc
import os
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kvbridge.bench.reuse import Part, Rows, spread
from kvbridge.policies import create_policy, list_policies
from kvbridge.reuse.common import CommonSlots
from kvbridge.reuse.keys import KEY_BYTES, block_keys, namespace
from kvbridge.reuse.own_catalog import OwnCatalog
from kvbridge.reuse.processes import this_process
from kvbridge.reuse.shared_catalog import SharedCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.reuse.catalog import Catalog

HELD = (1_000, 1_000_000)
"""Keys in the catalog."""

ASKED = (1, 100, 10_000)
"""Keys of a request."""

SAMPLE = 10_000
"""Keys that are looked up between two looks at the clock, by as many requests as that takes."""

HASH_BYTES = 32
"""Bytes of an engine's hash of a block: SHA-256, which is vLLM's default."""

MAKING = "making keys"
"""What stands in the place of a policy where keys are made and nothing is looked up."""


SHARED = "shared"
"""Likewise where the catalog is shared by the engines of a host: it has a policy of its own."""

FOUND = "only found"
"""Likewise where keys are looked up and not pinned, which has nothing to do with the policy."""


class Lookups(Part):
    """Requests whose blocks are all kept, at catalogs of several sizes.

    Args:
        rounds: Interleaved rounds.
        held: Keys in the catalogs.
        policies: Names of policies; all that are installed where there are none.
    """

    name = "lookups"
    definitions = (
        "Lookups. A request's keys are all in the catalog, one prefix of random place. Time: the thread's processor "
        "time for leading, pin and unpin of all of them, over their number, the calls' own cost included; median of "
        f"rounds of {SAMPLE:,} keys, and the lowest … highest. {FOUND}: leading alone, which is what it costs to "
        "know how much of a prompt is kept. "
        f"{SHARED}: the catalog that engines of a host share, lru, which takes a lock to pin; memory: this process's "
        "copy, without the table in shared memory. "
        f"{MAKING}: block_keys from hashes of {HASH_BYTES} bytes, likewise. Memory: bytes that Python allocated for a "
        f"catalog that is full, by tracemalloc, over its keys; the keys themselves, of {KEY_BYTES} bytes and an object "
        "each, are part of it."
    )

    def __init__(self, rounds: int, held: Sequence[int] = HELD, policies: Sequence[str] = ()) -> None:
        self._rounds = rounds
        self._held = held
        self._policies = list(policies) or [*list_policies(), SHARED]

    def measure(self, tell: Callable[[str], None]) -> Rows:
        """Measure one policy after the other, each in interleaved rounds."""
        tell("lookups: making keys")
        rows = [{"policy": MAKING, "held": None, "bytes_per_key": None, "seconds_per_key": self._making()}]
        for name in self._policies:
            rows.extend(self._policy(name, tell))
        return rows

    def table(self, rows: Rows) -> Table:
        """Show the figures."""
        table = Table(
            *("policy", "keys held", *(f"us a key, {asked:,} asked" for asked in ASKED), "memory a key"),
            title=f"lookups: {self._rounds} interleaved rounds",
        )
        for row in rows:
            cells = [row["policy"], "" if row["held"] is None else f"{row['held']:,}"]
            for asked in ASKED:
                seconds = row["seconds_per_key"].get(str(asked))
                cells.append("" if seconds is None else _in_us(seconds))
            cells.append("" if row["bytes_per_key"] is None else f"{row['bytes_per_key']:.0f} B")
            table.add_row(*cells, end_section=row["policy"] != FOUND)
        return table

    def _making(self) -> dict[str, list[float]]:
        hashes = _names(0, SAMPLE, HASH_BYTES)
        space = namespace({"model": "measured"}, "")
        found: dict[str, list[float]] = {str(asked): [] for asked in ASKED}
        for _ in range(self._rounds):
            for asked in ASKED:
                requests = [hashes[start : start + asked] for start in range(0, SAMPLE, asked)]
                started = time.thread_time()
                for request in requests:
                    block_keys(space, request)
                found[str(asked)].append((time.thread_time() - started) / SAMPLE)
        return found

    def _policy(self, name: str, tell: Callable[[str], None]) -> Rows:
        catalogs: list[tuple[Catalog, list[bytes]]] = []
        rows: Rows = []
        for number, held in enumerate(self._held):
            tell(f"lookups: {held:,} keys, {name}")
            catalog, nbytes = _full(name, held, number)
            catalogs.append((catalog, _names(number, held, KEY_BYTES)))
            for what in (FOUND, name):
                times: dict[str, list[float]] = {str(asked): [] for asked in ASKED if asked <= held}
                rows.append({"policy": what, "held": held, "bytes_per_key": nbytes / held, "seconds_per_key": times})
        for seed in range(self._rounds):
            for index, row in enumerate(rows):
                catalog, keys = catalogs[index // 2]
                for asked, seconds in row["seconds_per_key"].items():
                    tell(f"lookups: round {seed + 1} of {self._rounds}, {name}")
                    seconds.append(_look_up(catalog, keys, int(asked), seed, pins=row["policy"] != FOUND))
        for catalog, _ in catalogs:
            catalog.close()
        return rows


def _look_up(catalog: Catalog, keys: list[bytes], asked: int, seed: int, *, pins: bool) -> float:
    """Ask for random prefixes; return seconds a key."""
    count = max(1, SAMPLE // asked)
    starts = np.random.default_rng(seed).integers(0, len(keys) - asked + 1, count).tolist()
    requests = [keys[start : start + asked] for start in starts]
    started = time.thread_time()
    for request in requests:
        catalog.leading(request)
        if pins:
            catalog.unpin(catalog.pin(request))
    return (time.thread_time() - started) / (count * asked)


def _full(policy: str, held: int, seed: int) -> tuple[Catalog, int]:
    """Fill a catalog; return what Python allocated for it."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        catalog = _shared(held) if policy == SHARED else OwnCatalog(held, create_policy(policy, held))
        catalog.publish(catalog.reserve(_names(seed, held, KEY_BYTES)))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return catalog, after - before


def _shared(held: int) -> SharedCatalog:
    """Make a catalog that other processes could share."""
    catalog = SharedCatalog(CommonSlots(f"kvbridge bench {os.getpid()}", [8], held, ranks=1))
    catalog.joined([this_process()])
    return catalog


def _names(seed: int, count: int, nbytes: int) -> list[bytes]:
    """Make random names, the same for the same seed."""
    raw = np.random.default_rng(seed).bytes(count * nbytes)
    return [raw[start : start + nbytes] for start in range(0, len(raw), nbytes)]


def _in_us(seconds: Sequence[float]) -> str:
    return f"[bold]{statistics.median(seconds) * 1e6:.2f}[/] ({spread([one * 1e6 for one in seconds], '.2f')})"
