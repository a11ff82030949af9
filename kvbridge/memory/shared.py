"""`SharedMemory`: memory that processes of one user on one host have in common, found by a name that no file has.

The memory is a memfd. Who comes first makes it and listens on a socket in Linux's abstract namespace, whose name goes
when its process goes; the others connect and are handed the descriptor. When the holder of the name dies, another
participant takes the name over, and the memory lives on as long as one of them does. So there is nothing to clean up:
not after `kill -9`, and not before a second start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.errors import TransportError
from kvbridge.machine import host_identity
from kvbridge.threads import Loop

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANSWER_TIMEOUT = 5.0
"""Seconds within which the holder of a name hands the memory out."""

JOIN_TRIES = 50
"""Tries to join, 0.1 s apart: the holder may be going at this moment."""

LOOK = 1.0
"""Seconds between two looks of the thread at whether it is to end."""

CREDENTIALS = struct.Struct("3i")
"""What the kernel says of who is at the other end: process, user, group."""


class SharedMemory:
    """Memory that all processes have in common that give the same name and size.

    Args:
        name: Any text. Users, hosts and PID namespaces are kept apart by themselves.
        nbytes: Size. The kernel takes memory when a page is first touched. It is zero at first.

    Raises:
        TransportError: The kernel refuses, or who has the name does not answer as expected.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        whole = f"{os.getuid()} {host_identity()[0]} {nbytes} {name}"
        self._address = "\0kvbridge-" + hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
        self._name = name
        self._nbytes = nbytes
        self._fd = -1
        self._listener: socket.socket | None = None
        self._holder: socket.socket | None = None
        self._guests: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        try:
            self._join()
            self.memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self._fd, nbytes), dtype=np.uint8)
        except OSError as error:
            self._end()
            raise TransportError(f"cannot share {nbytes} bytes under the name {name!r}: {error}") from error
        except BaseException:
            self._end()
            raise
        self._loop = Loop(f"share-{self._address[-6:]}", self._step, lambda: None, self._end)

    @property
    def held(self) -> bool:
        """Whether this process has the name, and hands the memory out."""
        return self._listener is not None

    def reopened(self) -> int:
        """Open the memory once more, for locks: a descriptor of its own, which the caller closes."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of it. Idempotent, bounded. The mapping goes with the last view of `memory`."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._loop.stop(2 * LOOK)
        self.memory = np.empty(0, dtype=np.uint8)

    # -- inside -----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        for _ in range(JOIN_TRIES):
            if self._connect():
                return
            if self._bind():
                self._fd = os.memfd_create("kvbridge-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.ftruncate(self._fd, self._nbytes)
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                return
            time.sleep(0.1)
        raise TransportError(f"the name {self._name!r} is taken, and nobody answers there")

    def _connect(self) -> bool:
        """Ask who has the name for the memory. False if nobody has it."""
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asking.settimeout(ANSWER_TIMEOUT)
        try:
            asking.connect(self._address)
            self._check_user(asking)
            said, fds, _, _ = socket.recv_fds(asking, 1, 1)
        except (ConnectionError, TimeoutError):
            asking.close()
            return False
        if not said or not fds:
            asking.close()
            return False
        if self._fd >= 0 and not os.path.sameopenfile(self._fd, fds[0]):
            os.close(fds[0])
            asking.close()
            raise TransportError(f"another process made new memory under the name {self._name!r}: this one goes alone")
        if self._fd >= 0:
            os.close(fds[0])
        else:
            self._fd = fds[0]
        found = os.fstat(self._fd)
        if found.st_size != self._nbytes or not fcntl.fcntl(self._fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            asking.close()
            raise TransportError(f"what was handed out under the name {self._name!r} is not the memory it stands for")
        self._holder = asking
        return True

    def _bind(self) -> bool:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._address)
        except OSError:
            listener.close()
            return False
        listener.listen(64)
        self._listener = listener
        return True

    def _check_user(self, other: socket.socket) -> None:
        _, user, _ = CREDENTIALS.unpack(other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if user != os.getuid():
            raise ConnectionError(f"the user {user} is at the other end")

    def _step(self) -> None:
        if self._listener is not None:
            self._hand_out(self._listener)
        elif self._holder is not None:
            self._watch(self._holder)
        else:
            select.select([self._woken], [], [], LOOK)

    def _hand_out(self, listener: socket.socket) -> None:
        ready, _, _ = select.select([listener, self._woken, *self._guests], [], [], LOOK)
        for one in ready:
            if one is listener:
                guest, _ = listener.accept()
                with contextlib.suppress(OSError):
                    guest.settimeout(ANSWER_TIMEOUT)
                    self._check_user(guest)
                    socket.send_fds(guest, [b"m"], [self._fd])
                    self._guests.append(guest)
            elif one is not self._woken:  # a guest never speaks: it is gone
                self._guests.remove(one)
                one.close()

    def _watch(self, holder: socket.socket) -> None:
        """Wait until the holder of the name is gone, then take the name, or find out who did."""
        ready, _, _ = select.select([holder, self._woken], [], [], LOOK)
        if holder not in ready:
            return
        holder.close()
        self._holder = None
        for _ in range(JOIN_TRIES):
            try:
                if self._bind() or self._connect():
                    return
            except (OSError, TransportError):
                return  # somebody came in between and made new memory: this one is shared with nobody new
            time.sleep(0.1)

    def _end(self) -> None:
        for one in (self._wake, self._woken, self._listener, self._holder, *self._guests):
            if one is not None:
                one.close()
        self._listener = self._holder = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
