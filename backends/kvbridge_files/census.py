"""What is learnt by looking at every file of a folder: how much room they take, and which were not used for longest."""

from __future__ import annotations

import contextlib
import heapq
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 4096
"""Files are counted in such blocks, as disks give them out."""


class Used(NamedTuple):
    """A value's file and when it was last used, in nanoseconds."""

    when: int
    path: Path


def room_of(nbytes: int) -> int:
    """Return what a file of so many bytes takes of the capacity."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def oldest(values: Path, count: int) -> list[Used]:
    """Return the values that were not used for longest, those first."""
    return heapq.nsmallest(count, (Used(found.st_mtime_ns, Path(name)) for name, found in _files(values)))


def count_room(values: Path, hidden: Path) -> int:
    """Return what all files take. To be called with the ledger's lock held.

    Hidden files first: one that is published meanwhile is met twice then, and known by its number; the other way round
    it might not be met at all.
    """
    seen: dict[int, int] = {}
    for _, found in _in(str(hidden)):
        seen[found.st_ino] = room_of(found.st_size)
    used = sum(seen.values())
    return used + sum(room_of(found.st_size) for _, found in _files(values) if found.st_ino not in seen)


def _files(values: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(values) as folders:
        for folder in folders:
            yield from _in(folder.path)


def _in(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # gone since
                yield entry.path, entry.stat(follow_symlinks=False)
