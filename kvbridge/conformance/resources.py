"""What a process holds: threads, descriptors, children, files in shared memory, memory. To see that nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

BATCHES = 3
"""Times that something is done again before what it leaves behind is a leak."""


class Resources(msgspec.Struct, frozen=True):
    """What a process holds at one moment.

    Attributes:
        threads: Names of Python threads.
        tasks: Number of threads that the kernel knows, native ones included.
        descriptors: Number of open file descriptors.
        children: Number of child processes.
        shared: Files in /dev/shm that this user owns, but for those that only other programs have open or mapped.
        present: All files in /dev/shm. What was there before is nobody's here, whoever leaves it behind.
        files: What is in the folder for temporary files.
        resident: Resident bytes that are not shared.
    """

    threads: tuple[str, ...]
    tasks: int
    descriptors: int
    children: int
    shared: tuple[str, ...]
    present: tuple[str, ...]
    files: tuple[str, ...]
    resident: int


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Give this process a folder for temporary files that no other one uses, and remove it afterwards."""
    before, tempdir = os.environ.get("TMPDIR"), tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="kvbridge-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = tempdir
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def resources(*, collect: bool = True) -> Resources:
    """Look at this process."""
    if collect:
        gc.collect()
    shared, present = _shared()
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return Resources(
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        tasks=len(list(Path("/proc/self/task").iterdir())),
        descriptors=len(list(Path("/proc/self/fd").iterdir())) - 1,
        children=_children(),
        shared=shared,
        present=present,
        files=tuple(sorted(path.name for path in Path(tempfile.gettempdir()).iterdir())),
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
    for name, where, now, known in (
        ("shared", "files in /dev/shm", after.shared, before.present),
        ("files", "temporary files", after.files, before.files),
    ):
        files = sorted(set(now) - set(known))
        if len(files) > (slack or {}).get(name, 0):
            found[where] = files
    return found


def grown_each_time(act: Callable[[], None], slack: dict[str, int], times: int = 1) -> dict[str, Any]:
    """Return what is left behind each time that something is done: that is a leak.

    What is made once, when it is first needed, is none, nor is what other programs left on this machine meanwhile.

    Args:
        act: What is done.
        slack: See `growth`.
        times: How often it is done between two looks.
    """
    found: dict[str, Any] = {}
    for _ in range(BATCHES):
        before = resources()
        for _ in range(times):
            act()
        found = growth(before, resources(), slack=slack)
        if not found:
            break
    return found


def _children() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += len((task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue  # the thread has ended, or this kernel does not say
    return count


def _shared() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files in /dev/shm that may be this user's programs' here, and all files there."""
    folder = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    present, found = [], []
    for path in folder.iterdir() if folder.is_dir() else ():
        present.append(path.name)
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.append(path.name)
    return tuple(sorted(set(found) - _of_others(found))), tuple(sorted(present))


def _of_others(names: Collection[str]) -> set[str]:
    """Return those of files in /dev/shm that processes hold, but neither this one nor one that came of it."""
    ours: set[str] = set()
    theirs: set[str] = set()
    for process in Path("/proc").iterdir() if names else ():
        if process.name.isdigit():
            held = _shared_by(process, names)
            if held:
                (ours if _came_of_this_one(int(process.name)) else theirs).update(held)
    return theirs - ours


def _came_of_this_one(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == os.getpid()


def unused(names: Collection[str]) -> set[str]:
    """Return those of files in /dev/shm that no living process of this user has open or mapped: others have theirs."""
    left = set(names)
    for process in Path("/proc").iterdir():
        if left and process.name.isdigit():
            left -= _shared_by(process, left)
    return left


def _shared_by(process: Path, names: Collection[str]) -> set[str]:
    try:
        seen = (process / "maps").read_text(encoding="utf-8", errors="replace")
        seen += "\n".join(str(link.readlink()) for link in (process / "fd").iterdir())
    except OSError:
        return set()  # it has ended, or is another user's
    return {name for name in names if f"/dev/shm/{name}" in seen}  # noqa: S108 - looked at, not written to
