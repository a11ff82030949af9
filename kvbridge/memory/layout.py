"""`CacheLayout`: the regions of an engine's KV cache, computed from where its layers were placed.

An engine describes its cache as placements: layers of one shape at `offset + layer * layer_stride + block *
block_stride` in one backing allocation. Regions come from these numbers alone, never from tensor shapes: an
engine's tensors may be views of smaller kernel blocks. Placements of several cache groups may alias the same bytes;
such memory becomes one region, registered once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbridge.errors import ConfigError, SpecMismatchError
from kvbridge.memory.pages import Pages, id_array
from kvbridge.memory.region import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """Layers of one shape in the backing allocation.

    Attributes:
        layers: Layer names, in the order of `layer_stride`.
        group: Index of the cache group (block table) that these layers use.
        offset: Bytes from the allocation's start to the first layer's block 0.
        layer_stride: Bytes from one layer's block to the next layer's.
        block_stride: Bytes from one block to the next of the same layer.
        page_bytes: Bytes of one page, padding included.
    """

    layers: tuple[str, ...]
    group: int
    offset: int
    layer_stride: int
    block_stride: int
    page_bytes: int

    def runs(self) -> list[tuple[int, int]]:
        """Return `(offset, bytes)` of block 0 for each region: one region where the layers of a block adjoin."""
        return [
            (self.offset + first * self.layer_stride, len(names) * self.page_bytes) for first, names in self._regions()
        ]

    def layers_of_runs(self) -> list[tuple[str, ...]]:
        """Return the names of the layers in each region."""
        return [names for _, names in self._regions()]

    def _regions(self) -> list[tuple[int, tuple[str, ...]]]:
        if len(self.layers) > 1 and self.layer_stride == self.page_bytes:
            return [(0, self.layers)]
        return [(index, (name,)) for index, name in enumerate(self.layers)]


@dataclass(frozen=True, eq=False)
class CacheLayout:
    """The unique regions of a cache and, for each cache group, which of them it uses.

    Attributes:
        regions: Unique regions: what a backend registers.
        groups: For each cache group the indices of its regions, in layer order.
        layers: For each region the names of the layers in it.
    """

    regions: tuple[Region, ...]
    groups: tuple[tuple[int, ...], ...]
    layers: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def build(
        cls,
        placements: Sequence[Placement],
        *,
        num_blocks: int,
        address: int,
        device: str,
        host: NDArray[np.uint8] | None,
        first_block: int = 1,
    ) -> CacheLayout:
        """Compute regions from placements.

        Args:
            placements: All placements of one backing allocation.
            num_blocks: Blocks of the cache, the null block included.
            address: Address of the allocation's first byte.
            device: `"cpu"` or `"cuda:N"`.
            host: The allocation's bytes, for host memory; it keeps the memory alive.
            first_block: Lowest block id that may be moved; block 0 is the null block.

        Raises:
            ConfigError: A placement lies outside of the allocation.
        """
        regions: dict[tuple[int, int, int, int], tuple[int, Region]] = {}
        layers: dict[int, tuple[str, ...]] = {}
        groups: list[list[int]] = [[] for _ in range(1 + max((p.group for p in placements), default=-1))]
        for placement in placements:
            for (offset, page_bytes), names in zip(placement.runs(), placement.layers_of_runs(), strict=True):
                region = Region(
                    address=address + offset,
                    page_bytes=page_bytes,
                    block_stride=placement.block_stride,
                    num_blocks=num_blocks,
                    first_block=first_block,
                    device=device,
                    host=None if host is None else host[offset:],
                )
                index, _ = regions.setdefault(region.identity, (len(regions), region))
                layers[index] = layers.get(index, ()) + names
                groups[placement.group].append(index)
        if not regions:
            raise ConfigError("the engine's KV cache has no layer: there is nothing to hand over")
        return cls(tuple(region for _, region in regions.values()), tuple(map(tuple, groups)), tuple(layers.values()))

    def pages(self, block_ids: Sequence[Sequence[int]]) -> Pages:
        """Name blocks by cache group: the pages of each group's own layers, group after group.

        Args:
            block_ids: For each group its block ids, in order. Null blocks must have been left out.

        Raises:
            SpecMismatchError: An id is the null block or lies outside of the cache.
        """
        if len(block_ids) != len(self.groups):
            raise SpecMismatchError(f"{len(block_ids)} lists of blocks for {len(self.groups)} cache groups")
        regions: list[Region] = []
        ids: list[NDArray[np.int64]] = []
        for indices, blocks in zip(self.groups, block_ids, strict=True):
            array = id_array(blocks)
            regions.extend(self.regions[index] for index in indices)
            ids.extend([array] * len(indices))
        return Pages(tuple(regions), tuple(ids))
