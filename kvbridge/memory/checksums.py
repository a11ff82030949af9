"""A checksum of each block of a payload, computed in bounded slices.

The hash is XXH3 of the library `xxhash`, cut to 32 bits: it finds damage, not malice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.errors import ConfigError
from kvbridge.memory.pages import Pages
from kvbridge.memory.tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.memory.payload import Payload

NAME = "xxh3-32"
"""Which checksum it is, for the check of two engines against each other."""

SUM_BYTES = 4
"""Bytes of one checksum."""


def new_hash() -> Any:
    """Make the library's hash object.

    Raises:
        ConfigError: The library is missing.
    """
    try:
        import xxhash  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("checksums need the package xxhash: pip install 'kvbridge[checksum]'") from error
    return xxhash.xxh3_64()


def block_sums(payload: Payload, max_bytes: int) -> Iterator[bytes]:
    """Compute the checksums of a payload: one for each block of `Pages`, over all regions; one for a tensor.

    Those of a destination that leaves out the first blocks are the value's own, without the first ones.

    Args:
        payload: A contiguous host tensor, or host `Pages`.
        max_bytes: Bytes that are read between two yields at most, or one block.

    Yields:
        The checksums of the blocks that were read, `SUM_BYTES` each, in order; none where a slice completed no block.

    Raises:
        ConfigError: The payload is not in host memory, or the library is missing.
    """
    found = new_hash()
    if not isinstance(payload, Pages):
        flat = tensor_bytes(payload)
        for start in range(0, flat.nbytes, max_bytes):
            found.update(flat[start : start + max_bytes])
            yield b""
        yield _digest(found)
        return
    columns = [(region.rows(), ids.tolist()) for region, ids in zip(payload.regions, payload.block_ids, strict=True)]
    blocks = max((len(ids) for _, ids in columns), default=0)
    count = max(1, max_bytes // max(1, sum(region.page_bytes for region in payload.regions)))
    for first in range(0, blocks, count):
        sums = bytearray()
        for block in range(first, min(first + count, blocks)):
            found.reset()
            for rows, ids in columns:
                if block < len(ids):
                    found.update(rows[ids[block]])
            sums += _digest(found)
        yield bytes(sums)


def _digest(found: Any) -> bytes:
    return int(found.intdigest() & 0xFFFFFFFF).to_bytes(SUM_BYTES, "little")
