"""`Ledger`: how many bytes a folder's files have, over all processes. Looked up, not counted.

It is a record in a file, under a lock. Whoever is about to change both files and record marks it first. Where a mark
is found, or a record from before a restart of the machine, its writer died in between: then the files are counted.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.errors import BackendUnavailableError
from kvbridge_files.locks import SharedLock

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

NAME = "ledger"
"""The record's file. It is the first thing in a folder: by it a folder is known as ours."""

KIND, VERSION = b"KVBFILE", b"1"
"""What a record begins with. The version is that of the whole folder."""

_RECORD = struct.Struct("<8s16sQB3x")
_CHECKED = struct.Struct("<36sI")


class Account:
    """The record while the lock is held."""

    def __init__(self, fd: int, boot: bytes, used: int) -> None:
        self.used = used
        self.leftover: list[int] = []
        """Descriptors to be closed when the lock is free again: freeing a large file's blocks takes long."""
        self._fd = fd
        self._boot = boot

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Surround what changes files and `used`. If it does not get to its end, the files will be counted."""
        self.write(marked=True)
        yield
        self.write(marked=False)

    def write(self, *, marked: bool) -> None:
        """Write the record."""
        record = _RECORD.pack(KIND + VERSION, self._boot, max(0, self.used), marked)
        os.pwrite(self._fd, _CHECKED.pack(record, zlib.crc32(record)), 0)


class Ledger:
    """The record of a folder.

    Args:
        folder: The folder. It is there.
        closing: Set when the store is being closed.
        count: Counts the files' bytes. Called with the lock held, on the thread that wants the record.

    Raises:
        BackendUnavailableError: The folder is another version's.
    """

    def __init__(self, folder: Path, closing: threading.Event, count: Callable[[], int]) -> None:
        self._count = count
        self._boot = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()).bytes
        self._lock = SharedLock(folder / NAME, closing)
        found = os.pread(self._lock.fd, 8, 0)
        if found.startswith(KIND) and found != KIND + VERSION:
            self._lock.close()
            raise BackendUnavailableError(
                f"the folder {folder} was made by another version of kvbridge: name another folder, or delete it"
            )

    @contextmanager
    def locked(self) -> Iterator[Account]:
        """Hold the lock, and know the record. Not on the endpoint's thread.

        Raises:
            TransportError: The lock cannot be had.
        """
        leftover: list[int] = []
        try:
            with self._lock.held():
                account = self._read()
                account.leftover = leftover
                yield account
        finally:
            for fd in leftover:
                os.close(fd)

    def close(self) -> None:
        """Close the file."""
        self._lock.close()

    def _read(self) -> Account:
        found = os.pread(self._lock.fd, _CHECKED.size, 0)
        if len(found) == _CHECKED.size:
            record, checksum = _CHECKED.unpack(found)
            _, boot, used, marked = _RECORD.unpack(record)
            if checksum == zlib.crc32(record) and boot == self._boot and not marked:
                return Account(self._lock.fd, boot, used)
        account = Account(self._lock.fd, self._boot, 0)
        account.write(marked=True)
        account.used = self._count()
        account.write(marked=False)
        return account
