"""Part `slots`, what is copied: blocks come back from their slots as they were, and nothing else changes."""

from __future__ import annotations

import contextlib
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.conformance.checks import RequirementError, eventually, require, require_equal, require_raises
from kvbridge.conformance.node import Node
from kvbridge.conformance.requirement import must
from kvbridge.conformance.values import CANARY, Geometry, PagesValue, packed, require_same
from kvbridge.errors import SpecMismatchError
from kvbridge.memory import Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvbridge.conformance.slot_node import SlotNode
    from kvbridge.conformance.world import World
    from kvbridge.memory import Region

GEOMETRIES = (
    Geometry((4096,), 40),
    Geometry((4096, 512, 24), 40, first_block=1),
    Geometry((4096, 1000, 7), 40, gap=24, first_block=1),
    Geometry((96, 3), 40, gap=5, first_block=1),
)
"""Caches of one region and of several, whose pages adjoin or do not."""

SLOTS = 24

BLOCKS = (
    tuple(range(8, 20)),
    tuple(range(30, 18, -1)),
    (1, 2, 3, 7, 8, 9, 10, 20, 25, 26, 27, 39),
    (21, 4, 33, 12, 39, 1, 17, 28, 9, 36, 2, 25),
)
"""Adjacent, backwards, with gaps, scattered."""

INTO = (
    tuple(range(3, 15)),
    tuple(range(23, 11, -1)),
    (0, 1, 2, 5, 6, 9, 10, 11, 12, 20, 22, 23),
    (13, 4, 22, 0, 17, 8, 11, 23, 2, 19, 6, 15),
)
"""The same of slots."""

LARGE = Geometry((65536,), 512)
"""32 MiB: no thread has copied them before another one has done something."""

TURNS = 5

SHORT = 0.002
"""Seconds that no call is too long for."""

LATE = 0.3
"""Seconds within which bytes that come too late have come."""


def _content(seed: int, blocks: Sequence[int], geometry: Geometry) -> NDArray[np.uint8]:
    return packed(PagesValue(seed, tuple(blocks), geometry))


def _all(geometry: Geometry) -> tuple[int, ...]:
    return tuple(range(geometry.first_block, geometry.num_blocks))


def _there_and_back(
    node: SlotNode, seed: int, blocks: Sequence[int], slots: Sequence[int], back: Sequence[int]
) -> None:
    """Copy blocks into slots and from there into other blocks; check all of the memory both times."""
    content = _content(seed, blocks, node.cache.geometry)
    node.slots.clear()
    node.cache.write(range(node.cache.geometry.num_blocks), None)
    node.cache.write(blocks, content)
    node.end(node.save(blocks, slots))
    node.slots.check(slots, content, f"blocks {list(blocks)} in slots {list(slots)}")
    node.cache.check(blocks, content, "the blocks that were copied")
    node.cache.write(blocks, None)
    node.end(node.load(slots, back))
    node.cache.check(back, content, f"slots {list(slots)} in blocks {list(back)}")
    node.slots.check(slots, content, "the slots that were copied")


@must("slots/01-regions", needs=("slots",))
def test_regions(world: World) -> None:
    """A pool has a region in host memory for each of the cache, with pages of equal size, and its slots from 0 on."""
    for geometry in GEOMETRIES:
        node = world.slot_node(geometry, SLOTS)
        found = [(region.page_bytes, region.first_block, region.num_blocks) for region in node.pool.regions]
        require_equal(found, [(size, 0, SLOTS) for size in geometry.page_bytes], "pages, first slot and slots")
        for index, rows in enumerate(node.slots.rows):
            rows[:] = index + 1
        apart = [bool((rows == index + 1).all()) for index, rows in enumerate(node.slots.rows)]
        require(all(apart), "regions of slots overlap")


@must("slots/02-there-and-back", needs=("slots",))
def test_there_and_back(world: World) -> None:
    """Blocks come back equal byte for byte: adjacent, backwards, with gaps and scattered, from slots likewise."""
    for geometry in GEOMETRIES:
        node = world.slot_node(geometry, SLOTS)
        for seed, (blocks, slots, back) in enumerate(itertools.product(BLOCKS, INTO, BLOCKS)):
            _there_and_back(node, seed, blocks, slots, back)


@must("slots/03-nothing-else", needs=("slots",))
def test_nothing_else(world: World) -> None:
    """No other slot or block changes, nor a byte between two: at the first, the last, with one, with all, with none."""
    for geometry in GEOMETRIES:
        node = world.slot_node(geometry, SLOTS)
        first, last = geometry.first_block, geometry.num_blocks - 1
        middle = tuple(range(5, 5 + SLOTS))
        _there_and_back(node, 1, (first,), (0,), (first,))
        _there_and_back(node, 2, (last,), (SLOTS - 1,), (last,))
        _there_and_back(node, 3, (first, last), (SLOTS - 1, 0), (last, first))
        _there_and_back(node, 4, middle, tuple(range(SLOTS)), _all(geometry)[-SLOTS:])
        _there_and_back(node, 5, (), (), ())


@must("slots/04-own-ids", needs=("slots",))
def test_own_ids(world: World) -> None:
    """Pages that name other blocks in each region, or some of the regions only, are copied as they say."""
    node = world.slot_node(GEOMETRIES[2], SLOTS)
    cache, slots = node.cache.regions, tuple(node.pool.regions)
    blocks, into = [np.asarray(ids) for ids in BLOCKS[1:]], [np.asarray(ids) for ids in INTO[1:]]
    node.cache.write(_all(node.cache.geometry), _content(1, _all(node.cache.geometry), node.cache.geometry))
    node.end(node.pool.copy(Pages(cache, tuple(blocks)), Pages(slots, tuple(into))))
    for index in range(len(cache)):
        found, expected = node.slots.rows[index], _rows(cache[index])
        require_same(found[into[index]].reshape(-1), expected[blocks[index]].reshape(-1), f"the slots of {index}")
    node.cache.write(range(node.cache.geometry.num_blocks), None)
    node.end(node.pool.copy(Pages(slots[1:], tuple(into[1:])), Pages(cache[1:], tuple(blocks[1:]))))
    for index in range(1, len(cache)):
        found, expected = _rows(cache[index]), node.slots.rows[index]
        require_same(found[blocks[index]].reshape(-1), expected[into[index]].reshape(-1), f"the blocks of {index}")
    untouched = _rows(cache[0])
    require((untouched == CANARY).all(), "blocks of a region that was not named were written")


def _rows(region: Region) -> NDArray[np.uint8]:
    return region.rows().view(np.uint8)


@must("slots/05-large", needs=("slots",))
def test_large(world: World) -> None:
    """Hundreds of scattered blocks, tens of MiB, come back equal."""
    geometry = Geometry((32768, 16384, 1000), 700, gap=8, first_block=1)
    node = world.slot_node(geometry, 600)
    random = np.random.default_rng(1)
    blocks, back = (tuple((1 + random.permutation(699)[:600]).tolist()) for _ in range(2))
    _there_and_back(node, 1, blocks, tuple(random.permutation(600).tolist()), back)
    _there_and_back(node, 2, tuple(range(1, 601)), tuple(range(600)), tuple(range(100, 700)))


@must("slots/06-several", needs=("slots",))
def test_several(world: World) -> None:
    """Of copies that are under way at the same time, in both directions, each brings what it was to bring."""
    geometry = Geometry((4096, 512), 640)
    node = world.slot_node(geometry, 320)
    orders = [tuple(range(10 * index, 10 * index + 10)) for index in range(32)]
    contents = [_content(index, orders[index], geometry) for index in range(32)]
    for ids, content in zip(orders[:16], contents[:16], strict=True):
        node.cache.write(ids, content)
    for ids, content in zip(orders[16:], contents[16:], strict=True):
        node.slots.write(ids, content)
    back = [tuple(block + 320 for block in reversed(ids)) for ids in orders]
    moves = [
        move
        for save, load in zip(range(16), range(16, 32), strict=True)
        for move in (node.save(orders[save], orders[save]), node.load(orders[load], back[load]))
    ]
    for move in reversed(moves):
        node.end(move)
    node.slots.written.update(range(160))
    node.cache.written.update(block for ids in back[16:] for block in ids)
    for index in range(16):
        node.slots.check(orders[index], contents[index], f"save {index} of many")
        node.cache.check(back[index + 16], contents[index + 16], f"load {index} of many")


@must("slots/07-by-itself", needs=("slots",))
def test_by_itself(world: World) -> None:
    """The bytes of a copy move by themselves, whether anybody calls `step` or not."""
    geometry = Geometry((65536, 512), 64)
    node = world.slot_node(geometry, 64)
    content = _content(1, range(64), geometry)
    node.cache.write(range(64), content)
    save = node.save(range(64), range(64))
    _comes(partial(node.slots.check, range(64), content, "a copy into slots that nobody stepped"))
    node.end(save)
    node.cache.write(range(64), None)
    load = node.load(range(64), range(63, -1, -1))
    _comes(partial(node.cache.check, range(63, -1, -1), content, "a copy out of slots that nobody stepped"))
    node.end(load)


def _comes(check: Callable[[], None]) -> None:
    """Wait until a check finds nothing wrong; the last one counts."""

    def there() -> bool:
        try:
            check()
        except RequirementError:
            return False
        return True

    with contextlib.suppress(RequirementError):
        eventually(there, Node.wait, str)
    check()


@must("slots/08-at-once", needs=("slots",))
def test_at_once(world: World) -> None:
    """`copy` returns at once: it does not take half as long as a plain copy of as many bytes."""
    node = world.slot_node(LARGE, LARGE.num_blocks)
    blocks = range(LARGE.num_blocks)
    plain = np.ones(PagesValue(1, tuple(blocks), LARGE).nbytes, dtype=np.uint8)
    target = np.zeros_like(plain)
    copies: list[float] = []
    calls: dict[str, list[float]] = {"into slots": [], "out of slots": []}
    for _ in range(TURNS):  # whatever else the machine does may make a call last: the quickest counts
        start = time.perf_counter()
        np.copyto(target, plain)
        copies.append(time.perf_counter() - start)
        for what, begin in (("into slots", node.save), ("out of slots", node.load)):
            start = time.perf_counter()
            move = begin(blocks, blocks)
            calls[what].append(time.perf_counter() - start)
            node.end(move)
    limit = max(SHORT, min(copies) / 2)
    for what, seconds in calls.items():
        require(
            min(seconds) < limit,
            f"copy {what} returned after {min(seconds) * 1000:.1f} ms, expected under {limit * 1000:.1f} ms",
        )


@must("slots/09-done", needs=("slots",))
def test_done(world: World) -> None:
    """A copy that is done has all of its bytes, needs its source no more, and writes no more to its target."""
    node = world.slot_node(LARGE, LARGE.num_blocks)
    blocks = range(LARGE.num_blocks)
    content = _content(1, blocks, LARGE)
    for _ in range(TURNS):
        node.slots.clear()
        node.cache.write(blocks, content)
        node.end(node.save(blocks, blocks))
        node.cache.mark(blocks)
        node.slots.check(blocks, content, "slots whose source was written over when the copy was done")
        node.end(node.load(blocks, blocks))
        node.cache.mark(blocks)
        time.sleep(LATE / TURNS)
        node.cache.check_marked(blocks, "blocks that were written over when the copy to them was done")


@must("slots/10-wrong-pages", needs=("slots",))
def test_wrong_pages(world: World) -> None:
    """Pages of another size or number than those that they are to be copied to are refused with SpecMismatchError."""
    geometry = GEOMETRIES[1]
    node = world.slot_node(geometry, SLOTS)
    turned = tuple(reversed(node.pool.regions))
    cases = {
        "one slot too few": lambda: node.save((1, 2, 3), (0, 1)),
        "one block too few": lambda: node.load((0, 1, 2), (1, 2)),
        "regions in another order": lambda: node.pool.copy(node.cache.pages((1,)), Pages.of(turned, (0,))),
        "a region too few": lambda: node.pool.copy(node.cache.pages((1,)), Pages.of(node.pool.regions[1:], (0,))),
    }
    for what, call in cases.items():
        require_raises(SpecMismatchError, call, f"a copy with {what}")
    node.slots.check((), _content(1, (), geometry), "slots that nothing fitted")
    _there_and_back(node, 1, BLOCKS[3], INTO[3], BLOCKS[0])
