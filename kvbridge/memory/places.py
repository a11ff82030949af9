"""`Place`: where a payload is, as one peer's one-sided library tells another. It comes from a peer: all is checked.

For transports whose library reads or writes a peer's memory by address.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from kvbridge.errors import CapacityError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_BYTES = 240 << 10
"""Bytes of an encoded place: what one control message carries, with room for the rest of it."""

MAX_BLOCKS = 4 << 20
"""Block ids that one place may name; regions that share them count once. A list of runs is short whatever it says."""

ROW = 40
"""Bytes of a row of a table: five 64-bit numbers."""

END = 1 << 64
"""End of what an address can name."""

Count = Annotated[int, Meta(ge=0, le=1 << 48)]
Index = Annotated[int, Meta(ge=0, le=65536)]
Ids = Annotated[bytes, Meta(min_length=1)]


class Place(msgspec.Struct, frozen=True):
    """Where a payload is.

    Attributes:
        owner: Name of the incarnation whose memory it is.
        kind: Kind of memory.
        digest: Names `metadata` and `rows`, see `digest_of`: a peer that knows them does not load them again.
        metadata: What a peer's library needs to reach the memory.
        rows: The owner's table of blocks. For each region five 64-bit numbers: address, bytes of a block, device, bytes
            from one block to the next, number of blocks.
        which: Row of each region.
        ids: Block ids of each region, see `encode_ids`.
        skip: First blocks of every region of the value that are not wanted.
    """

    owner: Annotated[str, Meta(max_length=64)]
    kind: Literal["DRAM", "VRAM"]
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]
    metadata: bytes
    rows: bytes
    which: Annotated[tuple[Index, ...], Meta(max_length=65536)]
    ids: tuple[tuple[Index, ...], tuple[Ids, ...]]
    skip: Count

    def encode(self) -> bytes:
        """Return it as bytes.

        Raises:
            CapacityError: It is too long for one message.
        """
        named = sum(_count(array) for array in self.ids[1])
        if named > MAX_BLOCKS:
            raise CapacityError(f"the pages are {named} blocks, at most {MAX_BLOCKS} can be moved at a time")
        found = msgspec.msgpack.encode(self)
        if len(found) > MAX_BYTES:
            raise CapacityError(
                f"the description of the pages has {len(found)} bytes, at most {MAX_BYTES} can be sent: hand over "
                "fewer or larger blocks at a time"
            )
        return found

    def table(self) -> NDArray[np.uint64]:
        """Return the rows, shape `(n, 5)`."""
        return np.frombuffer(self.rows, dtype=np.uint64).reshape(-1, 5)

    def less(self, skip: int) -> Place:
        """Leave out the first blocks of every region."""
        uses, arrays = self.ids
        cut = [_encode(_decode(array)[skip:]) for array in arrays]
        return msgspec.structs.replace(self, ids=(uses, tuple(cut)))

    def blocks(self) -> list[NDArray[np.int64]]:
        """Return the block ids of each region."""
        uses, arrays = self.ids
        known = [_decode(array) for array in arrays]
        return [known[index] for index in uses]


def digest_of(metadata: bytes, rows: bytes) -> bytes:
    """Name a table and what is needed to reach it."""
    return hashlib.blake2b(metadata + rows, digest_size=16).digest()


def encode_ids(ids: Sequence[NDArray[np.int64]]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """Encode arrays of ids: each one once, as runs where that is shorter.

    Returns:
        For each region the index of its array; the arrays: a byte that says how, then 32-bit numbers.
    """
    seen: dict[int, int] = {}
    arrays: list[bytes] = []
    uses = []
    for array in ids:
        if id(array) not in seen:
            seen[id(array)] = len(arrays)
            arrays.append(_encode(array))
        uses.append(seen[id(array)])
    return tuple(uses), tuple(arrays)


def _encode(array: NDArray[np.int64]) -> bytes:
    breaks = np.flatnonzero(np.diff(array) != 1) + 1
    if 2 * (len(breaks) + 1) < len(array):
        starts = np.concatenate(([0], breaks))
        lengths = np.diff(np.concatenate((starts, [len(array)])))
        return b"r" + np.stack([array[starts], lengths], axis=1).astype(np.uint32).tobytes()
    return b"i" + array.astype(np.uint32).tobytes()


def _decode(array: bytes) -> NDArray[np.int64]:
    numbers = np.frombuffer(array, dtype=np.uint32, offset=1).astype(np.int64)
    if array[:1] == b"i":
        return numbers
    starts, lengths = numbers[0::2], numbers[1::2]
    before = np.cumsum(lengths) - lengths
    found: NDArray[np.int64] = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    return found


def _count(array: bytes) -> int:
    """Return how many blocks an encoded array names."""
    numbers = np.frombuffer(array, dtype=np.uint32, offset=1)
    return len(numbers) if array[:1] == b"i" else int(numbers[1::2].sum(dtype=np.uint64))


_decoder = msgspec.msgpack.Decoder(Place)


def decode_place(descriptor: bytes, owner: str) -> Place:
    """Read a peer's description of a payload.

    Args:
        descriptor: What the peer sent.
        owner: Name of the peer's incarnation, from its card.

    Raises:
        ProtocolError: It is none, or contradicts itself.
    """
    try:
        place = _decoder.decode(descriptor)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the peer described memory in a way unknown here: {error}") from error
    problem = _wrong_table(place, owner) or _wrong_ids(place)
    if problem:
        raise ProtocolError(f"the peer's description of its memory makes no sense: {problem}")
    return place


def _wrong_table(place: Place, owner: str) -> str:
    """Say what is wrong with a table. The library takes some tables that leave the memory, or wrap around its end."""
    if place.owner != owner:
        return f"it names the owner {place.owner!r}, the peer is {owner!r}"
    if place.digest != digest_of(place.metadata, place.rows):
        return "its bytes were changed on their way"
    if len(place.rows) % ROW or any(row >= len(place.rows) // ROW for row in place.which):
        return "its table is cut, or does not have a row that it names"
    blocks = 0
    for address, nbytes, device, stride, count in place.table().tolist():
        blocks += count
        if not nbytes or not count or stride < nbytes or address + (count - 1) * stride + nbytes > END:
            return f"its table has {count} blocks of {nbytes} bytes, {stride} apart from {address:#x} on"
        if device > 1 << 16 or blocks >= 1 << 31:
            return f"its table reaches to block {blocks} and device {device}"
    return ""


def _wrong_ids(place: Place) -> str:
    uses, arrays = place.ids
    if len(uses) != len(place.which) or any(index >= len(arrays) for index in uses):
        return "it does not name blocks for each of its regions"
    if any(len(array) % 4 != 1 or array[:1] not in (b"i", b"r") for array in arrays):
        return "a list of blocks is cut"
    if any(array[:1] == b"r" and len(array) % 8 != 1 for array in arrays):
        return "a list of runs is cut"
    named = sum(_count(array) for array in arrays)
    return f"it names {named} blocks, at most {MAX_BLOCKS} can be moved at a time" if named > MAX_BLOCKS else ""
