"""The bytes of a payload in order, as addresses and lengths: how the store's client wants memory named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbridge_mooncake.memory import cut

if TYPE_CHECKING:
    from kvbridge_mooncake.memory import Blocks

MOST = 32 << 20
"""Bytes of a piece at most."""

FEW, SHORT = 64, 32 << 10
"""Pieces that are more than this, and shorter on average, are slower to name one by one than to copy into one."""


def pieces(blocks: Blocks) -> tuple[list[int], list[int]]:
    """Name the memory of a payload's blocks, region by region, neighbours in one piece.

    Args:
        blocks: The blocks.

    Returns:
        Addresses and bytes.
    """
    parts = [
        (row[0] + ids * row[3], np.full(len(ids), row[1], dtype=np.int64))
        for row, ids in zip(blocks.rows.astype(np.int64), blocks.ids, strict=True)
        if len(ids)
    ]
    if not parts:
        return [], []
    address, size = (np.concatenate([part[index] for part in parts]) for index in range(2))
    apart = np.diff(address) != size[:-1]
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    which, within, lengths = cut(np.add.reduceat(size, starts), MOST)
    return (address[starts][which] + within).tolist(), lengths.tolist()


def small(found: tuple[list[int], list[int]]) -> bool:
    """Whether pieces are so many and so short that a copy is faster."""
    return len(found[1]) > FEW and sum(found[1]) < SHORT * len(found[1])
