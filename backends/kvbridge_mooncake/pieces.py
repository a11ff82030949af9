"""The bytes of a payload in order, as addresses and lengths: how the store's client wants memory named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbridge_mooncake.memory import Blocks

MOST = 32 << 20
"""Bytes of a piece at most."""


def pieces(blocks: Blocks, skip: int = 0, spare: int = 0) -> tuple[list[int], list[int]]:
    """Name the memory of a payload's blocks, region by region, neighbours in one piece.

    Args:
        blocks: The blocks.
        skip: Blocks before those of every region, which are not wanted.
        spare: Address of memory as large as the largest block, for what is not wanted.

    Returns:
        Addresses and bytes.
    """
    addresses: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    for row, ids in zip(blocks.rows.astype(np.int64), blocks.ids, strict=True):
        unwanted = np.full(skip, spare, dtype=np.int64)
        addresses += [unwanted, row[0] + ids * row[3]]
        sizes.append(np.full(skip + len(ids), row[1], dtype=np.int64))
    if not sizes:
        return [], []
    address, size = np.concatenate(addresses), np.concatenate(sizes)
    keep = size > 0
    address, size = address[keep], size[keep]
    if not len(address):
        return [], []
    apart = np.diff(address) != size[:-1]
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    lengths = np.add.reduceat(size, starts)
    counts = -(-lengths // MOST)
    offsets = (np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)) * MOST
    found = np.repeat(address[starts], counts) + offsets
    return found.tolist(), np.minimum(np.repeat(lengths, counts) - offsets, MOST).tolist()
