"""`Region` and `Pages`: numbers that contradict each other and ids that are not to be moved are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbridge.errors import ConfigError, SpecMismatchError
from kvbridge.memory import Pages, PagesSpec, Region


def region(blocks: int = 8, page: int = 16, first: int = 1) -> Region:
    return Region.over(np.zeros(blocks * page, dtype=np.uint8), page, first_block=first)


def test_a_region_over_memory_covers_it() -> None:
    memory = np.arange(64, dtype=np.uint8)
    found = Region.over(memory, 16)
    assert (found.address, found.num_blocks, found.block_stride, found.nbytes) == (memory.ctypes.data, 4, 16, 64)
    assert found.rows().view(np.uint8).tolist() == memory.reshape(4, 16).tolist()
    found.rows()[2] = 0
    assert not memory[32:48].any()


@pytest.mark.parametrize(
    "numbers",
    [
        {"page_bytes": 0},
        {"page_bytes": -8},
        {"num_blocks": 0},
        {"num_blocks": -1},
        {"block_stride": 15},
        {"block_stride": 0},
        {"host": np.zeros(127, dtype=np.uint8)},
    ],
)
def test_numbers_that_contradict_each_other_are_refused(numbers: dict[str, Any]) -> None:
    right = {"address": 4096, "page_bytes": 16, "block_stride": 16, "num_blocks": 8}
    Region(**right)
    with pytest.raises(ConfigError):
        Region(**{**right, **numbers})


@pytest.mark.parametrize(
    ("memory", "page"),
    [
        (np.zeros(65, dtype=np.uint8), 16),
        (np.zeros(64, dtype=np.int8), 16),
        (np.zeros(64, dtype=np.float32), 16),
        (np.zeros(128, dtype=np.uint8)[::2], 16),
        (np.zeros(0, dtype=np.uint8), 16),
        (np.zeros(64, dtype=np.uint8), 0),
        (np.zeros(64, dtype=np.uint8), -16),
    ],
)
def test_memory_that_is_not_whole_pages_of_bytes_is_refused(memory: Any, page: int) -> None:
    with pytest.raises(ConfigError):
        Region.over(memory, page)


def test_a_region_without_host_memory_has_no_rows() -> None:
    with pytest.raises(ConfigError, match="cuda:3"):
        Region(4096, 16, 16, 8, device="cuda:3").rows()


@pytest.mark.parametrize(("page", "stride", "offset"), [(16, 48, 0), (8, 24, 8), (3, 7, 1), (16, 20, 4), (16, 16, 4)])
def test_rows_of_strided_and_of_misaligned_regions_are_the_pages(page: int, stride: int, offset: int) -> None:
    memory = np.arange(1000, dtype=np.int64).astype(np.uint8)
    here = memory[offset:]
    found = Region(here.ctypes.data, page, stride, 9, host=here)
    assert found.nbytes == 8 * stride + page
    rows = found.rows()
    for block in range(9):
        start = offset + block * stride
        assert rows[block].tobytes() == memory[start : start + page].tobytes()


def test_regions_of_the_same_memory_are_the_same_and_others_are_not() -> None:
    memory = np.zeros(256, dtype=np.uint8)
    one, same = Region.over(memory, 16), Region.over(memory, 16, first_block=1)
    assert one.identity == same.identity
    others = [Region.over(memory, 32), Region.over(memory[16:], 16), Region(one.address, 16, 32, 8)]
    assert len({one.identity, *(other.identity for other in others)}) == 4


@pytest.mark.parametrize("ids", [[0], [3, 0, 4], [8], [7, 8], [-1], [2, -8]])
def test_the_null_block_and_blocks_outside_are_refused_with_the_bounds(ids: list[int]) -> None:
    with pytest.raises(SpecMismatchError, match="blocks 1 to 7"):
        Pages.of([region()], ids)


def test_block_0_may_be_moved_where_it_is_no_null_block() -> None:
    assert Pages.of([region(first=0)], [0, 7]).nbytes == 32


def test_every_region_is_checked_although_they_share_one_array_of_ids() -> None:
    with pytest.raises(SpecMismatchError, match="1 to 3"):
        Pages.of([region(8), region(4)], [1, 5])
    with pytest.raises(SpecMismatchError):
        Pages.of([region(8, first=0), region(8, first=1)], [0])
    with pytest.raises(SpecMismatchError):
        Pages((region(8), region(8)), (np.array([1]), np.array([0])))


def test_regions_and_arrays_of_ids_are_pairs() -> None:
    with pytest.raises(SpecMismatchError, match="2 regions but 1"):
        Pages((region(), region()), (np.array([1]),))


@given(st.lists(st.integers(1, 7)))
def test_the_spec_counts_blocks_and_bytes_of_every_region(ids: list[int]) -> None:
    pages = Pages.of([region(page=16), region(page=24)], ids)
    assert pages.spec == PagesSpec((16, 24), (len(ids), len(ids)))
    assert pages.nbytes == pages.spec.nbytes == 40 * len(ids)


def test_pages_say_on_which_device_they_are() -> None:
    assert Pages.of([], []).device == "cpu"
    assert Pages.of([Region(4096, 16, 16, 8, device="cuda:1")], [1]).device == "cuda:1"


def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    for ids in ([1.5], ["1"], [None], [[1, 2]], [2**70]):
        with pytest.raises(SpecMismatchError):
            Pages.of([region()], ids)
