"""Part `buffer`, what is kept: values come back as they were inserted, in any order, where they are wanted."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.conformance.checks import eventually, require, require_equal, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.together import together
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from kvbridge.errors import CapacityError, KeyDroppedError, KVBridgeError, SpecMismatchError

if TYPE_CHECKING:
    from kvbridge.conformance.values import Value
    from kvbridge.conformance.world import World

MANY = 100

HUGE = 32 << 20
"""Bytes that no thread has copied before another one has done something."""

LATE = 0.3
"""Seconds within which bytes that come too late have come."""


def _through(world: World, values: list[Value]) -> None:
    """Insert all values, then get them back in another order."""
    producer, consumer = world.pair()
    for index, value in enumerate(values):
        producer.insert(f"k{index}", value)
    for index in reversed(range(len(values))):
        consumer.take(world.key(f"k{index}", producer), values[index], verb="select")


@must("buffer/01-value", needs=("buffer", "tensors"))
def test_value(world: World) -> None:
    """A value that was inserted is selected byte for byte."""
    _through(world, [world.value(100_000)])


@must("buffer/02-any-order", needs=("buffer", "tensors"))
def test_any_order(world: World) -> None:
    """Values are selected in any order, whatever the order of their inserts."""
    _through(world, [world.value(3000 + index // 5) for index in range(10)])


@must("buffer/03-before-insert", needs=("buffer", "tensors"))
def test_before_insert(world: World) -> None:
    """A select may come before its insert: it gets the value when that comes."""
    producer, consumer = world.pair()
    value = world.value()
    consumer.begin("early", "select", world.key("k", producer), value, timeout=15)
    time.sleep(0.3)
    producer.insert("k", value)
    consumer.end("early")


@must("buffer/04-dtypes", needs=("buffer", "tensors"))
def test_dtypes(world: World) -> None:
    """Values of every dtype and shape come back equal, scalars and empty ones too."""
    dtypes = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64")
    values: list[Value] = [TensorValue(seed, (33, 3), dtype) for seed, dtype in enumerate(dtypes)]
    values += [TensorValue(50 + seed, shape) for seed, shape in enumerate([(), (0,), (1,), (3, 0), (4097,)])]
    _through(world, values)


@must("buffer/05-large", needs=("buffer", "tensors"))
def test_large(world: World) -> None:
    """A value of the largest size that is claimed comes back equal (tried up to 64 MiB)."""
    largest = min(world.capabilities.max_value_bytes or 64 << 20, 64 << 20)
    _through(world, [TensorValue(seed=1, shape=(largest,))])


@must("buffer/06-pages", needs=("buffer", "pages"))
def test_pages(world: World) -> None:
    """Pages come back in the blocks that the consumer names, and no other byte of his memory is touched."""
    producer, consumer = world.pair()
    geometry = Geometry(page_bytes=(4096, 512), gap=32, first_block=1)
    for seed, ids in enumerate([(9, 2, 5, 3), (1,), (63,), (), tuple(range(20, 40))]):
        value = PagesValue(seed=seed, ids=ids, geometry=geometry)
        producer.insert(f"k{seed}", value)
        into = tuple(range(63, 63 - len(ids), -1))
        consumer.take(world.key(f"k{seed}", producer), value, verb="select", into=into)


@must("buffer/07-many-pages", needs=("buffer", "pages"))
def test_many_pages(world: World) -> None:
    """A value of 5,000 scattered pages comes back equal."""
    page = max(64, min(4096, world.largest() // 5000 // 8 * 8))
    ids = tuple(np.random.default_rng(2).permutation(5000).tolist())
    _through(world, [PagesValue(seed=1, ids=ids, geometry=Geometry(page_bytes=(page,), num_blocks=5000))])


@must("buffer/08-skip", needs=("buffer", "pages"))
def test_skip(world: World) -> None:
    """A consumer that skips the first blocks of every region gets the others."""
    producer, consumer = world.pair()
    value = PagesValue(seed=1, ids=(4, 9, 2, 7, 1), geometry=Geometry(page_bytes=(4096, 512)))
    for skip in (0, 2, 5):
        producer.insert(f"k{skip}", value)
        into = tuple(range(20, 25 - skip))
        consumer.take(world.key(f"k{skip}", producer), value, verb="select", into=into, skip=skip)
        producer.drop([world.here(f"k{skip}")])


@must("buffer/09-wrong-destination", needs=("buffer", "tensors"))
def test_wrong_destination(world: World) -> None:
    """A destination that does not fit is refused with SpecMismatchError, and nothing is written to it."""
    producer = world.peer()
    consumer = world.node(name="consumer")
    producer.insert("k", world.value(1000))
    for wrong in (np.zeros(999, np.uint8), np.zeros(1000, np.int8), np.zeros((10, 100), np.uint8)):
        select = consumer.buffer.select(world.key("k", producer), wrong)
        require_raises(SpecMismatchError, partial(select.wait, 10), "a select into it")
        require(not wrong.any(), "a destination that was refused was written to")


@must("buffer/10-select-leaves", needs=("buffer", "tensors"))
def test_select_leaves(world: World) -> None:
    """A select leaves the value for others: it can be selected again, by anybody."""
    producer, consumer = world.pair()
    other = world.peer(name="other")
    value = world.value(5000)
    producer.insert("k", value)
    key = world.key("k", producer)
    for one in (consumer, other, consumer, producer):
        one.take(key, value, verb="select")


@must("buffer/11-own-home", needs=("buffer", "tensors"))
def test_own_home(world: World) -> None:
    """A peer selects what it inserted itself."""
    node = world.peer()
    value = world.value()
    node.insert("k", value)
    node.take(world.here("k"), value, verb="select")


@must("buffer/12-detached", needs=("buffer", "tensors", "detaches"))
def test_detached(world: World) -> None:
    """An insert ends before anybody asks, and what becomes of its source afterwards changes nothing."""
    producer, consumer = world.pair()
    value = world.value(HUGE)
    producer.begin_insert("k", "k", value)
    producer.overwrite_when_over("k")
    producer.end("k")
    consumer.take(world.key("k", producer), value, verb="select")


@must("buffer/13-detached-pages", needs=("buffer", "pages", "detaches"))
def test_detached_pages(world: World) -> None:
    """The same for pages: the blocks are the engine's again when the insert has ended."""
    producer, consumer = world.pair()
    count = 256
    size = max(64, min(HUGE, world.largest()) // count // 8 * 8)
    geometry = Geometry(page_bytes=(size,), num_blocks=count)
    value = PagesValue(seed=1, ids=tuple(range(count - 1, 0, -2)), geometry=geometry)
    producer.begin_insert("k", "k", value)
    producer.overwrite_when_over("k")
    producer.end("k")
    consumer.take(world.key("k", producer), value, verb="select")


@must("buffer/14-held", needs=("buffer", "tensors"), lacks=("detaches",))
def test_held(world: World) -> None:
    """Without `detaches` an insert ends when the value was taken, dropped or has expired, and not before."""
    producer, consumer = world.pair()
    value = world.value()
    for name in ("taken", "dropped", "expired"):
        producer.begin_insert(name, name, value, lease=1.0 if name == "expired" else 0.0)
    consumer.take(world.key("taken", producer), value)
    producer.end("taken")
    require(not producer.over("dropped"), "the insert has ended, and the value is still held")
    producer.drop([world.here("dropped")])
    producer.end("dropped")
    producer.end("expired")


@must("buffer/15-capacity", needs=("buffer", "tensors", "capacity_bytes"))
def test_capacity(world: World) -> None:
    """What does not fit is refused with CapacityError and its key says so; when there is room again, it fits."""
    producer, consumer = world.pair()
    size = min(world.capabilities.capacity_bytes // 4, world.capabilities.max_value_bytes or 1 << 62)
    held = []
    for index in range(world.capabilities.capacity_bytes // size + 1):
        value = TensorValue(seed=index, shape=(size,))
        try:
            producer.insert(f"k{index}", value)
            held.append((f"k{index}", value))
        except CapacityError:
            break
    else:
        require(holds=False, otherwise=f"{len(held)} values of {size} bytes were taken: more than capacity_bytes")
    require(held, "not even one value of a quarter of the capacity fits")
    consumer.begin_claim("c", world.key(f"k{len(held)}", producer), take=False, timeout=5)
    if world.capabilities.tombstones:
        require_raises(KeyDroppedError, lambda: consumer.end("c"), "asking for the value that did not fit")
    producer.drop([world.here(name) for name, _ in held])
    eventually(lambda: _fits(producer, size), 10, lambda: "there is still no room after all values were dropped")


def _fits(producer: object, size: int) -> bool:
    try:
        producer.insert("again", TensorValue(seed=99, shape=(size,)))  # type: ignore[attr-defined]
    except CapacityError:
        return False
    return True


@must("buffer/16-too-large", needs=("buffer", "tensors", "max_value_bytes"))
def test_too_large(world: World) -> None:
    """A value that is larger than `max_value_bytes` is refused with CapacityError, and nothing else suffers."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value)
    large = TensorValue(seed=1, shape=(world.capabilities.max_value_bytes + 1,))
    require_raises(CapacityError, lambda: producer.insert("large", large), "inserting it")
    consumer.take(world.key("k", producer), value, verb="select")


@must("buffer/17-many", needs=("buffer", "tensors"))
def test_many(world: World) -> None:
    """A hundred values under way at the same time, half of them asked for before they come, each come back equal."""
    producer, consumer = world.pair()
    values = [world.value(1 + (index * 7919) % 20_000) for index in range(MANY)]
    order = np.random.default_rng(3).permutation(MANY).tolist()

    def ask(indices: list[int]) -> None:
        for index in indices:
            consumer.begin(f"s{index}", "select", world.key(f"k{index}", producer), values[index], timeout=20)

    ask(order[: MANY // 2])
    for index, value in enumerate(values):
        producer.begin_insert(f"k{index}", f"k{index}", value)
    ask(order[MANY // 2 :])
    for index in order:
        consumer.end(f"s{index}")


@must("buffer/18-users", needs=("buffer", "tensors"))
def test_users(world: World) -> None:
    """Threads use one buffer at the same time: each gets what it asks for."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")

    def user(number: int) -> None:
        for turn in range(10):
            value = TensorValue(seed=1000 * number + turn, shape=(2000 + number,))
            name = f"{number}.{turn}"
            out = consumer.destination(value)
            selected = consumer.buffer.select(world.key(name, producer), out, timeout=15)
            inserted = producer.buffer.insert(world.here(name), producer.source(value))
            selected.wait(20)
            consumer.check(value, out)
            producer.buffer.drop([world.here(name)])
            inserted.wait(20)

    together([partial(user, number) for number in range(6)], 50)


@must("buffer/19-not-contiguous", needs=("buffer", "tensors"))
def test_not_contiguous(world: World) -> None:
    """A source that is not contiguous is refused or comes back equal, and the buffer stays usable."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")
    odd = np.arange(100, dtype=np.int32).reshape(10, 10).T
    out = np.zeros((10, 10), dtype=np.int32)
    try:
        inserted = producer.buffer.insert(world.here("odd"), odd)
        consumer.buffer.select(world.key("odd", producer), out, timeout=1.0).wait(5)
        require(np.array_equal(out, odd), "the value came back, and is not equal")
        producer.buffer.drop([world.here("odd")])
        inserted.wait(10)
    except KVBridgeError:  # refused
        pass
    value = world.value()
    producer.insert("k", value)
    consumer.take(world.key("k", producer), value, verb="select")


@must("buffer/39-final", needs=("buffer", "tensors"))
def test_final(world: World) -> None:
    """When a transfer is over its destination is its owner's: not a byte is written to it any more."""
    producer, consumer = world.pair()
    for name in ("a", "b", "c"):  # how far a thread of the backend's is by then is a matter of luck
        value = world.value(HUGE)
        producer.begin_insert(name, name, value)
        consumer.begin(name, "select", world.key(name, producer), value)
        consumer.mark_when_over(name)
        require_equal(consumer.await_over(name), "", "the code of a select's error")
        time.sleep(LATE)
        consumer.require_marked(name)
        producer.drop([world.here(name)])
