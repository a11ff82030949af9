"""`SharedLock`: a lock between the threads of all processes that share a folder. A process that dies lets go of it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvbridge.errors import ClosedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 10.0
"""Seconds that a lock is waited for. It is held for microseconds, but its holder may have been stopped."""

CLOSING_PATIENCE = 0.3
"""Seconds, once the store is being closed: what cannot be tidied up now is by the next process that looks."""

FIRST_PAUSE, LAST_PAUSE = 0.0001, 0.005
"""Seconds between two tries: they double from the first to the last. The system's own queue knows no deadline."""

THREADS_PAUSE = 0.1
"""Seconds between two looks whether a thread of this process has held the lock for too long."""


class SharedLock:
    """An exclusive `flock` on a file, and before it a lock between this process's threads.

    Args:
        path: The file; made if it is not there, never deleted.
        closing: Set when the store is being closed.
    """

    def __init__(self, path: Path, closing: threading.Event) -> None:
        self._path = path
        self._closing = closing
        self._threads = threading.Lock()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Not on the endpoint's thread: it may be waited for.

        Raises:
            TransportError: Somebody else holds it for longer than it is waited for.
            ClosedError: The store was closed.
        """
        began = time.monotonic()
        pause = FIRST_PAUSE
        while not self._threads.acquire(timeout=THREADS_PAUSE):
            self._check(began)
        try:
            if self.fd < 0:
                raise ClosedError(f"the lock {self._path} was closed")
            while not lock(self.fd, fcntl.LOCK_EX):
                self._check(began)
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
            try:
                yield
            finally:
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._threads:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _check(self, began: float) -> None:
        waited = time.monotonic() - began
        if waited > (CLOSING_PATIENCE if self._closing.is_set() else PATIENCE):
            raise TransportError(
                f"another process or thread has held the lock {self._path} for {waited:.1f} s: if it was stopped, "
                f"continue or kill it (`fuser {self._path}` names it)"
            )


def lock(fd: int, kind: int) -> bool:
    """Try to lock an open file, `fcntl.LOCK_EX` or `fcntl.LOCK_SH`. Whether it could be had; never waits."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(fd: int) -> bool:
    """Lock an open file for reading, with a little patience: who put it closes it a moment after it is seen."""
    for pause in (0.0, 0.0005, 0.002, 0.008):
        time.sleep(pause)
        if lock(fd, fcntl.LOCK_SH):
            return True
    return False
