"""Part `slots`, how a copy and a pool end, and where slots are: memory is its owner's when a copy is over."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.conformance.checks import RequirementError, eventually, require, require_equal, require_raises, within
from kvbridge.conformance.requirement import must
from kvbridge.conformance.resources import grown_each_time
from kvbridge.conformance.values import CANARY, Geometry, PagesValue, packed, require_same
from kvbridge.errors import CancelledError, ClosedError, ConfigError, UnsupportedError
from kvbridge.memory import Pages
from kvbridge.memory.slots import slots_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvbridge.abc import Move
    from kvbridge.conformance.slot_node import SlotNode
    from kvbridge.conformance.world import World

SMALL = Geometry((4096, 512), 40, first_block=1)

LARGE = Geometry((65536,), 512)
"""32 MiB: no thread has copied them before another one has done something."""

SOON = 5.0

CLOSE = 2.0

TRIES = 8
"""How often a copy is aborted: where a thread is, is a matter of luck."""

SHORT = 0.02
"""Seconds within which a thread has ended what it was about."""

LATE = 0.3
"""Seconds within which bytes that come too late have come."""

CYCLES = 8

NO_MACHINE = 1 << 50
"""Bytes that no machine has."""


def _content(seed: int, blocks: Sequence[int], geometry: Geometry) -> NDArray[np.uint8]:
    return packed(PagesValue(seed, tuple(blocks), geometry))


def _abort(node: SlotNode, begin: Callable[[], Move], began: Callable[[], bool]) -> bool:
    """Abort a copy, at once or when something has moved, and wait for its end; say whether it was cancelled."""
    move = begin()
    eventually(began, SOON, lambda: "no byte was copied")
    move.abort()
    error = node.ended(move, SOON)
    if error is not None:
        require(isinstance(error, CancelledError), f"an aborted copy ended with {error!r}, expected CancelledError")
    return error is not None


@must("slots/20-abort", needs=("slots",))
def test_abort(world: World) -> None:
    """An aborted copy ends soon, cancelled or with all of its bytes; after its end no byte is written any more."""
    node = world.slot_node(LARGE, LARGE.num_blocks)
    blocks = range(LARGE.num_blocks)
    content = _content(1, blocks, LARGE)
    for turn in range(TRIES):
        node.slots.clear()
        node.cache.write(blocks, content)
        began = node.slots.touched if turn % 2 else lambda: True
        if _abort(node, partial(node.save, blocks, blocks), began):
            node.slots.mark(blocks)
            time.sleep(LATE if turn == TRIES - 1 else SHORT)
            node.slots.check_marked(blocks, "slots that were written over when the copy to them was over")
        else:
            node.cache.mark(blocks)
            node.slots.check(blocks, content, "a copy that was aborted, and said that it was done")


@must("slots/21-abort-load", needs=("slots",))
def test_abort_load(world: World) -> None:
    """The same for a copy into blocks: they go back to the engine when it is over."""
    node = world.slot_node(LARGE, LARGE.num_blocks)
    blocks = range(LARGE.num_blocks)
    content = _content(1, blocks, LARGE)
    first = node.cache.regions[0].rows().view(np.uint8)
    for turn in range(TRIES):
        node.slots.write(blocks, content)
        node.cache.write(blocks, None)
        began = (lambda: bool((first[:, 0] != CANARY).any())) if turn % 2 else lambda: True
        if _abort(node, partial(node.load, blocks, blocks), began):
            node.cache.mark(blocks)
            time.sleep(LATE if turn == TRIES - 1 else SHORT)
            node.cache.check_marked(blocks, "blocks that were written over when the copy to them was over")
        else:
            node.slots.mark(blocks)
            node.cache.check(blocks, content, "a copy that was aborted, and said that it was done")


@must("slots/22-abort-one", needs=("slots",))
def test_abort_one(world: World) -> None:
    """A copy that is aborted takes no other along, whether it has begun or waits for its turn."""
    geometry = Geometry((65536,), 256)
    node = world.slot_node(geometry, 256)
    orders = [range(32 * index, 32 * index + 32) for index in range(8)]
    contents = [_content(index, ids, geometry) for index, ids in enumerate(orders)]
    for ids, content in zip(orders, contents, strict=True):
        node.cache.write(ids, content)
    moves = [node.save(ids, ids) for ids in orders]
    for move in moves[1::2]:
        move.abort()
    for index, move in enumerate(moves):
        error = node.ended(move, SOON)
        require(error is None or index % 2, f"copy {index} of many ended with {error!r}, and nobody aborted it")
    node.slots.written.update(block for ids in orders for block in ids)
    for ids, content in zip(orders[::2], contents[::2], strict=True):
        node.slots.check(ids, content, "a copy beside others that were aborted")


@must("slots/23-close", needs=("slots",))
def test_close(world: World) -> None:
    """Close ends within 2 s with copies under way, whose memory is its owner's then, and may be called again."""
    for memory in (None, _memory(LARGE, LARGE.num_blocks)):
        try:
            node = world.slot_node(LARGE, LARGE.num_blocks, memory)
        except UnsupportedError:
            continue
        blocks = range(LARGE.num_blocks)
        moves = [begin(blocks, blocks) for begin in (node.load, node.save) * 4]
        pages = Pages.of(node.pool.regions, blocks)
        within(CLOSE, partial(_calm, node.pool.close), "closing a pool")
        node.cache.mark(blocks)
        late = None if memory is None else memory[:: -(1 << 12)]
        if late is not None:
            late[:] = 1
        for move in moves:
            node.ended(move, SHORT)
        again = partial(node.pool.copy, node.cache.pages(blocks), pages)
        require_raises(ClosedError, again, "a copy by a pool that was closed")
        within(CLOSE, partial(_calm, node.pool.close), "closing it again")
        time.sleep(LATE)
        node.cache.check_marked(blocks, "blocks that were written over after the pool was closed")
        require(late is None or (late == 1).all(), "slots were written after the pool was closed")
    _closes_unused(world.slot_node(SMALL, 4))


def _closes_unused(node: SlotNode) -> None:
    within(CLOSE, partial(_calm, node.pool.close), "closing a pool that did nothing")


def _calm(call: Callable[[], None]) -> None:
    """Make a call that may not raise."""
    try:
        call()
    except Exception as error:
        raise RequirementError(f"it raised {error!r}") from error


@must("slots/24-nothing-left", needs=("slots",))
def test_nothing_left(world: World) -> None:
    """After close nothing is left of a pool: no thread, descriptor, child, memory, file in /dev/shm or other file."""
    geometry = Geometry((65536,), 128)

    def cycle() -> None:
        node = world.slot_node(geometry, 128)
        node.end(node.save(range(128), range(128)))
        node.end(node.load(range(128), range(128)))
        node.save(range(64), range(64))
        world.close()

    for _ in range(3):  # what a library keeps from its first use on is no leak
        cycle()
    # Other programs make files in /dev/shm, too; one a cycle is ours.
    slack = {"descriptors": 2, "tasks": 1, "resident": 24 << 20, "shared": CYCLES // 2, "files": CYCLES // 2}
    found = grown_each_time(cycle, slack, CYCLES)
    require_equal(found, {}, f"what {CYCLES} pools left behind")


@must("slots/30-given-memory", needs=("slots",))
def test_given_memory(world: World) -> None:
    """Memory that is given is where the slots are, for all who share it; or it is refused with UnsupportedError."""
    count, blocks, slots = 24, tuple(range(1, 25)), tuple(range(23, -1, -1))
    memory = _memory(SMALL, count)
    content = _content(1, blocks, SMALL)
    try:
        first, second = (world.slot_node(SMALL, count, memory) for _ in range(2))
    except UnsupportedError:
        return
    spans = [(region.address, region.address + region.nbytes) for region in first.pool.regions]
    start = memory.ctypes.data
    inside = all(start <= low and high <= start + memory.nbytes for low, high in spans)
    require(inside, "the slots are not in the memory that was given")
    first.cache.write(blocks, content)
    first.end(first.save(blocks, slots))
    first.close()
    second.end(second.load(slots, blocks))
    second.cache.check(blocks, content, "slots that another pool in the same memory filled")
    second.close()
    for (low, high), rows in zip(spans, _split(content, len(blocks)), strict=True):
        found = memory[low - start : high - start].reshape(count, -1)[list(slots)]
        require_same(found.reshape(-1), rows, "the memory that was given, after its pool was closed")
    between = np.ones(memory.nbytes, dtype=bool)
    for low, high in spans:
        between[low - start : high - start] = False
    require((memory[between] == CANARY).all(), "bytes of the memory that are no slots were written")


def _split(content: NDArray[np.uint8], blocks: int) -> list[NDArray[np.uint8]]:
    ends = list(itertools.accumulate(size * blocks for size in SMALL.page_bytes))
    return np.split(content, ends[:-1])


def _memory(geometry: Geometry, count: int) -> NDArray[np.uint8]:
    """Memory for slots, as one process gets it that shares it with others."""
    found = np.frombuffer(mmap.mmap(-1, slots_bytes(geometry.page_bytes, count)), dtype=np.uint8)
    found[:] = CANARY
    return found


@must("slots/31-used-bytes", needs=("slots",))
def test_used_bytes(world: World) -> None:
    """`used_bytes` is what slots take: their pages at least, not twice as much, and all that their process grows by."""
    geometry, count = Geometry((65536, 4096), 8), 1024
    pages = count * sum(geometry.page_bytes)
    world.slot_node(geometry, 8)
    before = _resident()
    node = world.slot_node(geometry, count)
    node.end(node.save(range(8), range(8)))
    node.end(node.load(range(8), range(8)))
    grown, used = _resident() - before, node.pool.used_bytes
    require(pages <= used < 2 * pages, f"used_bytes is {used!r}, and the slots have {pages} bytes")
    require(grown < used + (8 << 20), f"used_bytes is {used}, and the process has grown by {grown} bytes")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@must("slots/32-too-many", needs=("slots",))
def test_too_many(world: World) -> None:
    """Slots that there is no memory for are refused with ConfigError, and nothing else suffers."""
    cases: dict[str, tuple[int, Any]] = {
        f"slots of {NO_MACHINE} bytes": (NO_MACHINE // sum(SMALL.page_bytes), None),
        "slots in memory that is too small": (32, _memory(SMALL, 16)),
        "no slot": (0, None),
    }
    for what, (count, memory) in cases.items():
        try:
            world.slot_node(SMALL, count, memory)
        except ConfigError:
            continue
        except UnsupportedError as error:
            require(memory is not None, f"{what}: raised {error!r}, expected ConfigError")
            continue
        except Exception as error:
            raise RequirementError(f"{what}: raised {error!r}, expected ConfigError") from error
        raise RequirementError(f"{what}: a pool was opened, expected ConfigError")
    node = world.slot_node(SMALL, 4)
    content = _content(1, (1, 2), SMALL)
    node.cache.write((1, 2), content)
    node.end(node.save((1, 2), (3, 0)))
    node.slots.check((3, 0), content, "slots after others were refused")
