"""`FileStored`: a value that was found: an open file, which can be read whatever becomes of its name."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvbridge.abc import Move, Stored
from kvbridge.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge.memory import Payload
    from kvbridge_files.folder import Folder
    from kvbridge_files.head import Front
    from kvbridge_files.store import FilesStore


class FileStored(Stored):
    """An open file. Its lock, which it has as long as it is open, keeps its bytes where they are.

    Args:
        store: The store.
        path: The file's name.
        fd: Its descriptor, which is closed by `shut`.
        front: Its beginning.
        taken: Whether nobody else finds it: then its bytes go with it.
    """

    def __init__(self, store: FilesStore, path: Path, fd: int, front: Front, *, taken: bool) -> None:
        self.header = front.head.header
        self.path = path
        self.front = front
        self.taken = taken
        self._store = store
        self._fd = fd
        self._lock = threading.Lock()
        self._users = 0
        self._over = False

    def read(self, out: Payload, skip: int) -> Move:
        """Read the value on a thread of the store's."""
        return self._store.start_read(self, out, skip)

    def release(self) -> None:
        """Let go of it, on a thread of the store's: there may be bytes to give up."""
        self._store.let_go(self)

    @contextmanager
    def used(self) -> Iterator[int]:
        """Use the descriptor. A `shut` that comes meanwhile is done at the end.

        Raises:
            ClosedError: It was shut.
        """
        with self._lock:
            if self._over:
                raise ClosedError("the store was closed")
            self._users += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_over()

    def is_there(self, folder: Folder) -> bool:
        """Whether the file still has its name. One that was shut counts as such."""
        with self._lock:
            return self._over or folder.is_at(self.path, self._fd)

    def shut(self) -> None:
        """Close the file, as soon as nobody uses it. Any thread may call it. Idempotent."""
        with self._lock:
            if not self._over:
                self._over = True
                self._close_if_over()

    def _close_if_over(self) -> None:
        if self._over and not self._users:
            os.close(self._fd)
