"""`Segment`: shared memory without a name. No file in /dev/shm, nothing left behind by `kill -9`.

The memory is a memfd: it lives as long as some process has it open or mapped. A peer opens it through
`/proc/<pid>/fd/<n>` of its owner, which the kernel allows for processes of one user in one PID namespace.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvbridge.errors import PeerLostError, TransportError
from kvbridge.machine import host_identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = 4096
"""Bytes at the start of a segment: its nonce, by which a peer knows that it opened the right memory."""

NONCE = 16
"""Bytes of a nonce."""


class Card(msgspec.Struct, frozen=True):
    """What a peer needs to open a segment.

    Attributes:
        pid: Process that owns it.
        fd: File descriptor in that process.
        nbytes: Size.
        nonce: First bytes of the segment.
        host: Boot id and PID namespace: two processes see each other's `/proc` only if they are equal.
    """

    pid: int
    fd: int
    nbytes: int
    nonce: bytes
    host: str


class Segment:
    """Shared memory that this process owns.

    Args:
        nbytes: Usable bytes. Memory is taken by the kernel when a page is first touched.

    Raises:
        TransportError: The kernel refuses; the message has its reason.
    """

    def __init__(self, nbytes: int) -> None:
        total = HEADER + nbytes
        self._fd = -1
        try:
            self._fd = os.memfd_create("kvbridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self._fd, total)
            # Sealed against shrinking: a mapped peer can never be hit by SIGBUS.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            view = np.frombuffer(mmap.mmap(self._fd, total), dtype=np.uint8)
        except OSError as error:
            self.close()
            raise TransportError(f"cannot create {total} bytes of shared memory: {error}") from error
        nonce = secrets.token_bytes(NONCE)
        view[:NONCE] = np.frombuffer(nonce, dtype=np.uint8)
        self.memory: NDArray[np.uint8] = view[HEADER:]
        self.card = Card(os.getpid(), self._fd, total, nonce, host_identity()[0])

    def close(self) -> None:
        """Close the descriptor. Idempotent. The mapping goes with the last view of `memory`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self.memory = np.empty(0, dtype=np.uint8)


def open_peer(card: Card) -> NDArray[np.uint8]:
    """Map a peer's segment, read-only. The mapping goes with the last view of the array.

    Raises:
        PeerLostError: The peer is gone.
        TransportError: It cannot be opened; the message says why.
    """
    if card.host != host_identity()[0]:
        raise TransportError(
            "the peer is on another host or in another PID namespace: the cpu backend shares memory within one; "
            "choose a network backend"
        )
    try:
        view = _map(f"/proc/{card.pid}/fd/{card.fd}", card)
    except FileNotFoundError as error:
        raise PeerLostError(f"the peer's process {card.pid} is gone, or closed its memory") from error
    except (OSError, ValueError) as error:
        raise TransportError(
            f"cannot open the memory of process {card.pid} ({error}): run both engines as one user"
        ) from error
    if view[:NONCE].tobytes() != card.nonce:
        raise PeerLostError(f"process {card.pid} is another one now: its memory has another mark")
    return view[HEADER:]


def _map(path: str, card: Card) -> NDArray[np.uint8]:
    # A card comes from a peer and may name anything: opening must not block, and only memory files are mapped.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != card.nbytes or found.st_size <= HEADER:
            raise PeerLostError(
                f"process {card.pid} is another one now: its file {card.fd} is not the memory announced"
            )
        return np.frombuffer(mmap.mmap(fd, found.st_size, prot=mmap.PROT_READ), dtype=np.uint8)
    finally:
        os.close(fd)
