"""The figures of `backends/kvbridge_files/README.md`: `python -m tests.files.measure FOLDER`, on the disk that counts.

All cases of a table take turns in one run, so that what else the machine does strikes each of them alike.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.memory import Pages, Region
from kvbridge_files import FilesOptions, FilesStore, head, moves
from tests.files.driving import MIB, done, find, over, put

if TYPE_CHECKING:
    from collections.abc import Callable

NBYTES = 64 * MIB
WINDOW = 4 * MIB
TURNS = 9


class Table:
    """Seconds of cases that take turns."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._seconds: dict[str, list[float]] = {}

    def time(self, case: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        self._seconds.setdefault(case, []).append(time.perf_counter() - start)

    def show(self, unit: Callable[[float], str], ratio_to: str) -> None:
        print(f"\n{self._title}")
        base = statistics.median(self._seconds[ratio_to])
        for case, seconds in self._seconds.items():
            median = statistics.median(seconds)
            print(f"  {case:34} {unit(median):>12}   {median / base:6.2f} times {ratio_to}")


def rate(seconds: float) -> str:
    return f"{NBYTES / seconds / (1 << 30):.2f} GiB/s"


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def direct(folder: Path) -> None:
    """Plain files, with the page cache and without."""
    table = Table("64 MiB, plain files, 4 MiB at a time")
    memory = memoryview(mmap.mmap(-1, WINDOW))
    memory[:] = os.urandom(WINDOW)
    cached, straight = folder / "cached", folder / "direct"

    def write(path: Path, flags: int, *, sync: bool) -> None:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
        for start in range(0, NBYTES, WINDOW):
            os.pwritev(fd, [memory], start)
        if sync:
            os.fsync(fd)
        os.close(fd)

    def read(path: Path, flags: int) -> None:
        fd = os.open(path, os.O_RDONLY | flags)
        for start in range(0, NBYTES, WINDOW):
            os.preadv(fd, [memory], start)
        os.close(fd)

    for _ in range(TURNS):
        table.time("write, cached", lambda: write(cached, 0, sync=False))
        table.time("read, cached, just written", lambda: read(cached, 0))
        table.time("write, cached, fsync", lambda: write(cached, 0, sync=True))
        table.time("write, O_DIRECT", lambda: write(straight, os.O_DIRECT, sync=False))
        table.time("write, O_DIRECT, fsync", lambda: write(straight, os.O_DIRECT, sync=True))
        table.time("read, O_DIRECT", lambda: read(straight, os.O_DIRECT))
        forget(cached)
        table.time("read, cached, from the disk", lambda: read(cached, 0))
        forget(cached)
        table.time("read, O_DIRECT, from the disk", lambda: read(cached, os.O_DIRECT))
    for path in (cached, straight):
        path.unlink()
    table.show(rate, "write, cached")


def values(folder: Path) -> None:
    """Values of a store, beside a plain copy of the same memory."""
    table = Table("64 MiB, values of 1,024 scattered pages of 64 KiB, one at a time")
    store = FilesStore(FilesOptions(folder=str(folder / "values"), capacity="1GiB"))
    durable = FilesStore(FilesOptions(folder=str(folder / "values"), capacity="1GiB", fsync=True))
    page = 64 << 10
    order = np.random.default_rng(1).permutation(NBYTES // page)
    source, target = (np.ones(NBYTES, dtype=np.uint8) for _ in range(2))
    pages, out = (Pages.of([Region.over(memory, page)], order) for memory in (source, target))
    rows = Region.over(source, page).rows()
    packed = np.empty_like(rows)

    def select(skip: int = 0) -> None:
        stored = find(store, "k")
        assert stored is not None
        wanted = Pages.of([Region.over(target, page)], order[skip:]) if skip else out
        over(stored.read(wanted, skip))
        stored.release()

    crc32 = zlib.crc32
    for _ in range(TURNS):
        table.time("gather into packed memory", lambda: np.take(rows, order, axis=0, out=packed, mode="clip"))
        table.time("put", lambda: over(store.put("k", b"", pages)))
        table.time("select", select)
        table.time("select, 7 of 8 skipped", lambda: select(len(order) * 7 // 8))
        moves.zlib.crc32 = head.zlib.crc32 = lambda *_: 0  # type: ignore[assignment]
        done(store.remove(["k"]))
        table.time("put, no checksums", lambda: over(store.put("k", b"", pages)))
        table.time("select, no checksums", select)
        moves.zlib.crc32 = head.zlib.crc32 = crc32
        done(store.remove(["k"]))
        table.time("put, fsync", lambda: over(durable.put("k", b"", pages)))
        forget(store._folder.path_of("k"))
        table.time("select, from the disk", select)
        done(store.remove(["k"]))
    table.show(rate, "gather into packed memory")
    store.close()
    durable.close()


def ask(table: Table, store: FilesStore, held: int) -> None:
    for number in range(held):
        put(store, f"k{number}", 1, 100)
    keys = [f"k{number}" for number in range(0, held, held // 100)][:100]
    name = f"{held:,} held"
    for turn in range(50):
        new = f"new{turn}"
        table.time(f"headers of 100 keys, {name}", lambda: store._headers(keys, moves.Stop("", store._closing)))
        table.time(f"put, {name}", partial(put, store, new, 1, 100))
        table.time(f"remove, {name}", partial(store._remove, [new]))
    for _ in range(5):
        table.time(f"list for eviction, {name}", lambda: store._folder.oldest(4096))
        table.time(f"count after a crash, {name}", store._folder._count)


def questions(folder: Path) -> None:
    """What costs the same however many values there are, and what does not."""
    table = Table("small values")
    for held in (100, 20_000):
        store = FilesStore(FilesOptions(folder=str(folder / f"held{held}"), capacity="1GiB"))
        ask(table, store, held)
        store.close()
    table.show(micros, "put, 100 held")


if __name__ == "__main__":
    where = Path(sys.argv[1])
    direct(where)
    values(where)
    questions(where)
