"""What a value's file is: a head, checksums, and the packed bytes.

    kind of file   8 bytes
    size of head   4 bytes, little endian like all numbers here
    checksum       4 bytes: of the size, the head and the checksums of the pieces
    head           msgpack: see `Head`
    checksums      4 bytes for each piece of `PIECE_BYTES` of the value
    value          packed: region after region, block after block

The checksum is CRC-32, the quickest in the standard library: it finds what disks and crashes do, not what an attacker
does. Who may write to the folder is trusted.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvbridge.errors import TransportError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KIND = b"KVBVALU1"

PIECE_BYTES = 256 << 10
"""Bytes under one checksum. What is read of a value is read in whole pieces: small ones waste less where some is
skipped. Large ones have fewer checksums: 4 bytes in 262,144."""

FIRST_READ = 4096
"""Bytes that are read of a file to have its head: enough for a value of 200 MiB with a header of 500 bytes."""

MOST_HEAD = 1 << 20
"""Bytes of a head at most: a header of 64 KiB, a key of 256 characters, and some."""

_FRONT = struct.Struct("<8sII")


class DamagedError(TransportError):
    """A file is not what was written: cut short, or with other bytes."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What a file says about its value.

    Attributes:
        key: The key. The file's name is a hash of it.
        header: The core's.
        nbytes: Bytes of the value.
    """

    key: str
    header: bytes
    nbytes: int


_decoder = msgspec.msgpack.Decoder(Head)


class Front(NamedTuple):
    """The beginning of a file: its head, the checksums of its pieces, and where its value begins."""

    head: Head
    sums: tuple[int, ...]
    start: int


class Sums:
    """Checksums of a value's pieces, while it goes by."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self._room = 0

    def add(self, packed: NDArray[np.uint8]) -> None:
        """Count in the next bytes of the value, however many."""
        view = packed.data
        while view.nbytes:
            if not self._room:
                self.sums.append(0)
                self._room = PIECE_BYTES
            part = view[: self._room]
            self.sums[-1] = zlib.crc32(part, self.sums[-1])
            self._room -= part.nbytes
            view = view[part.nbytes :]


def size_of(head: Head) -> int:
    """Return the bytes of a value's whole file."""
    return _start(len(msgspec.msgpack.encode(head)), head.nbytes) + head.nbytes


def front_bytes(head: Head, sums: list[int]) -> bytes:
    """Return a file's beginning. What follows are the bytes of the value."""
    encoded = msgspec.msgpack.encode(head)
    rest = encoded + struct.pack(f"<{len(sums)}I", *sums)
    return _FRONT.pack(KIND, len(encoded), _checksum(len(encoded), rest)) + rest


def read_front(fd: int, key: str) -> Front:
    """Read a file's beginning, and see whether the file is whole as far as that can be seen without the value.

    Raises:
        DamagedError: It is not.
        OSError: It cannot be read.
    """
    found = os.pread(fd, FIRST_READ, 0)
    if len(found) < _FRONT.size:
        raise DamagedError(f"the file of {key!r} has {len(found)} bytes")
    kind, size, checksum = _FRONT.unpack_from(found)
    if kind != KIND or size > MOST_HEAD:
        raise DamagedError(f"the file of {key!r} begins with {found[:12]!r}, which no value's does")
    head = _decode(_read_on(fd, found, _FRONT.size + size)[_FRONT.size :][:size], key)
    start = _start(size, head.nbytes)
    length = os.fstat(fd).st_size
    if length != start + head.nbytes:
        raise DamagedError(f"the file of {key!r} has {length} bytes, expected {start + head.nbytes}")
    rest = _read_on(fd, found, start)[_FRONT.size : start]
    if _checksum(size, rest) != checksum or head.key != key:
        raise DamagedError(f"the beginning of the file of {key!r} is not what was written")
    return Front(head, struct.unpack(f"<{(len(rest) - size) // 4}I", rest[size:]), start)


def _start(head_bytes: int, nbytes: int) -> int:
    return _FRONT.size + head_bytes + 4 * -(-nbytes // PIECE_BYTES)


def _checksum(size: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(size.to_bytes(4, "little")))


def _read_on(fd: int, found: bytes, wanted: int) -> bytes:
    return found if len(found) >= wanted else found + os.pread(fd, wanted - len(found), len(found))


def _decode(encoded: bytes, key: str) -> Head:
    try:
        head = _decoder.decode(encoded)
    except msgspec.DecodeError as error:
        raise DamagedError(f"the head of the file of {key!r} is none: {error}") from error
    if head.nbytes < 0:
        raise DamagedError(f"the head of the file of {key!r} says that its value has {head.nbytes} bytes")
    return head
