"""Pages: blocks arrive in order, in place, in every region, without those that the consumer has already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import SpecMismatchError
from kvbridge.memory import Pages, Region
from tests.nodes import Node, pattern

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = (4096, 24, 136)
BLOCKS = 64
SOURCE = [3, 9, 4, 5, 60, 1]
TARGET = [7, 8, 9, 2, 63, 11]


class Cache:
    """Three regions of different page sizes, block 0 reserved."""

    def __init__(self, seed: int) -> None:
        self.rows: list[NDArray[np.uint8]] = []
        self.regions: list[Region] = []
        for index, size in enumerate(SIZES):
            memory = pattern(seed + index, size * BLOCKS) if seed else np.zeros(size * BLOCKS, dtype=np.uint8)
            self.rows.append(memory.reshape(BLOCKS, size))
            self.regions.append(Region.over(memory, size, first_block=1))

    def pages(self, ids: list[int]) -> Pages:
        return Pages.of(self.regions, ids)


@pytest.mark.parametrize("skip", range(len(SOURCE) + 1))
def test_the_first_blocks_are_left_out_and_nothing_else_is_touched(pair: tuple[Node, Node], skip: int) -> None:
    producer, consumer = pair
    source, target = Cache(1), Cache(0)
    producer.buffer.insert(Key("p"), source.pages(SOURCE)).wait(5)
    out = target.pages(TARGET[skip:])
    consumer.buffer.drop_select(Key("p", *producer.where()), out, skip=skip).wait(5)
    for ours, theirs in zip(target.rows, source.rows, strict=True):
        expected = np.zeros_like(ours)
        expected[TARGET[skip:]] = theirs[SOURCE[skip:]]
        assert np.array_equal(ours, expected)
    producer.await_used(0)


@pytest.mark.parametrize(("count", "skip"), [(6, 1), (5, 0), (5, 2), (0, 7), (1, 7), (6, -1), (7, -1)])
def test_a_destination_of_another_number_of_blocks_is_refused(pair: tuple[Node, Node], count: int, skip: int) -> None:
    producer, consumer = pair
    producer.buffer.insert(Key("p"), Cache(1).pages(SOURCE)).wait(5)
    target = Cache(0)
    out = target.pages([*TARGET, 12][:count])
    with pytest.raises(SpecMismatchError):
        consumer.buffer.select(Key("p", *producer.where()), out, skip=skip).wait(5)
    assert not any(rows.any() for rows in target.rows)
    good = target.pages(TARGET)
    consumer.buffer.select(Key("p", *producer.where()), good).wait(5)
    assert target.rows[0].any()


def test_regions_of_other_page_sizes_or_in_another_order_are_refused(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.buffer.insert(Key("p"), Cache(1).pages(SOURCE)).wait(5)
    target = Cache(0)
    for regions in (target.regions[::-1], target.regions[:2], [*target.regions, target.regions[0]], []):
        with pytest.raises(SpecMismatchError):
            consumer.buffer.select(Key("p", *producer.where()), Pages.of(regions, TARGET)).wait(5)
    assert not any(rows.any() for rows in target.rows)


def test_pages_and_tensors_are_not_mixed_up(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    cache = Cache(1)
    producer.buffer.insert(Key("pages"), cache.pages(SOURCE)).wait(5)
    producer.insert("tensor", 1, 6 * sum(SIZES))
    flat = np.zeros(6 * sum(SIZES), dtype=np.uint8)
    home = producer.where()
    with pytest.raises(SpecMismatchError):
        consumer.buffer.select(Key("pages", *home), flat).wait(5)
    with pytest.raises(SpecMismatchError):
        consumer.buffer.select(Key("tensor", *home), Cache(0).pages(TARGET)).wait(5)
    with pytest.raises(SpecMismatchError):
        consumer.buffer.select(Key("tensor", *home), flat, skip=1).wait(5)
    assert not flat.any()


def test_the_producers_blocks_may_be_rewritten_as_soon_as_insert_is_done(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    source, target = Cache(1), Cache(0)
    expected = [rows[SOURCE].copy() for rows in source.rows]
    producer.buffer.insert(Key("p"), source.pages(SOURCE)).wait(5)
    for rows in source.rows:
        rows[:] = 0xEE
    consumer.buffer.drop_select(Key("p", *producer.where()), target.pages(TARGET)).wait(5)
    for rows, wanted in zip(target.rows, expected, strict=True):
        assert np.array_equal(rows[TARGET], wanted)


def test_a_value_of_no_blocks_is_delivered(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.buffer.insert(Key("p"), Cache(1).pages([])).wait(5)
    consumer.buffer.drop_select(Key("p", *producer.where()), Cache(0).pages([])).wait(5)
    producer.await_used(0)
