"""How fast blocks are copied into slots and back, beside a plain copy of as many bytes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kvbridge.abc.backend import MoveState
from kvbridge.bench.reuse import Part, Rows, spread
from kvbridge.connector.reuse_worker import FENCE_LOOK
from kvbridge.errors import TransportError
from kvbridge.memory import Pages, Region
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvbridge.abc import SlotPool

VALUE = 64 << 20
"""Bytes: some 2,000 tokens of a small model. Of about 192 MiB and more, a plain copy goes around the caches and is
faster by itself, on the processors that were looked at; less would be copied within the caches."""

REGIONS = 8
"""A region is a layer's part of the cache."""

WARM_UP = 1
"""Rounds that are not counted: memory is touched for the first time, and bytes are compared."""

ALIGNMENT = 64
"""Bytes, of the cache: as torch allocates it."""

PAGES = (16 << 10, 64 << 10, 128 << 10)

LAYOUTS = ("contiguous", "scattered", "both scattered")


@dataclass(eq=False)
class Case:
    """One size of page in one layout, and the ratios and speeds of its rounds."""

    layout: str
    pool: SlotPool
    cache: Pages
    slots: Pages
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"save": [], "load": [], "plain": []})

    def once(self, plain: PlainCopy) -> None:
        """Save, copy plainly, and load."""
        self.seconds["save"].append(move(self.pool, self.cache, self.slots))
        self.seconds["plain"].append(plain.seconds())
        self.seconds["load"].append(move(self.pool, self.slots, self.cache))

    def check(self) -> None:
        """Save and load, and compare what is in the slots, and then in the cache again, with what was in the cache.

        Raises:
            TransportError: Bytes differ.
        """
        before = _bytes_of(self.cache)
        move(self.pool, self.cache, self.slots)
        if not _equal(_bytes_of(self.slots), before):
            raise TransportError("bytes in the slots are not those of the cache")
        for region, ids in zip(self.cache.regions, self.cache.block_ids, strict=True):
            region.rows()[ids] = 0
        move(self.pool, self.slots, self.cache)
        if not _equal(_bytes_of(self.cache), before):
            raise TransportError("bytes that were loaded are not those that were saved")

    def row(self) -> dict[str, object]:
        """Summarize."""
        plain = self.seconds["plain"]
        row: dict[str, object] = {
            "page_bytes": self.cache.regions[0].page_bytes,
            "layout": self.layout,
            "memcpy_gb_per_s": VALUE / statistics.median(plain) / 1e9,
        }
        for name in ("save", "load"):
            ratios = [copied / moved for copied, moved in zip(plain, self.seconds[name], strict=True)]
            row[f"{name}_gb_per_s"] = VALUE / statistics.median(self.seconds[name]) / 1e9
            row[f"{name}_ratio"] = statistics.median(ratios)
            row[f"{name}_ratios"] = ratios
        return row


class PlainCopy:
    """A plain copy between two arrays, to compare with.

    Args:
        nbytes: Of each array.
    """

    def __init__(self, nbytes: int) -> None:
        self._source, self._target = aligned(nbytes), aligned(nbytes)
        self._source[:] = 1
        self._target[:] = 0

    def seconds(self) -> float:
        """Copy once."""
        started = time.perf_counter()
        self._target[:] = self._source
        return time.perf_counter() - started


class Copies(Part):
    """Saves and loads through a real pool of slots.

    Args:
        rounds: Interleaved rounds.
        backend: Whose slots.
    """

    name = "copies"
    definitions = (
        f"Copies. A value of {VALUE >> 20} MiB, blocks of {REGIONS} layers, each layer's page of the size given. save: "
        "from the call of the pool's copy, from the cache into slots, until a look finds it done, with one look every "
        f"{FENCE_LOOK * 1000:g} ms, as a worker looks; load: likewise, from slots into the cache. memcpy: one thread "
        "copies as many bytes from one array to another by one call. of memcpy: the median of the rounds' ratios of "
        "speed, and the lowest … highest; save, memcpy and load of a round follow each other. contiguous: the blocks "
        "adjoin, and so do the slots; scattered: blocks in random order, slots adjoin; both scattered: the slots in "
        "random order too. Bytes were compared."
    )

    def __init__(self, rounds: int, backend: str = "cpu") -> None:
        self._rounds = rounds
        self._backend = backend

    def measure(self, tell: Callable[[str], None]) -> Rows:
        """Measure all cases in interleaved rounds."""
        backend = create_backend(self._backend, {})
        pools: list[SlotPool] = []
        try:
            cache = aligned(2 * VALUE)
            cache.view(np.int64)[:] = np.arange(cache.nbytes // 8)
            plain, cases = PlainCopy(VALUE), []
            for page in PAGES:
                regions = layers(cache, page)
                pools.append(backend.open_pool(regions, regions[0].num_blocks))
                cases += [make_case(layout, pools[-1], regions) for layout in LAYOUTS]
            for number in range(WARM_UP + self._rounds):
                for case in cases:
                    tell(f"copies: round {max(0, number - WARM_UP + 1)} of {self._rounds}")
                    case.once(plain)
                    if number < WARM_UP:
                        case.check()
                        case.seconds = {name: [] for name in case.seconds}
            return [case.row() for case in cases]
        finally:
            for pool in pools:
                pool.close()
            backend.close()

    def table(self, rows: Rows) -> Table:
        """Show the figures."""
        table = Table(
            *("page", "blocks", "memcpy GB/s", "save GB/s", "of memcpy", "load GB/s", "of memcpy"),
            title=f"slots of {self._backend}: {VALUE >> 20} MiB, {self._rounds} interleaved rounds",
        )
        for row in rows:
            cells = [f"{row['page_bytes'] >> 10} KiB", row["layout"], f"{row['memcpy_gb_per_s']:.2f}"]
            for name in ("save", "load"):
                cells.append(f"{row[f'{name}_gb_per_s']:.2f}")
                cells.append(f"[bold]{row[f'{name}_ratio']:.2f}[/] ({spread(row[f'{name}_ratios'], '.2f')})")
            table.add_row(*cells, end_section=row["layout"] == LAYOUTS[-1])
        return table


def make_case(layout: str, pool: SlotPool, regions: list[Region]) -> Case:
    """Choose blocks and slots: half of those that there are."""
    total = regions[0].num_blocks
    random = np.random.default_rng(0)
    adjoining, blocks, slots = np.arange(total // 2), *(random.permutation(total)[: total // 2] for _ in range(2))
    return Case(
        layout,
        pool,
        Pages.of(regions, adjoining if layout == "contiguous" else blocks),
        Pages.of(pool.regions, slots if layout == "both scattered" else adjoining),
    )


def move(pool: SlotPool, source: Pages, target: Pages) -> float:
    """Copy as a worker does; return the seconds."""
    started = time.perf_counter()
    copy = pool.copy(source, target)
    while copy.step() is not MoveState.DONE:
        time.sleep(FENCE_LOOK)
    return time.perf_counter() - started


def layers(memory: NDArray[np.uint8], page: int) -> list[Region]:
    """Cut memory into the layers' regions."""
    size = memory.nbytes // REGIONS
    return [Region.over(memory[start : start + size], page) for start in range(0, memory.nbytes, size)]


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Take memory that begins at a multiple of `ALIGNMENT`.

    A large array of numpy's begins 16 bytes behind a page of memory. A copy to there from the beginning of a page, of
    16 KiB or 64 KiB, takes four times as long on AMD's Zen 3, which would be a figure of numpy's allocation.
    """
    memory = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def _bytes_of(pages: Pages) -> list[NDArray[np.void | np.int64]]:
    return [region.rows()[ids] for region, ids in zip(pages.regions, pages.block_ids, strict=True)]


def _equal(one: list[NDArray[np.void | np.int64]], other: list[NDArray[np.void | np.int64]]) -> bool:
    return all(np.array_equal(rows, expected) for rows, expected in zip(one, other, strict=True))
