"""What a process holds: threads, descriptors, children, files in shared memory, memory. To see that nothing is left."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import msgspec


class Resources(msgspec.Struct, frozen=True):
    """What a process holds at one moment.

    Attributes:
        threads: Names of Python threads.
        tasks: Number of threads that the kernel knows, native ones included.
        descriptors: Number of open file descriptors.
        children: Number of child processes.
        shared: Files in /dev/shm that this user owns.
        resident: Resident bytes that are not shared.
    """

    threads: tuple[str, ...]
    tasks: int
    descriptors: int
    children: int
    shared: tuple[str, ...]
    resident: int


def resources(*, collect: bool = True) -> Resources:
    """Look at this process."""
    if collect:
        gc.collect()
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return Resources(
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        tasks=len(list(Path("/proc/self/task").iterdir())),
        descriptors=len(list(Path("/proc/self/fd").iterdir())) - 1,
        children=_children(),
        shared=_shared(),
        resident=(int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE"),
    )


def growth(before: Resources, after: Resources, *, slack: dict[str, int] | None = None) -> dict[str, Any]:
    """Return what is there now and was not before.

    Args:
        before: An earlier look.
        after: A later one.
        slack: How much more of a number is no leak.
    """
    found: dict[str, Any] = {}
    threads = list(after.threads)
    for name in before.threads:
        if name in threads:
            threads.remove(name)
    if threads:
        found["threads"] = threads
    for name in ("tasks", "descriptors", "children", "resident"):
        more = getattr(after, name) - getattr(before, name)
        if more > (slack or {}).get(name, 0):
            found[name] = more
    files = sorted(set(after.shared) - set(before.shared))
    if len(files) > (slack or {}).get("shared", 0):
        found["files in /dev/shm"] = files
    return found


def _children() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += len((task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue  # the thread has ended, or this kernel does not say
    return count


def _shared() -> tuple[str, ...]:
    folder = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    found = []
    if folder.is_dir():
        for path in folder.iterdir():
            try:
                if path.stat().st_uid == os.getuid():
                    found.append(path.name)
            except OSError:
                continue
    return tuple(sorted(found))
