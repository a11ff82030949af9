"""`FilesStore`: values in the files of a folder. What a file is, stands in `head`; what a folder is, in `folder`.

All work on files is done on threads, of two pools: one moves the bytes of values, the other answers questions, so that
no question waits for bytes.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kvbridge.abc import Store, Stored, Task
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, ClosedError, DuplicateKeyError, KVBridgeError, TransportError
from kvbridge.memory import spec_of
from kvbridge.threads import Pool
from kvbridge_files.folder import Folder
from kvbridge_files.head import DamagedError, Head, Sums, front_bytes, read_front, size_of
from kvbridge_files.moves import Stop, Work, host_memory, read_value, write_all, write_value
from kvbridge_files.options import FilesOptions
from kvbridge_files.place import folder_of, unusable
from kvbridge_files.room import Room
from kvbridge_files.stored import FileStored
from kvbridge_files.system import system_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import msgspec

    from kvbridge.abc import Move
    from kvbridge.abc.store import Medium
    from kvbridge.memory import Payload

logger = logging.getLogger(__name__)

ANSWERING = 2
"""Threads that answer questions: each is some tens of microseconds for a key."""

CLOSE_TIMEOUT = 1.5
"""Seconds that `close` waits for threads. What they do is heard between two slices; a disk that hangs is left alone."""

HEAD_ROOM = 256 << 10
"""Bytes that a file of any value has at most beside the value and the checksums of its pieces."""


class FilesStore(Store[FilesOptions]):
    """A file for each value: written where nobody looks, then linked to its name, as a whole."""

    name: ClassVar[str] = "files"
    medium: ClassVar[Medium] = "disk"
    Options: ClassVar[type[msgspec.Struct]] = FilesOptions

    def __init__(self, options: FilesOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'files' cannot work here: {found.reason}")
        self.counters: Counter[str] = Counter()
        """`damaged`: values that were not what was written, and are gone."""
        self._capacity = options.capacity_bytes()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._found: set[FileStored] = set()
        self._closed = self._left = False
        self._folder, self._room = self._open(options)
        self._moving = Pool("files-move", options.threads)
        self._answering = Pool("files-answer", ANSWERING)
        together = threading.Barrier(ANSWERING)  # all are there from now on, whatever is asked at one time
        for _ in range(ANSWERING):
            self._answering.run(partial(together.wait, CLOSE_TIMEOUT))

    def _open(self, options: FilesOptions) -> tuple[Folder, Room]:
        """Open the folder, and tidy up what the dead have left there."""
        try:
            root = folder_of(options)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)  # KV tells what was asked: nobody else's
            folder = Folder(root, self._closing, fsync=options.fsync)
        except (OSError, TransportError) as error:
            raise BackendUnavailableError(f"cannot keep values in {options.folder}: {error}") from error
        try:
            folder.sweep()
            evict = options.when_full == "evict"
            room = Room(
                folder,
                self._closing,
                capacity=self._capacity,
                evict=evict,
                abandoned_after=options.abandoned_after,
            )
        except BaseException as error:
            folder.close()
            if isinstance(error, OSError | TransportError):
                raise BackendUnavailableError(f"cannot keep values in {options.folder}: {error}") from error
            raise
        return folder, room

    @classmethod
    def probe(cls, options: FilesOptions) -> Probe:
        """Say whether the folder is there, or can be made. Makes nothing, never raises."""
        why = unusable(options)
        return Probe(ok=not why, reason=why or f"files in {folder_of(options)}")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits. A folder that evicts refuses nothing, so it claims no capacity."""
        return Capabilities(
            buffer=True,
            takes=True,
            shared=True,
            tensors=True,
            pages=True,
            cross_process=True,
            detaches=True,
            max_value_bytes=self._capacity - self._capacity // (1 << 15) - HEAD_ROOM,
            capacity_bytes=0 if self.options.when_full == "evict" else self._capacity,
        )

    def put(self, key: str, header: bytes, payload: Payload) -> Move:
        """Write a hidden file, then link it to its name: the link decides between two who put the same key."""
        head = Head(key, header, spec_of(payload).nbytes)
        memory = host_memory(payload)
        stop = Stop(f"putting {key!r}", self._closing)
        return Work(self._moving, stop, lambda: self._put(head, memory, stop))

    def find(self, key: str, *, take: bool) -> Task[Stored | None]:
        """Open a file. To take it, rename it: of many who try, one can."""
        return self._answering.run(lambda: self._find(key, take=take))

    def headers(self, keys: Sequence[str]) -> Task[list[bytes | None]]:
        """Read the beginnings of files."""
        stop = Stop("looking for values", self._closing)
        return Work(self._answering, stop, lambda: self._headers(keys, stop))

    def remove(self, keys: Sequence[str]) -> Task[None]:
        """Remove files. Who has one open may still read it."""
        return self._answering.run(lambda: self._remove(keys))

    def close(self) -> None:
        """End what is under way at its next slice, and close every file. Values stay. Idempotent."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT
        self._closing.set()
        ended = [pool.close(max(0.1, deadline - time.monotonic())) for pool in (self._moving, self._answering)]
        with self._lock:
            found, self._found = self._found, set()
            self._left = True
        for stored in found:
            stored.shut()
        if found:
            self._tidy(self._folder.sweep)
        if all(ended):  # a thread that hangs in a call of the system's keeps what it uses
            self._room.close()
            self._folder.close()
        else:
            logger.warning("a call on %s does not end: its thread is left behind", self.options.folder)

    # -- for what was found -----------------------------------------------------------------------------------

    def start_read(self, stored: FileStored, out: Payload, skip: int) -> Move:
        """Start to read a value that was found."""
        memory = host_memory(out)
        stop = Stop("reading a value", self._closing)
        return Work(self._moving, stop, lambda: self._read(stored, memory, skip, stop))

    def let_go(self, stored: FileStored) -> None:
        """Let go of a value that was found."""
        try:
            self._answering.run(lambda: self._give_up(stored))
        except ClosedError:
            self._give_up(stored)

    # -- on the pools' threads --------------------------------------------------------------------------------

    def _put(self, head: Head, memory: Payload, stop: Stop) -> None:
        path = self._folder.path_of(head.key)
        with system_errors("putting a value"):
            if path.exists():
                raise DuplicateKeyError(f"the key {head.key!r} has a value: use a new key")
            size = size_of(head)
            part = self._room.reserve(size)
            try:
                sums = Sums()
                write_value(part.fd, size - head.nbytes, memory, sums, stop)
                write_all(part.fd, memoryview(front_bytes(head, sums.sums)), 0)
                stop.check()
                self._folder.publish(part, path)
            except BaseException:
                self._tidy(partial(self._folder.abandon, part))
                raise

    def _find(self, key: str, *, take: bool) -> Stored | None:
        path = self._folder.path_of(key)
        with system_errors("finding a value"):
            if take:
                part = self._folder.take(path)
                if part is None:
                    return None
                path, fd = part
            else:
                opened = self._folder.open(path)
                if opened is None:
                    return None
                fd = opened
            return self._stored(key, path, fd, taken=take)

    def _stored(self, key: str, path: Path, fd: int, *, taken: bool) -> Stored:
        try:
            front = read_front(fd, key)
        except BaseException as error:
            if isinstance(error, DamagedError) and not taken:
                self._damaged(path, fd, error)
            os.close(fd)
            if taken:
                self._tidy(partial(self._folder.free, path))
            raise
        stored = FileStored(self, path, fd, front, taken=taken)
        with self._lock:
            left = self._left
            if not left:
                self._found.add(stored)
        if left:
            stored.shut()
        return stored

    def _headers(self, keys: Sequence[str], stop: Stop) -> list[bytes | None]:
        found: list[bytes | None] = []
        for key in keys:
            stop.check()
            with system_errors("looking for values"):
                found.append(self._header(key))
        return found

    def _header(self, key: str) -> bytes | None:
        """Return a value's header. A file that is damaged is a miss: who asks for many keys hears of the others."""
        path = self._folder.path_of(key)
        fd = self._folder.look(path)
        if fd is None:
            return None
        try:
            return read_front(fd, key).head.header
        except DamagedError as error:
            self._damaged(path, fd, error)
            return None
        finally:
            os.close(fd)

    def _remove(self, keys: Sequence[str]) -> None:
        with system_errors("removing values"):
            self._folder.remove([self._folder.path_of(key) for key in keys])

    def _read(self, stored: FileStored, out: Payload, skip: int, stop: Stop) -> None:
        with stored.used() as fd, system_errors("reading a value"):
            try:
                read_value(fd, stored.front, out, skip, stop)
            except DamagedError as error:
                self._damaged(stored.path, fd, error)
                raise
            except OSError as error:
                if error.errno == errno.EIO:  # the disk cannot give it back, and will not be able to
                    self._damaged(stored.path, fd, error)
                raise

    def _damaged(self, path: Path, fd: int, error: Exception) -> None:
        """Give up a value that is not what was written, so that its key is a miss from now on."""
        logger.warning("a value is damaged, and given up: %s", error)
        with self._lock:
            self.counters["damaged"] += 1
        self._tidy(partial(self._folder.remove_if_at, path, fd))

    def _give_up(self, stored: FileStored) -> None:
        """Close a value, and give its bytes back if nobody finds it any more."""
        with self._lock:
            self._found.discard(stored)
        gone = stored.taken or not stored.is_there(self._folder)
        stored.shut()
        if stored.taken:
            self._tidy(partial(self._folder.free, stored.path))
        elif gone:
            self._tidy(self._folder.sweep)

    def _tidy(self, call: Callable[[], object]) -> None:
        """Do what others do in time if it fails here: whoever is short of room, or opens the folder."""
        try:
            call()
        except (OSError, KVBridgeError) as error:
            if not self._closed:
                logger.warning("could not tidy up in %s: %s", self.options.folder, error)
