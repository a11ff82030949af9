"""`Pages`: blocks of registered regions, in order. The payload that an engine hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta

from kvbridge.errors import SpecMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbridge.memory.region import Region


Count = Annotated[int, Meta(ge=0, le=1 << 48)]


class PagesSpec(msgspec.Struct, frozen=True, tag="pages"):
    """Shape of a `Pages` payload: enough for a receiver to check its destination.

    Attributes:
        page_bytes: Bytes of a page, for each region in order.
        counts: Number of blocks, for each region in order.
    """

    page_bytes: tuple[Count, ...]
    counts: tuple[Count, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(size * count for size, count in zip(self.page_bytes, self.counts, strict=True))


def id_array(block_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Make an array of block ids.

    Raises:
        SpecMismatchError: They are not whole numbers in one row.
    """
    try:
        found = np.asarray(block_ids)
    except ValueError as error:
        raise SpecMismatchError(f"block ids are whole numbers in one row: {error}") from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise SpecMismatchError(f"block ids are whole numbers in one row; found {found.dtype} of shape {found.shape}")
    return np.ascontiguousarray(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Pages:
    """For each region the ids of the blocks that are meant, in order.

    Packed, a value is region after region, block after block: the order on any wire. Regions of one KV cache group
    share one array of ids. The arrays are not copied: leave them alone while a transfer uses them.

    Args:
        regions: Regions, in the order that both sides agree on.
        block_ids: One int64 array of block ids for each region.

    Raises:
        SpecMismatchError: Lengths differ, or an id lies outside of its region (or below its `first_block`).
    """

    regions: tuple[Region, ...]
    block_ids: tuple[NDArray[np.int64], ...]

    def __post_init__(self) -> None:
        if len(self.regions) != len(self.block_ids):
            raise SpecMismatchError(f"{len(self.regions)} regions but {len(self.block_ids)} arrays of block ids")
        checked: set[tuple[int, int, int]] = set()
        for region, ids in zip(self.regions, self.block_ids, strict=True):
            bounds = (id(ids), region.first_block, region.num_blocks)
            if bounds in checked or not len(ids):
                continue
            checked.add(bounds)
            low, high = int(ids.min()), int(ids.max())
            if low < region.first_block or high >= region.num_blocks:
                raise SpecMismatchError(
                    f"block ids {low} to {high} lie outside of the region's blocks {region.first_block} to "
                    f"{region.num_blocks - 1}"
                )

    @classmethod
    def of(cls, regions: Sequence[Region], block_ids: Sequence[int] | NDArray[np.int64]) -> Pages:
        """Name the same blocks in every region."""
        ids = id_array(block_ids)
        return cls(tuple(regions), (ids,) * len(regions))

    @property
    def spec(self) -> PagesSpec:
        """Shape of this payload."""
        return PagesSpec(
            page_bytes=tuple(region.page_bytes for region in self.regions),
            counts=tuple(len(ids) for ids in self.block_ids),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.spec.nbytes

    @property
    def device(self) -> str:
        """Device of the regions, `"cpu"` for none."""
        return self.regions[0].device if self.regions else "cpu"
