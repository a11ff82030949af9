"""`HostPool` against a model, under threads, with requests that wait, and at its end."""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbridge.errors import CapacityError, ClosedError, ConfigError, KVBridgeError
from kvbridge.memory.host_pool import HostBlock, HostPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = 4096


class Model(RuleBasedStateMachine):
    """The model is the list of blocks in use, each with the byte that was written into it."""

    taken = Bundle("taken")

    @initialize(units=st.integers(1, 24), rest=st.integers(0, 63), alignment=st.sampled_from([1, 64, PAGE, 1 << 17]))
    def start(self, units: int, rest: int, alignment: int) -> None:
        self.alignment, self.capacity = alignment, units * alignment
        self.pool = HostPool(units * alignment + rest % alignment, alignment=alignment)
        with self.pool.allocate(0) as block:
            self.base = block.memory.ctypes.data
        self.peak, self.refused, self.marks = alignment, 0, 0
        self.live: dict[HostBlock, int] = {}

    def ranges(self) -> list[tuple[int, int]]:
        """Where blocks lie: offset and bytes, alignment included, as their addresses say."""
        found = [
            (block.memory.ctypes.data - self.base, -(-max(1, block.nbytes) // self.alignment) * self.alignment)
            for block in self.live
        ]
        return sorted(found)

    def holes(self) -> list[int]:
        found, position = [], 0
        for start, size in self.ranges():
            assert start >= position, "blocks overlap"
            found.append(start - position)
            position = start + size
        assert position <= self.capacity, "a block reaches out of the pool"
        return [size for size in (*found, self.capacity - position) if size]

    @rule(target=taken, units=st.integers(0, 6), more=st.integers(-1, 1))
    def allocate(self, units: int, more: int) -> HostBlock | None:
        nbytes = max(0, units * self.alignment + more)
        if max(1, nbytes) > max(self.holes(), default=0):
            with pytest.raises(CapacityError, match=f"a value of {nbytes} bytes does not fit"):
                self.pool.allocate(nbytes)
            self.refused += 1
            return None
        block = self.pool.allocate(nbytes)
        assert block.nbytes == block.memory.nbytes == nbytes
        assert block.memory.dtype == np.uint8
        assert block.memory.shape == (nbytes,)
        assert block.memory.ctypes.data % self.alignment == 0
        self.marks = (self.marks + 1) % 251
        block.memory[:] = self.marks
        self.live[block] = self.marks
        self.peak = max(self.peak, sum(size for _, size in self.ranges()))
        return block

    @rule(block=taken)
    def release(self, block: HostBlock | None) -> None:
        """The first time and again: a second release takes nothing from who has the memory now."""
        if block is not None:
            self.live.pop(block, None)
            block.release()
            with pytest.raises(ClosedError, match="was released"):
                _ = block.memory

    @precondition(lambda self: hasattr(self, "pool"))
    @rule(more=st.integers(1, 1 << 60))
    def ask_for_more_than_the_pool(self, more: int) -> None:
        with pytest.raises(CapacityError, match=f"of {self.capacity} bytes are in use"):
            self.pool.allocate(self.capacity + more)
        self.refused += 1

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def figures_are_exact_and_no_block_changed(self) -> None:
        assert all((block.memory == mark).all() for block, mark in self.live.items())
        holes, found = self.holes(), self.pool.stats()
        used = sum(size for _, size in self.ranges())
        assert (found.capacity, found.used, found.blocks) == (self.capacity, used, len(self.live))
        assert found.requested == sum(block.nbytes for block in self.live)
        assert (found.peak, found.refused, found.waiting) == (self.peak, self.refused, 0)
        assert (found.holes, found.largest) == (len(holes), max(holes, default=0))
        free = self.capacity - used
        assert found.fragmentation == (1 - found.largest / free if free else 0)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for block in list(self.live):
                self.release(block)
            self.figures_are_exact_and_no_block_changed()
            found = self.pool.stats()
            assert (found.holes, found.largest, found.fragmentation) == (1, self.capacity, 0)
            self.pool.allocate(self.capacity).release()
            self.pool.close()


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


class Asking:
    """A thread that asks for a block. What came of it is told by `end`."""

    def __init__(self, pool: HostPool, nbytes: int, wait: float = 20.0) -> None:
        self.block: HostBlock | None = None
        self.error: BaseException | None = None
        self._ask: Callable[[], HostBlock] = lambda: pool.allocate(nbytes, wait=wait)
        before = pool.stats().waiting
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        until(lambda: pool.stats().waiting > before or not self.thread.is_alive())

    def _run(self) -> None:
        try:
            self.block = self._ask()
        except BaseException as error:
            self.error = error

    def end(self) -> HostBlock | None:
        """Return the block, or None if there was an error."""
        self.thread.join(10)
        assert not self.thread.is_alive(), "it waits for ever"
        return self.block

    def got(self) -> HostBlock:
        block = self.end()
        assert block is not None, self.error
        return block


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def pool() -> Iterator[HostPool]:
    made = HostPool(8 * PAGE)
    yield made
    made.close()


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as they can, so that what no lock guards breaks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# -- blocks -------------------------------------------------------------------------------------------------------


def test_a_block_is_released_at_the_end_of_its_with_whatever_happens(pool: HostPool) -> None:
    def fail() -> None:
        with pool.allocate(5) as block:
            assert (pool.stats().used, block.nbytes) == (PAGE, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pool.stats().used == 0


def test_a_late_second_release_leaves_the_block_that_lies_there_now(pool: HostPool) -> None:
    first = pool.allocate(8 * PAGE)
    first.release()
    second = pool.allocate(8 * PAGE)
    first.release()
    assert pool.stats().blocks == 1
    with pytest.raises(CapacityError):
        pool.allocate(1)
    second.release()


@pytest.mark.parametrize("arguments", [(-1, 0), (1, -0.1), (1, float("nan")), (1, float("inf"))])
def test_numbers_that_mean_nothing_are_refused(pool: HostPool, arguments: tuple[int, float]) -> None:
    with pytest.raises(ConfigError, match="neither negative"):
        pool.allocate(arguments[0], wait=arguments[1])
    assert pool.stats().refused == 0


@pytest.mark.parametrize(("capacity", "alignment"), [(0, PAGE), (-1, PAGE), (PAGE - 1, PAGE), (1 << 70, PAGE)])
def test_a_capacity_that_cannot_be_had_is_refused(capacity: int, alignment: int) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        HostPool(capacity, alignment=alignment)


def test_an_alignment_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="power of two"):
        HostPool(1 << 20, alignment=3 * PAGE)


def test_memory_is_taken_when_it_is_first_used() -> None:
    before = resident()
    pool = HostPool(1 << 30, pinned=False)
    with pool.allocate(1 << 29) as block:
        assert block.memory[-1] == 0
        assert resident() - before < 1 << 27
    pool.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


# -- back-pressure ------------------------------------------------------------------------------------------------


def test_who_waits_gets_memory_when_another_releases_enough(pool: HostPool) -> None:
    blocks = [pool.allocate(PAGE) for _ in range(8)]
    asking = Asking(pool, 2 * PAGE)
    blocks[0].release()
    blocks[2].release()
    assert pool.stats().waiting == 1
    blocks[1].release()
    assert asking.got().nbytes == 2 * PAGE
    found = pool.stats()
    assert (found.waiting, found.refused, found.blocks, found.used) == (0, 0, 6, 7 * PAGE)
    asking.got().release()
    assert pool.stats().used == 5 * PAGE


def test_one_release_serves_all_who_fit(pool: HostPool) -> None:
    whole = pool.allocate(8 * PAGE)
    asking = [Asking(pool, 3 * PAGE) for _ in range(3)]
    whole.release()
    blocks = [one.got() for one in asking[:2]]
    assert blocks[0].memory.ctypes.data != blocks[1].memory.ctypes.data
    assert pool.stats().waiting == 1
    blocks[0].release()
    asking[2].got().release()
    blocks[1].release()


def test_a_wait_ends_with_what_does_not_fit_and_why(pool: HostPool) -> None:
    block = pool.allocate(7 * PAGE)
    with pytest.raises(CapacityError, match=f"2.*{7 * PAGE} of {8 * PAGE} bytes.*largest hole has {PAGE} bytes"):
        pool.allocate(2 * PAGE, wait=0.02)
    found = pool.stats()
    assert (found.waiting, found.refused, found.used) == (0, 1, 7 * PAGE)
    block.release()
    pool.allocate(8 * PAGE, wait=0.02).release()


def test_the_longest_wait_there_is_can_be_asked_for(pool: HostPool) -> None:
    block = pool.allocate(8 * PAGE)
    asking = Asking(pool, PAGE, wait=threading.TIMEOUT_MAX)
    block.release()
    asking.got().release()


def test_requests_are_served_in_the_order_in_which_they_came() -> None:
    pool = HostPool(PAGE)
    block = pool.allocate(1)
    asking = [Asking(pool, 1) for _ in range(6)]
    for one in asking:
        assert pool.stats().blocks == 1
        block.release()
        block = one.got()
    block.release()
    pool.close()


def test_small_requests_do_not_overtake_a_large_one(pool: HostPool) -> None:
    blocks = [pool.allocate(4 * PAGE), pool.allocate(3 * PAGE)]  # one page is free
    large, small = Asking(pool, 8 * PAGE), Asking(pool, PAGE)
    with pytest.raises(CapacityError, match=r"has to wait for its turn after 2 others.*wait longer"):
        pool.allocate(PAGE)
    with pytest.raises(CapacityError, match="does not fit"):
        pool.allocate(2 * PAGE)
    with pytest.raises(CapacityError, match="turn after 2 others"):
        pool.allocate(PAGE, wait=0.01)
    blocks[0].release()
    assert (pool.stats().waiting, pool.stats().blocks) == (2, 1)
    blocks[1].release()
    large.got().release()
    small.got().release()


def test_when_the_first_in_turn_gives_up_the_next_one_is_served(pool: HostPool) -> None:
    block = pool.allocate(7 * PAGE)
    first = Asking(pool, 2 * PAGE, wait=0.3)
    second = Asking(pool, PAGE)
    second.got().release()
    assert first.end() is None
    assert isinstance(first.error, CapacityError)
    block.release()


def test_more_than_the_whole_pool_is_refused_at_once_and_without_its_turn(pool: HostPool) -> None:
    block = pool.allocate(8 * PAGE)
    asking, too_much = Asking(pool, PAGE), Asking(pool, 8 * PAGE + 1)
    assert pool.stats().waiting == 1
    assert too_much.end() is None
    assert isinstance(too_much.error, CapacityError)
    assert "does not fit" in str(too_much.error)
    block.release()
    asking.got().release()


@pytest.mark.parametrize("served", [False, True])
def test_a_wait_that_is_interrupted_leaves_nothing_behind(
    pool: HostPool, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    block = pool.allocate(8 * PAGE)
    wait_for, asking = threading.Condition.wait_for, threading.get_ident()

    def interrupted(self: threading.Condition, true: Callable[[], bool], timeout: float | None = None) -> bool:
        if threading.get_ident() != asking:
            return wait_for(self, true, timeout)
        wait_for(self, true if served else lambda: False, timeout if served else 0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Condition, "wait_for", interrupted)
    releasing = threading.Timer(0.05, block.release)
    if served:
        releasing.start()
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(3 * PAGE, wait=10)
    block.release()
    found = pool.stats()
    assert (found.used, found.requested, found.blocks, found.waiting, found.refused) == (0, 0, 0, 0, 0)
    releasing.cancel()


# -- threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0.0, 10.0])
def test_threads_share_a_pool_and_its_accounts_stay_exact(wait: float) -> None:
    pool, wrong, refused = HostPool(32 * PAGE), list[object](), list[int]()

    def work(seed: int) -> None:
        chance, blocks = random.Random(seed), list[HostBlock]()
        try:
            for _ in range(1500):
                # Who waits holds nothing, so that not all can wait for each other.
                if blocks and (wait or len(blocks) > 3 or chance.random() < 0.5):
                    block = blocks.pop(chance.randrange(len(blocks)))
                    if not (block.memory == block.nbytes % 251).all():
                        wrong.append(block.nbytes)
                    block.release()
                try:
                    block = pool.allocate(chance.randrange(20 * PAGE), wait=wait)
                except CapacityError:
                    refused.append(seed)
                    continue
                block.memory[:] = block.nbytes % 251
                blocks.append(block)
            for block in blocks:
                block.release()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=[seed], daemon=True) for seed in range(4)]
    with quick_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    found = pool.stats()
    assert (found.used, found.requested, found.blocks, found.waiting) == (0, 0, 0, 0)
    assert (found.holes, found.largest, found.refused) == (1, pool.capacity, len(refused))
    assert found.peak <= pool.capacity
    assert bool(refused) is not bool(wait)
    pool.close()


def test_a_block_that_many_threads_release_is_released_once(pool: HostPool) -> None:
    with quick_switches():
        for _ in range(100):
            block, other = pool.allocate(PAGE), pool.allocate(PAGE)
            threads = [threading.Thread(target=block.release) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert (pool.stats().used, pool.stats().requested, pool.stats().blocks) == (PAGE, PAGE, 1)
            other.release()


@pytest.mark.parametrize("name", ["allocate", "release", "stats", "close"])
def test_no_call_looks_at_the_accounts_while_another_changes_them(pool: HostPool, name: str) -> None:
    block = pool.allocate(PAGE)
    call: Callable[..., object] = getattr(block if name == "release" else pool, name)
    thread = threading.Thread(target=call, args=[PAGE] if name == "allocate" else [], daemon=True)
    with pool._lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert (pool._allocator.used, pool._requested, len(pool._starts)) == (PAGE, PAGE, 1)
    thread.join(10)
    assert not thread.is_alive()


# -- the end ------------------------------------------------------------------------------------------------------


def test_close_wakes_who_waits_and_leaves_blocks_their_memory() -> None:
    pool = HostPool(8 * PAGE)
    block = pool.allocate(7 * PAGE)
    block.memory[:] = 7
    asking = [Asking(pool, 2 * PAGE), Asking(pool, PAGE)]
    for _ in range(2):
        pool.close()
    assert [one.end() for one in asking] == [None, None]
    assert [type(one.error) for one in asking] == [ClosedError, ClosedError]
    for wait in (0, 5):
        with pytest.raises(ClosedError):
            pool.allocate(1, wait=wait)
    found = pool.stats()
    assert (found.capacity, found.used, found.requested, found.blocks, found.waiting) == (0, 0, 0, 0, 0)
    assert (found.largest, found.holes, found.fragmentation, found.peak, found.refused) == (0, 0, 0, 7 * PAGE, 0)
    view = block.memory
    del pool
    gc.collect()
    assert (block.memory == 7).all()
    block.release()
    block.release()
    view[0] = 8
    assert view[:2].tolist() == [8, 7]


def test_a_block_released_after_close_changes_no_figure() -> None:
    pool = HostPool(8 * PAGE)
    blocks = [pool.allocate(PAGE) for _ in range(3)]
    pool.close()
    before = pool.stats()
    for block in blocks:
        block.release()
    assert pool.stats() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_neither_takes_nor_gives_back_nor_hangs(pool: HostPool) -> None:
    block = pool.allocate(PAGE)
    block.memory[:] = 5
    with pool._lock:  # as another thread may hold it at that moment: in the child nobody lets go of it
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(in_a_fork(pool, block))
    assert os.waitpid(child, 0)[1] == 0
    assert (block.memory == 5).all()
    assert pool.stats().used == PAGE


def in_a_fork(pool: HostPool, block: HostBlock) -> int:
    try:
        right = bool((block.memory == 5).all())
        block.memory[:] = 6
        block.release()
        pool.close()
        for call in (lambda: pool.allocate(1, wait=1), pool.stats):
            try:
                call()
            except KVBridgeError as error:
                right &= "parent process" in str(error)
            else:
                right = False
    except BaseException:  # nothing of it may go on in the child
        return 2
    return 0 if right else 1


# -- pinned memory ------------------------------------------------------------------------------------------------
