"""Part `perf`: what a backend should not cost. Ratios within one run, never seconds alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.abc import MoveState
from kvbridge.conformance.checks import require
from kvbridge.conformance.requirement import should
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue

if TYPE_CHECKING:
    from kvbridge.conformance.world import World

IDLE_SECONDS = 3.0
IDLE_SHARE = 0.05
"""Share of a core that an idle peer may use."""

COPIES = 40
"""How many plain copies of the same pages a hand-over may take."""

GROWTH = 4.0
"""How much dearer an operation may be with a thousand values held than with ten."""

HUGE = 64 << 20

SAVES = 4
"""Saves under way when a load begins."""

TURNS = 5

SHORT = 0.005
"""Seconds that no call is too long for."""


@should("perf/01-idle", needs=("buffer",))
def test_idle(world: World) -> None:
    """An idle pair of peers uses less than a twentieth of a core: nothing spins."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")
    value = world.value()
    producer.insert("k", value)
    consumer.take(world.key("k", producer), value, verb="select")
    before = time.process_time()
    time.sleep(IDLE_SECONDS)
    share = (time.process_time() - before) / IDLE_SECONDS / 2
    require(share < IDLE_SHARE, f"two idle peers used {share:.1%} of a core each, expected less than {IDLE_SHARE:.0%}")


@should("perf/02-pages", needs=("buffer", "pages"))
def test_pages(world: World) -> None:
    """Handing over thousands of scattered pages costs no more than some tens of plain copies: no loop over pages."""
    count = 4000
    size = max(64, min(4096, world.largest() // count // 8 * 8))
    order = tuple(np.random.default_rng(1).permutation(count).tolist())
    value = PagesValue(seed=1, ids=order, geometry=Geometry(page_bytes=(size,), num_blocks=count))
    producer, consumer = world.node(name="producer"), world.node(name="consumer")
    memory = np.zeros((count, size), dtype=np.uint8)
    ratios = []
    for turn in range(5):
        start = time.perf_counter()
        np.take(memory, order, axis=0)
        plain = time.perf_counter() - start
        source, out = producer.source(value), consumer.destination(value)
        start = time.perf_counter()
        inserted = producer.buffer.insert(world.here(f"k{turn}"), source)
        consumer.buffer.select(world.key(f"k{turn}", producer), out).wait(30)
        ratios.append((time.perf_counter() - start) / plain)
        producer.buffer.drop([world.here(f"k{turn}")])
        inserted.wait(30)
    best = min(ratios)
    require(best < COPIES, f"{count} pages of {size} bytes took {best:.0f} times a plain copy, expected under {COPIES}")


@should("perf/03-flat", needs=("buffer", "tensors"))
def test_flat(world: World) -> None:
    """The cost of an operation does not grow with the number of values held."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")

    def seconds(held: int) -> float:
        for index in range(held):
            producer.insert(f"{held}.{index}", TensorValue(seed=1, shape=(16,)))
        keys = [world.key(f"{held}.{index % held}", producer) for index in range(40)]
        out = np.zeros(16, dtype=np.uint8)
        found = []
        for key in keys:
            start = time.perf_counter()
            consumer.buffer.select(key, out).wait(30)
            found.append(time.perf_counter() - start)
        return sorted(found)[len(found) // 4]

    few = seconds(10)
    many = seconds(1000)
    require(many < GROWTH * few, f"a select took {many / few:.1f} times as long with 1,000 values held than with 10")


@should("perf/04-slices", needs=("buffer", "tensors"), transport=True)
def test_slices(world: World) -> None:
    """No call into the backend keeps its thread for long: none lasts half as long as a copy of a whole large value."""
    producer = world.node(name="producer", metered=True)
    consumer = world.node(name="consumer", metered=True)
    value = world.value(HUGE)
    plain, target = np.ones(value.nbytes, dtype=np.uint8), np.zeros(value.nbytes, dtype=np.uint8)
    found: dict[str, list[float]] = {}
    copies = []
    for turn in range(5):  # whatever else the machine does may make a call last: the quickest counts
        start = time.perf_counter()
        np.copyto(target, plain)
        copies.append(time.perf_counter() - start)
        producer.insert(f"k{turn}", value)
        consumer.take(world.key(f"k{turn}", producer), value, verb="select")
        producer.drop([world.here(f"k{turn}")])
        producer.flush()
        for meter in (producer.meter, consumer.meter):
            for what, seconds in meter.slowest.items():
                found.setdefault(what, []).append(seconds)
            meter.slowest.clear()
    limit = max(SHORT, min(copies) / 2)
    slow = {what: min(seconds) for what, seconds in found.items() if min(seconds) > limit}
    require(
        not slow,
        f"calls that took longer than {limit * 1000:.1f} ms, half a copy of {value.nbytes} bytes: "
        + ", ".join(f"{what}, {seconds * 1000:.1f} ms" for what, seconds in slow.items()),
    )


@should("perf/05-load-first", needs=("slots",))
def test_load_first(world: World) -> None:
    """A load is not held up behind saves: blocks that a request waits for come before many that are kept for later."""
    geometry = Geometry(page_bytes=(65536,), num_blocks=512)
    node = world.slot_node(geometry, 1 + SAVES * geometry.num_blocks)
    whole = geometry.num_blocks
    for _ in range(TURNS):  # whatever else the machine does may hold up a load: once it comes first
        saves = [node.save(range(whole), range(1 + turn * whole, 1 + (turn + 1) * whole)) for turn in range(SAVES)]
        node.end(node.load((0,), (0,)))
        first = saves[-1].step() is not MoveState.DONE
        for save in saves[:-1] if not first else saves:
            node.end(save)
        if first:
            return
    require(False, f"{TURNS} times a load of one block ended after {SAVES} saves of {whole} blocks")
