"""A copy from pages to pages equals a model of plain loops, for any ids, page sizes, strides and steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbridge.memory import Pages, Region
from kvbridge.memory.copying import copies
from tests.unit.test_copying import FILL, Cache, cache

BLOCKS = 12


def ids_of(draw: st.DrawFn, count: int) -> list[int]:
    """Distinct ids: anyhow, ascending, descending, or in runs."""
    found = draw(st.permutations(range(BLOCKS)))[:count]
    kind = draw(st.sampled_from(["any", "sorted", "reversed", "run", "turned"]))
    if kind in ("sorted", "reversed"):
        return sorted(found, reverse=kind == "reversed")
    first = draw(st.integers(0, BLOCKS - count))
    run = list(range(first, first + count))
    turn = draw(st.integers(0, count))
    return {"any": found, "run": run, "turned": run[turn:] + run[:turn]}[kind]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[Cache, Cache]], list[int], list[int], int]:
    page = st.integers(1, 40) | st.sampled_from([8, 16, 24, 64, 96])
    gap, offset = st.sampled_from([0, 0, 1, 8, 24]), st.sampled_from([0, 0, 1, 4, 8])
    pairs = []
    for seed in range(draw(st.integers(1, 3))):
        size = draw(page)
        source = cache(size, draw(gap), draw(offset), BLOCKS, seed)
        pairs.append((source, cache(size, draw(gap), draw(offset), BLOCKS, None)))
    count = draw(st.integers(0, BLOCKS))
    return pairs, ids_of(draw, count), ids_of(draw, count), draw(st.sampled_from([1, 16, 100, 1 << 20]))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_pages_are_copied_as_a_plain_loop_does(
    case: tuple[list[tuple[Cache, Cache]], list[int], list[int], int],
) -> None:
    pairs, from_ids, to_ids, limit = case
    source = Pages.of([one.region for one, _ in pairs], from_ids)
    target = Pages.of([one.region for _, one in pairs], to_ids)
    steps = list(copies(source, target, limit))
    least = [max(1, limit // one.region.page_bytes) for one, _ in pairs]
    assert len(steps) == sum(-(-len(from_ids) // pages) for pages in least), "steps stay small"
    for step in steps:
        step()
    for begun, ended in pairs:
        wanted = np.full_like(ended.memory, FILL)
        for origin, block in zip(from_ids, to_ids, strict=True):
            wanted[ended.page(block)] = begun.memory[begun.page(origin)]
        assert np.array_equal(ended.memory, wanted), "bytes outside of the wanted pages were touched, or are wrong"


@pytest.mark.parametrize("to_ids", [[4, 3, 2, 1], [1, 2, 3, 4], [9, 1, 5, 3]])
def test_a_page_may_be_copied_to_several_places(to_ids: list[int]) -> None:
    source, target = cache(16, 0, 0, BLOCKS, 1), cache(16, 0, 0, BLOCKS, None)
    for step in copies(Pages.of([source.region], [7, 2, 2, 7]), Pages.of([target.region], to_ids), 1 << 20):
        step()
    rows = source.memory.reshape(BLOCKS, 16)
    assert np.array_equal(target.memory.reshape(BLOCKS, 16)[to_ids], rows[[7, 2, 2, 7]])


def test_pages_whose_strides_are_words_on_one_side_only() -> None:
    memory, packed = np.arange(5 * 17, dtype=np.uint8), np.zeros(5 * 16, dtype=np.uint8)
    odd, even = Region(memory.ctypes.data, 16, 17, 5, host=memory), Region.over(packed, 16)
    for step in copies(Pages.of([odd], [4, 0, 1]), Pages.of([even], [0, 1, 2]), 1 << 20):
        step()
    assert packed[:48].reshape(3, 16)[:, 0].tolist() == [4 * 17, 0, 17]
