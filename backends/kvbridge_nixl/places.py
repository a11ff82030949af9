"""`Place`: where a payload is, as one peer tells another. It comes from a peer: everything in it is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from kvbridge.errors import CapacityError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_BYTES = 240 << 10
"""Bytes of an encoded place: what one control message carries, with room for the rest of it."""

ROW = 40
"""Bytes of a row of a table: five 64-bit numbers."""

Count = Annotated[int, Meta(ge=0, le=1 << 48)]


class Place(msgspec.Struct, frozen=True):
    """Where a payload is.

    Attributes:
        agent: Name of the agent whose memory it is.
        kind: Kind of memory.
        digest: Names `metadata` and `rows`: a peer that knows them does not load them again.
        metadata: What a peer's library needs to reach the memory.
        rows: The agent's table of blocks.
        which: Row of each region.
        ids: Block ids of each region, see `encode_ids`.
        skip: First blocks of every region of the value that are not wanted.
    """

    agent: Annotated[str, Meta(max_length=64)]
    kind: Literal["DRAM", "VRAM"]
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]
    metadata: bytes
    rows: bytes
    which: Annotated[tuple[Count, ...], Meta(max_length=65536)]
    ids: tuple[tuple[int, ...], tuple[bytes, ...]]
    skip: Count

    def encode(self) -> bytes:
        """Return it as bytes.

        Raises:
            CapacityError: It is too long for one message.
        """
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
        return msgspec.structs.replace(self, ids=encode_ids([ids[skip:] for ids in self.blocks()]))

    def blocks(self) -> list[NDArray[np.int64]]:
        """Return the block ids of each region."""
        uses, arrays = self.ids
        known = [_decode(array) for array in arrays]
        return [known[index] for index in uses]


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
    numbers = np.frombuffer(array[1:], dtype=np.uint32).astype(np.int64)
    if array[:1] == b"i":
        return numbers
    runs = numbers.reshape(-1, 2)
    if int(runs[:, 1].sum()) > 1 << 24:
        raise ProtocolError("a peer named more than 16 million blocks")
    return np.concatenate([np.arange(start, start + length) for start, length in runs]) if len(runs) else numbers


_decoder = msgspec.msgpack.Decoder(Place)


def decode_place(descriptor: bytes, agent: str) -> Place:
    """Read a peer's description of a payload.

    Args:
        descriptor: What the peer sent.
        agent: Name of the peer's agent, from its card.

    Raises:
        ProtocolError: It is none, or contradicts itself.
    """
    try:
        place = _decoder.decode(descriptor)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the peer described memory in a way unknown here: {error}") from error
    uses, arrays = place.ids
    problem: Any = None
    if place.agent != agent:
        problem = f"it names the agent {place.agent!r}, the peer's is {agent!r}"
    elif len(place.rows) % ROW or any(row >= len(place.rows) // ROW for row in place.which):
        problem = "its table is cut, or does not have a row that it names"
    elif len(uses) != len(place.which) or any(not 0 <= index < len(arrays) for index in uses):
        problem = "it does not name blocks for each of its regions"
    elif any(len(array) % 4 != 1 or array[:1] not in (b"i", b"r") for array in arrays):
        problem = "a list of blocks is cut"
    elif any(array[:1] == b"r" and len(array) % 8 != 1 for array in arrays):
        problem = "a list of runs is cut"
    if problem is not None:
        raise ProtocolError(f"the peer's description of its memory makes no sense: {problem}")
    return place
