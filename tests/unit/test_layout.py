"""`CacheLayout`: regions come from placements alone, memory that is shared becomes one region."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbridge.errors import ConfigError, SpecMismatchError
from kvbridge.memory.layout import CacheLayout, Placement

BLOCKS, PAGE = 6, 64


def build(placements: list[Placement], nbytes: int = 4 * BLOCKS * PAGE, **changes: Any) -> CacheLayout:
    memory = np.zeros(nbytes, dtype=np.uint8)
    options = {"num_blocks": BLOCKS, "address": memory.ctypes.data, "device": "cpu", "host": memory, **changes}
    return CacheLayout.build(placements, **options)


def layers(count: int, **changes: Any) -> Placement:
    """Layers one after the other, each with all its blocks: layer-outermost."""
    right = {
        "layers": tuple(f"layer {n}" for n in range(count)),
        "group": 0,
        "offset": 0,
        "layer_stride": BLOCKS * PAGE,
        "block_stride": PAGE,
        "page_bytes": PAGE,
    }
    return Placement(**{**right, **changes})


def test_layers_one_after_the_other_are_a_region_each() -> None:
    layout = build([layers(4)])
    assert [region.address - layout.regions[0].address for region in layout.regions] == [0, 384, 768, 1152]
    assert all(region.page_bytes == region.block_stride == PAGE for region in layout.regions)
    assert all((region.num_blocks, region.first_block) == (BLOCKS, 1) for region in layout.regions)
    assert layout.groups == ((0, 1, 2, 3),)


def test_layers_that_adjoin_in_each_block_are_one_region() -> None:
    layout = build([layers(4, layer_stride=PAGE, block_stride=4 * PAGE)])
    (region,) = layout.regions
    assert (region.page_bytes, region.block_stride, region.num_blocks) == (4 * PAGE, 4 * PAGE, BLOCKS)
    assert layout.groups == ((0,),)


def test_layers_with_room_between_them_in_each_block_are_strided_regions() -> None:
    layout = build([layers(2, layer_stride=2 * PAGE, block_stride=4 * PAGE)])
    assert [(r.page_bytes, r.block_stride) for r in layout.regions] == [(PAGE, 4 * PAGE)] * 2


def test_adjoining_layers_of_blocks_with_padding_are_one_strided_region() -> None:
    layout = build([layers(3, layer_stride=PAGE, block_stride=4 * PAGE)])
    (region,) = layout.regions
    assert (region.page_bytes, region.block_stride) == (3 * PAGE, 4 * PAGE)


def test_groups_that_alias_the_same_memory_share_regions() -> None:
    layout = build([layers(2), layers(2, group=1, layers=("a", "b")), layers(1, group=2, offset=BLOCKS * PAGE)])
    assert len(layout.regions) == 2
    assert layout.groups == ((0, 1), (0, 1), (1,))


def test_placements_of_one_group_keep_the_order_of_layers() -> None:
    size = BLOCKS * PAGE
    layout = build([layers(1, offset=2 * size), layers(2), layers(1, offset=3 * size)])
    offsets = [layout.regions[index].address - min(r.address for r in layout.regions) for index in layout.groups[0]]
    assert offsets == [2 * size, 0, size, 3 * size]


def test_a_group_without_layers_has_no_regions() -> None:
    assert build([layers(1, group=2)]).groups == ((), (), (0,))


@pytest.mark.parametrize(
    "placement",
    [
        layers(5),
        layers(1, offset=3 * BLOCKS * PAGE + 1),
        layers(1, offset=10**9),
        layers(1, offset=-PAGE),
        layers(1, block_stride=5 * PAGE),
        layers(1, page_bytes=0),
        layers(1, page_bytes=2 * PAGE),
    ],
    ids=["too many layers", "one byte out", "far out", "before", "blocks too far apart", "empty", "overlapping blocks"],
)
def test_a_placement_outside_of_the_memory_or_of_sense_is_refused(placement: Placement) -> None:
    with pytest.raises(ConfigError):
        build([placement])


@pytest.mark.parametrize("placements", [[], [layers(0)]])
def test_a_cache_without_layers_is_refused(placements: list[Placement]) -> None:
    with pytest.raises(ConfigError, match="no layer"):
        build(placements)


def test_memory_of_a_gpu_has_regions_and_no_host_view() -> None:
    layout = build([layers(2)], address=0x7F00_0000_0000, device="cuda:0", host=None)
    assert [region.address for region in layout.regions] == [0x7F00_0000_0000, 0x7F00_0000_0000 + BLOCKS * PAGE]
    assert layout.pages([[1, 2]]).device == "cuda:0"


def test_pages_of_a_cache_are_each_groups_own_blocks_in_its_own_regions() -> None:
    layout = build([layers(2), layers(1, group=1, offset=2 * BLOCKS * PAGE)])
    pages = layout.pages([[1, 5], [3]])
    assert pages.regions == layout.regions
    assert [ids.tolist() for ids in pages.block_ids] == [[1, 5], [1, 5], [3]]
    assert pages.nbytes == 5 * PAGE


@pytest.mark.parametrize("ids", [[[0]], [[1, 0]], [[BLOCKS]], [[-1]]])
def test_the_null_block_and_blocks_outside_of_the_cache_are_refused(ids: list[list[int]]) -> None:
    with pytest.raises(SpecMismatchError):
        build([layers(2)]).pages(ids)


@pytest.mark.parametrize("ids", [[], [[1], [2]]])
def test_ids_for_another_number_of_groups_are_refused(ids: list[list[int]]) -> None:
    with pytest.raises(SpecMismatchError):
        build([layers(2)]).pages(ids)


def test_bytes_of_a_block_are_those_at_its_placement() -> None:
    memory = np.arange(4 * BLOCKS * PAGE, dtype=np.int64).astype(np.uint8)
    place = layers(2, layer_stride=2 * PAGE, block_stride=4 * PAGE, offset=PAGE)
    layout = CacheLayout.build([place], num_blocks=BLOCKS, address=memory.ctypes.data, device="cpu", host=memory)
    for layer, region in enumerate(layout.regions):
        start = PAGE + layer * 2 * PAGE + 3 * 4 * PAGE
        assert region.rows()[3].tobytes() == memory[start : start + PAGE].tobytes()
