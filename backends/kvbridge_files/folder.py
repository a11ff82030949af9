"""`Folder`: the files of a store, and what makes each change of them whole, counted, and safe from a process that dies.

    ledger          how many bytes all files have; see `ledger`
    making-room     the lock of who is making room; see `room`
    values/ab/...   a value each; the name is a hash of its key
    hidden/...      what nobody finds: values that are being written, were taken, or were removed while they were read

Who needs a file in `hidden` holds a lock on it: its writer an exclusive one, readers shared ones. One that nobody holds
is swept: its process is dead, or has done with it. Names in `hidden` are made, and any name is removed, only with the
ledger's lock held, so that a sweep never meets a file between its name and its lock, and every byte leaves the ledger
with its file. A value appears without that lock, by a link, which fails where there is one.

All methods are for the pool's threads, and raise `OSError` where the system fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvbridge.errors import DuplicateKeyError
from kvbridge_files.census import count_room, oldest, room_of
from kvbridge_files.ledger import Ledger
from kvbridge_files.locks import lock, share
from kvbridge_files.system import sync_folder

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from kvbridge_files.census import Used
    from kvbridge_files.ledger import Account

FAN_OUT = 2
"""Hex digits of a name that are its subfolder's: 256 of these keep folders short with a million values."""

TRIES = 5
"""Looks for a value that is replaced by others while it is being opened."""


class Part(NamedTuple):
    """A file that is being written: its name in `hidden`, and its descriptor, which holds its lock."""

    path: Path
    fd: int


class Folder:
    """The files of a store.

    Args:
        root: The folder. It is there.
        closing: Set when the store is being closed.
        fsync: Whether what is put, and its name, are to be on the disk.
    """

    def __init__(self, root: Path, closing: threading.Event, *, fsync: bool) -> None:
        self.root = root
        self._fsync = fsync
        self._values, self._hidden = root / "values", root / "hidden"
        self._ledger = Ledger(root, closing, self._count)
        try:
            for folder in (self._values, self._hidden):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._try_link()
        except BaseException:
            self._ledger.close()
            raise

    def close(self) -> None:
        """Close what is open. Not while a method runs."""
        self._ledger.close()

    def path_of(self, key: str) -> Path:
        """Return where a key's value is, if there is one."""
        name = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
        return Path(f"{self._values}/{name[:FAN_OUT]}/{name[FAN_OUT:]}")  # at once: three times as fast as by parts

    # -- one value --------------------------------------------------------------------------------------------

    def reserve(self, nbytes: int, capacity: int) -> Part | None:
        """Make a file to be written, and count it in. None if it would be more than the capacity."""
        with self._ledger.locked() as account:
            room = room_of(nbytes)
            if account.used + room > capacity:
                return None
            with account.changing():
                path = self._new_name()
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(fd, nbytes)  # its length is what it counts for, whoever counts
                except BaseException:
                    os.close(fd)
                    path.unlink()
                    raise
                account.used += room
            return Part(path, fd)

    def publish(self, part: Part, path: Path) -> None:
        """Make a file that was written the value at a path. `abandon` it where this raises.

        Raises:
            DuplicateKeyError: There is a value.
        """
        os.utime(part.fd, ns=(now := time.time_ns(), now))
        if self._fsync:
            os.fsync(part.fd)
        try:
            try:
                os.link(part.path, path)
            except FileNotFoundError:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                os.link(part.path, path)
        except FileExistsError:
            raise DuplicateKeyError("another value came under this key meanwhile: use a new key") from None
        with contextlib.suppress(OSError):  # a second name is no second file: a sweep removes it
            part.path.unlink()
        if self._fsync:
            try:
                sync_folder(path.parent)
                sync_folder(self._values)
            except OSError:
                self.remove([path])
                raise
        os.close(part.fd)

    def abandon(self, part: Part) -> None:
        """Give up a file that was not published."""
        os.close(part.fd)
        self.free(part.path)

    def open(self, path: Path) -> int | None:
        """Open a value for reading, and mark it as used. None if there is none.

        Returns:
            A descriptor. As long as it is open the file stays, and counts.
        """
        for _ in range(TRIES):
            fd = self.look(path)
            if fd is None:
                return None
            if not share(fd):  # it is being given up right now, or its writer stands still
                os.close(fd)
                return None
            if os.fstat(fd).st_nlink:
                with contextlib.suppress(PermissionError):  # another user's
                    os.utime(fd, ns=(now := time.time_ns(), now))
                return fd
            os.close(fd)
        return None

    def look(self, path: Path) -> int | None:
        """Open a value for a look at its beginning, which neither keeps it nor counts as use. None if there is none."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None

    def take(self, path: Path) -> Part | None:
        """Take a value away, so that nobody else finds it. None if there is none, or another caller took it.

        Returns:
            Its new name, to be freed once it is closed, and a descriptor for reading.
        """
        with self._ledger.locked():
            fd = self.open(path)
            if fd is None:
                return None
            hidden = self._new_name()
            try:
                path.rename(hidden)
            except FileNotFoundError:
                os.close(fd)
                return None
            return Part(hidden, fd)

    def is_at(self, path: Path, fd: int) -> bool:
        """Whether an open file is still the value at a path."""
        try:
            there, found = path.stat(), os.fstat(fd)
        except FileNotFoundError:
            return False
        return (there.st_ino, there.st_dev) == (found.st_ino, found.st_dev)

    # -- giving up --------------------------------------------------------------------------------------------

    def remove(self, paths: Sequence[Path]) -> None:
        """Give up values. Those that are being read stay, and count, until they are not."""
        with self._ledger.locked() as account:
            there = [path for path in paths if path.exists()]
            if there:
                with account.changing():
                    for path in there:
                        self._remove(path, account)

    def free(self, hidden: Path) -> None:
        """Give up a hidden file, if nobody holds it."""
        with self._ledger.locked() as account, account.changing():
            self._free(hidden, account)

    def remove_if_at(self, path: Path, fd: int) -> bool:
        """Give up the value at a path if it is this open file. Whether it was."""
        with self._ledger.locked() as account:
            if not self.is_at(path, fd):
                return False
            with account.changing():
                self._remove(path, account)
            return True

    def sweep(self) -> None:
        """Give up every hidden file that nobody holds."""
        with self._ledger.locked() as account:
            there = list(self._hidden.iterdir())
            if there:
                with account.changing():
                    for hidden in there:
                        self._free(hidden, account)

    def evict(self, victims: Iterator[Used], needed: int, capacity: int) -> tuple[int, bool]:
        """Give up values, one after the other, until there is room. Those that are or were used meanwhile stay.

        Args:
            victims: The values, and when they were last used. No more are drawn than have to go.
            needed: Bytes that there is to be room for.
            capacity: The cap in bytes.

        Returns:
            How many were given up, and whether there is room.
        """
        count = 0
        with self._ledger.locked() as account, account.changing():
            while account.used + needed > capacity and (victim := next(victims, None)) is not None:
                count += self._evict(victim, account)
            return count, account.used + needed <= capacity

    # -- looking around ---------------------------------------------------------------------------------------

    def used(self) -> int:
        """Return the bytes that all files have."""
        with self._ledger.locked() as account:
            return account.used

    def oldest(self, count: int) -> list[Used]:
        """Return the values that were not used for longest, those first. This looks at every file."""
        return oldest(self._values, count)

    def _count(self) -> int:
        for folder in (self._hidden, self._values):
            folder.mkdir(mode=0o700, exist_ok=True)
        return count_room(self._values, self._hidden)

    # -- with the ledger's lock held --------------------------------------------------------------------------

    def _remove(self, path: Path, account: Account) -> None:
        hidden = self._new_name()
        with contextlib.suppress(FileNotFoundError):
            path.rename(hidden)
            self._free(hidden, account)

    def _free(self, hidden: Path, account: Account) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(hidden, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            account.leftover.append(fd)
            if lock(fd, fcntl.LOCK_EX):
                self._unlink(hidden, fd, account)

    def _evict(self, victim: Used, account: Account) -> int:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(victim.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            account.leftover.append(fd)
            if lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_mtime_ns == victim.when:
                self._unlink(victim.path, fd, account)
                return 1
        return 0

    def _unlink(self, path: Path, fd: int, account: Account) -> None:
        """Remove a name. With the last one of a file its bytes are given back."""
        found = os.fstat(fd)
        path.unlink()
        if found.st_nlink == 1:  # who died between the link to a value and the end of its hidden name left two
            account.used -= room_of(found.st_size)

    def _new_name(self) -> Path:
        return self._hidden / secrets.token_hex(16)

    def _try_link(self) -> None:
        """Find out whether the file system can link: without that a key could get two values."""
        name = self._new_name()
        with self._ledger.locked():
            os.link(self.root / "ledger", name)
            name.unlink()
