"""Gather and scatter equal a model of plain loops, for any ids, page sizes, strides, slices and blocks left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbridge.errors import SpecMismatchError
from kvbridge.memory import Pages, Region
from kvbridge.memory.copying import slices

FILL = 0xA5


@dataclass
class Cache:
    """Regions over memory that a plain loop can read: where each page starts, in one array of bytes."""

    memory: np.ndarray
    region: Region
    offset: int

    def page(self, block: int) -> slice:
        start = self.offset + block * self.region.block_stride
        return slice(start, start + self.region.page_bytes)


def cache(page: int, gap: int, offset: int, blocks: int, seed: int | None) -> Cache:
    size = offset + blocks * (page + gap)
    bits = np.full(size, FILL, np.uint8)
    if seed is not None:
        bits[:] = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    here = bits[offset:]
    return Cache(bits, Region(here.ctypes.data, page, page + gap, blocks, host=here), offset)


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, int, int]], list[list[int]], list[list[int]], int, int]:
    """Shapes of regions (page, gaps and offsets of source and target), ids of source and target, skip, slice size."""
    page = st.integers(1, 40) | st.sampled_from([8, 16, 24, 64, 96])
    gap, offset = st.sampled_from([0, 0, 1, 8, 24]), st.sampled_from([0, 0, 1, 4, 8])
    blocks = draw(st.integers(1, 12))
    count = draw(st.integers(1, 3))
    shapes = [(draw(page), draw(gap), draw(gap), draw(offset), draw(offset)) for _ in range(count)]
    ids = st.lists(st.integers(0, blocks - 1), max_size=blocks)
    sources = [draw(ids | st.just(list(range(blocks)))) for _ in range(count)]
    skip = draw(st.integers(0, min(len(s) for s in sources)))
    targets = [draw(st.permutations(range(blocks)))[: len(s) - skip] for s in sources]
    return shapes, sources, targets, skip, draw(st.sampled_from([1, 16, 100, 1 << 20]))


@settings(max_examples=100, deadline=None)
@given(copies())
def test_a_copy_of_pages_is_what_a_plain_loop_makes_of_it(
    case: tuple[list[tuple[int, int, int, int, int]], list[list[int]], list[list[int]], int, int],
) -> None:
    shapes, source_ids, target_ids, skip, limit = case
    sources = [cache(p, gap, offset, 12, seed) for seed, (p, gap, _, offset, _) in enumerate(shapes)]
    targets = [cache(p, gap, offset, 12, None) for p, _, gap, _, offset in shapes]
    value = Pages(tuple(s.region for s in sources), tuple(np.array(ids, dtype=np.int64) for ids in source_ids))
    out = Pages(tuple(t.region for t in targets), tuple(np.array(ids, dtype=np.int64) for ids in target_ids))

    packed = np.full(value.nbytes + 64, FILL, dtype=np.uint8)
    position = 0
    for part in slices(value, limit):
        assert part.start == position
        assert part.nbytes <= max(limit, *(p for p, *_ in shapes))
        part.gather(packed)
        position += part.nbytes
    assert position == value.nbytes
    expected = b"".join(
        s.memory[s.page(block)].tobytes() for s, ids in zip(sources, source_ids, strict=True) for block in ids
    )
    assert packed[: value.nbytes].tobytes() == expected
    assert (packed[value.nbytes :] == FILL).all()

    for part in slices(out, limit, skip):
        part.scatter(packed)
    for target, source, to, of in zip(targets, sources, target_ids, source_ids, strict=True):
        wanted = np.full_like(target.memory, FILL)
        for block, origin in zip(to, of[skip:], strict=True):
            wanted[target.page(block)] = source.memory[source.page(origin)]
        assert np.array_equal(target.memory, wanted), "bytes outside of the wanted pages were touched, or are wrong"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.sampled_from([1, 7, 64, 1000]))
def test_a_copy_of_a_tensor_is_its_bytes(count: int, limit: int) -> None:
    value = np.random.default_rng(count).integers(0, 256, count, np.uint8).view()
    packed, out = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint8)
    for part in slices(value, limit):
        assert part.nbytes <= limit
        part.gather(packed)
    for part in slices(out, limit):
        part.scatter(packed)
    assert np.array_equal(out, value)


@pytest.mark.parametrize("ids", [[3, 9, 5], [2, 0, 4], [1, 1, 3], [0, 2, 1, 3], [5, 4, 3], [4, 4], [7, 3, 2, 10]])
def test_ids_that_only_look_like_a_run_are_copied_one_by_one(ids: list[int]) -> None:
    source, target = cache(16, 0, 0, 12, 1), cache(16, 0, 0, 12, None)
    packed = np.zeros(16 * len(ids), dtype=np.uint8)
    for part in slices(Pages.of([source.region], ids), 1 << 20):
        part.gather(packed)
    rows = source.memory.reshape(12, 16)
    assert np.array_equal(packed.reshape(-1, 16), rows[ids])
    if len(set(ids)) == len(ids):
        for part in slices(Pages.of([target.region], ids), 1 << 20):
            part.scatter(packed)
        assert np.array_equal(target.memory.reshape(12, 16)[ids], rows[ids])


def test_slices_follow_each_other_and_stay_small() -> None:
    pages = Pages.of([cache(64, 0, 0, 10, 1).region, cache(24, 8, 0, 10, 2).region], range(10))
    parts = list(slices(pages, 200))
    assert [(part.start, part.nbytes) for part in parts] == [
        (0, 192),
        (192, 192),
        (384, 192),
        (576, 64),
        (640, 192),
        (832, 48),
    ]


def test_a_page_larger_than_a_slice_is_a_slice() -> None:
    parts = list(slices(Pages.of([cache(64, 0, 0, 3, 1).region], [2, 0]), 10))
    assert [(part.start, part.nbytes) for part in parts] == [(0, 64), (64, 64)]


def test_nothing_to_copy_is_no_slice() -> None:
    assert list(slices(Pages.of([cache(64, 0, 0, 3, 1).region], []), 10)) == []
    assert list(slices(np.zeros((3, 0)), 10)) == []
    assert list(slices(Pages.of([], []), 10)) == []


def test_skipped_blocks_count_in_every_region() -> None:
    pages = Pages.of([cache(8, 0, 0, 4, 1).region, cache(16, 0, 0, 4, 2).region], [3])
    assert [part.start for part in slices(pages, 100, skip=2)] == [16, 24 + 32]


def test_a_tensor_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(SpecMismatchError):
        list(slices(np.zeros((4, 4)).T, 10))
