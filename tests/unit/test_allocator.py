"""`Allocator` against a model: no overlap, exact accounting, holes that merge, and a refusal that helps."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from kvbridge.errors import CapacityError, ConfigError, KVBridgeError
from kvbridge.memory.allocator import ALIGNMENT, Allocator


def rounded(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


class Pool(RuleBasedStateMachine):
    """The model is the set of ranges in use."""

    live = Bundle("live")

    @initialize(pages=st.integers(0, 24), rest=st.integers(0, ALIGNMENT - 1))
    def start(self, pages: int, rest: int) -> None:
        self.pool = Allocator(pages * ALIGNMENT + rest)
        self.capacity = pages * ALIGNMENT
        self.used: dict[int, int] = {}

    def holes(self) -> list[tuple[int, int]]:
        found, position = [], 0
        for start in sorted(self.used):
            found.append((position, start - position))
            position = start + self.used[start]
        found.append((position, self.capacity - position))
        return [(start, size) for start, size in found if size]

    @rule(target=live, nbytes=st.integers(0, 8 * ALIGNMENT) | st.sampled_from([1, ALIGNMENT, ALIGNMENT + 1]))
    def allocate(self, nbytes: int) -> int:
        size = rounded(nbytes)
        fits = [hole for hole in self.holes() if hole[1] >= size]
        if not fits:
            largest = max((hole[1] for hole in self.holes()), default=0)
            with pytest.raises(CapacityError) as found:
                self.pool.allocate(nbytes)
            numbers = [int(number) for number in re.findall(r"\d+", str(found.value))]
            assert numbers == [nbytes, sum(self.used.values()), self.capacity, largest]
            return -1
        start = self.pool.allocate(nbytes)
        # Best fit, the lowest of equals: the order in which holes are used is part of the contract.
        assert start == min(fits, key=lambda hole: (hole[1], hole[0]))[0]
        self.used[start] = size
        return start

    @rule(start=consumes(live))
    def release(self, start: int) -> None:
        if start in self.used:
            del self.used[start]
            self.pool.release(start)

    @precondition(lambda self: hasattr(self, "pool"))
    @rule(start=st.integers(-1, 25 * ALIGNMENT))
    def release_what_is_not_allocated(self, start: int) -> None:
        if start not in self.used:
            with pytest.raises(KVBridgeError, match=f"offset {start}"):
                self.pool.release(start)

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def accounts_are_exact_and_holes_merged(self) -> None:
        assert self.pool.capacity == self.capacity
        assert self.pool.used == sum(self.used.values())
        ranges = sorted((start, start + size) for start, size in self.used.items())
        assert all(end <= after for (_, end), (after, _) in itertools.pairwise(ranges))
        assert all(start % ALIGNMENT == 0 and start >= 0 and end <= self.capacity for start, end in ranges)
        holes = self.holes()
        assert self.pool.holes == len(holes)
        assert self.pool.largest == max((size for _, size in holes), default=0)
        assert self.pool._holes == sorted((size, start) for start, size in holes)
        assert self.pool._sizes == dict(holes)
        assert self.pool._starts == {start + size: start for start, size in holes}

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for start in list(self.used):
                self.release(start)
            self.accounts_are_exact_and_holes_merged()
            assert self.holes() == ([(0, self.capacity)] if self.capacity else [])


Pool.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


@pytest.mark.parametrize("alignment", [1, 64, ALIGNMENT, 1 << 21])
def test_ranges_start_at_multiples_of_the_alignment_and_take_multiples_of_it(alignment: int) -> None:
    pool = Allocator(10 * alignment + alignment // 2, alignment)
    assert (pool.capacity, pool.alignment, pool.largest, pool.holes) == (10 * alignment, alignment, 10 * alignment, 1)
    starts = [pool.allocate(nbytes) for nbytes in (0, 1, alignment, alignment + 1)]
    assert starts == [0, alignment, 2 * alignment, 3 * alignment]
    assert pool.used == 5 * alignment
    pool.release(alignment)
    assert (pool.holes, pool.largest) == (2, pool.capacity - 5 * alignment)
    with pytest.raises(CapacityError):
        pool.allocate(pool.largest + 1)
    assert pool.allocate(pool.largest) == 5 * alignment
    assert (pool.holes, pool.largest) == (1, alignment)


@pytest.mark.parametrize("alignment", [0, -4096, 3, 4097, 12288])
def test_an_alignment_that_is_no_power_of_two_is_refused(alignment: int) -> None:
    with pytest.raises(ConfigError, match=f"{alignment} bytes, expected a power of two"):
        Allocator(1 << 20, alignment)


def test_fits_says_whether_there_would_be_room() -> None:
    pool = Allocator(2 * ALIGNMENT)
    assert pool.fits(0)
    assert pool.fits(2 * ALIGNMENT)
    assert not pool.fits(2 * ALIGNMENT + 1)
    pool.allocate(ALIGNMENT + 1)
    assert not pool.fits(0)
    with pytest.raises(CapacityError):
        pool.allocate(0)
    assert (pool.largest, pool.holes) == (0, 0)


def test_a_refusal_says_what_was_found_and_what_to_do() -> None:
    pool = Allocator(10 * ALIGNMENT)
    pool.allocate(4 * ALIGNMENT)
    with pytest.raises(CapacityError) as found:
        pool.allocate(7 * ALIGNMENT)
    assert "`capacity`" in str(found.value)
    assert "lease" in str(found.value)
    assert pool.allocate(6 * ALIGNMENT) == 4 * ALIGNMENT


def test_a_pool_that_was_filled_and_emptied_in_any_order_is_one_hole() -> None:
    pool = Allocator(64 * ALIGNMENT)
    starts = [pool.allocate(1) for _ in range(64)]
    with pytest.raises(CapacityError):
        pool.allocate(1)
    for start in (*starts[::3], *starts[1::3], *starts[2::3]):
        pool.release(start)
    assert pool.used == 0
    assert pool.allocate(64 * ALIGNMENT) == 0


def test_releasing_twice_is_told_and_changes_nothing() -> None:
    pool = Allocator(2 * ALIGNMENT)
    start = pool.allocate(1)
    pool.release(start)
    with pytest.raises(KVBridgeError):
        pool.release(start)
    assert (pool.used, pool.allocate(2 * ALIGNMENT)) == (0, 0)
