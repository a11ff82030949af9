"""Part `fault`, transfers that go wrong: memory is its owner's when a transfer is over, and not before."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Landing, MoveState, Transport
from kvbridge.conformance.checks import eventually, require, require_equal, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.resources import BATCHES, grown_each_time
from kvbridge.conformance.values import CANARY, Geometry, PagesValue, TensorValue
from kvbridge.conformance.world import LATER
from kvbridge.errors import CancelledError, HandshakeError, KVBridgeError, TransportError
from kvbridge.layers.faulty import MOMENTS
from kvbridge.memory import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.node import Node
    from kvbridge.conformance.world import World
    from kvbridge.layers.faulty import When

LARGE = 8 << 20

HUGE = 32 << 20
"""Bytes that no thread has moved before another one has done something."""

SOON = 5.0

TURNS = 20

TRIES = 8
"""How often a transfer is aborted, or fails, while a backend's own threads work."""

SHORT = 0.02
"""Seconds within which a thread has ended what it was about."""

LATE = 0.3
"""Seconds within which bytes that come too late have come."""


def _begin(world: World, name: str, producer: Any, consumer: Any, nbytes: int = LARGE) -> TensorValue:
    value = world.value(nbytes)
    producer.begin_insert(name, name, value)
    consumer.begin(name, "select", world.key(name, producer), value, timeout=30)
    return value


def _await_stop(world: World, producer: Any, consumer: Any) -> None:
    who, where = world.moving
    (producer if who == "producer" else consumer).await_paused(where)


def _resume(world: World, producer: Any, consumer: Any) -> None:
    who, where = world.moving
    (producer if who == "producer" else consumer).resume(where)


def _tries(when: When) -> int:
    """Return how often to try it: where a backend's own threads are is a matter of luck."""
    return TRIES if when == "asked" else 1


def _aborts(world: World, begin: Callable[[str, Any, Any], object]) -> None:
    """Cancel transfers where they stop, and mark their destinations when they are over: no byte may land there."""
    who, where = world.moving
    for when in MOMENTS:
        producer, consumer = world.pair(**world.stopped(when, slices=0))
        names = [f"k{turn}" for turn in range(_tries(when))]
        for name in names:
            (producer if who == "producer" else consumer).expect_pause(where)
            begin(name, producer, consumer)
            consumer.mark_when_over(name)
            if who == "consumer":
                consumer.cancel_when_paused(name, where)
            else:
                producer.await_paused(where)
                consumer.cancel(name)
            if consumer.await_over(name, SOON):
                require_raises(CancelledError, partial(consumer.end, name), "a cancelled transfer")
            time.sleep(SHORT if name != names[-1] else LATE)
            consumer.require_marked(name)
            producer.drop([world.here(name)])
            producer.await_over(name, SOON)
        world.close()


@must("fault/20-abort", needs=("buffer", "tensors"), transport=True)
def test_abort(world: World) -> None:
    """When a cancelled transfer is over, its destination is its owner's: not a byte lands there any more."""
    _aborts(world, lambda name, producer, consumer: _begin(world, name, producer, consumer, HUGE))


@must("fault/21-abort-pages", needs=("buffer", "pages"), transport=True)
def test_abort_pages(world: World) -> None:
    """The same for pages: blocks go back to the engine when the transfer is over, and nothing lands in them."""
    count = 256
    size = max(64, min(HUGE, world.largest()) // count // 8 * 8)
    geometry = Geometry(page_bytes=(size,), num_blocks=count)
    value = PagesValue(seed=1, ids=tuple(range(0, count, 2)), geometry=geometry)

    def begin(name: str, producer: Any, consumer: Any) -> None:
        producer.begin_insert(name, name, value)
        consumer.begin(name, "select", world.key(name, producer), value, timeout=30)

    _aborts(world, begin)


@must("fault/22-failing-step", needs=("buffer", "tensors"), transport=True)
def test_failing_step(world: World) -> None:
    """A transfer whose backend fails ends with TransportError, its destination is free, and the next one works."""
    for when in LATER:
        tries = _tries(when)
        producer, consumer = world.pair(**world.stopped(when, "fail", tries))
        value = world.value(HUGE)
        producer.begin_insert("k", "k", value)
        for turn in range(tries):
            name = f"failing {turn}"
            consumer.begin(name, "select", world.key("k", producer), value, timeout=30)
            consumer.mark_when_over(name)
            require_raises(TransportError, partial(consumer.end, name, SOON), "a transfer whose step failed")
            time.sleep(SHORT if turn < tries - 1 else LATE)
            consumer.require_marked(name)
        consumer.take(world.key("k", producer), value, verb="select")
        world.close()


@must("fault/23-slow-peer", needs=("buffer", "tensors"), transport=True)
def test_slow_peer(world: World) -> None:
    """A transfer that stands still holds up no other: neither of the same peers nor of others."""
    producer, consumer = world.pair(**world.stopped())
    other = world.peer(name="other")
    _begin(world, "slow", producer, consumer)
    _await_stop(world, producer, consumer)
    for number, one in enumerate((other, consumer, other)):
        value = world.value(50_000)
        producer.insert(f"k{number}", value)
        one.take(world.key(f"k{number}", producer), value, verb="select")
    _resume(world, producer, consumer)
    consumer.end("slow")


@must("fault/24-producer-closes", needs=("buffer", "tensors"), transport=True)
def test_producer_closes(world: World) -> None:
    """When a producer closes in the middle of a transfer, its consumer's ends soon: right, or with an error."""
    for what, when in itertools.product(("close_buffer", "close_endpoint"), LATER):
        producer, consumer = world.pair(**world.stopped(when))
        _begin(world, "k", producer, consumer)
        _await_stop(world, producer, consumer)
        who, where = world.moving
        if who == "producer":
            producer.resume(where)
        getattr(producer, what)()
        if who == "consumer":
            consumer.resume(where)
        if not consumer.await_over("k", SOON):
            consumer.end("k")
        world.close()


@must("fault/25-consumer-closes", needs=("buffer", "tensors"), transport=True)
def test_consumer_closes(world: World) -> None:
    """When a consumer closes in the middle of a transfer, it ends there at once and its producer has its value back."""
    for what, when in itertools.product(("close_buffer", "close_endpoint"), LATER):
        producer, consumer = world.pair(**world.stopped(when))
        _begin(world, "k", producer, consumer)
        consumer.mark_when_over("k")
        _await_stop(world, producer, consumer)
        getattr(consumer, what)()
        require(consumer.over("k") or consumer.await_over("k", SOON), "the transfer succeeded after its buffer closed")
        time.sleep(LATE)
        consumer.require_marked("k")
        producer.drop([world.here("k")])
        producer.await_over("k", SOON)
        producer.await_stats(entries=0, bytes=0)
        world.close()


@must("fault/26-twice", needs=("buffer", "tensors"))
def test_twice(world: World) -> None:
    """Control messages that arrive twice, and late, change nothing: each value comes once and every end is right."""
    producer, consumer = world.pair(producer={"echo": True}, consumer={"echo": True})
    verb = "drop_select" if world.capabilities.takes else "select"
    values = [world.value(500_000) for _ in range(10)]
    for index, value in enumerate(values):
        consumer.begin(f"s{index}", verb, world.key(f"k{index}", producer), value, timeout=15)
        producer.begin_insert(f"k{index}", f"k{index}", value)
    for index in range(len(values)):
        consumer.end(f"s{index}")
    producer.drop([world.here(f"k{index}") for index in range(len(values))])
    for index in range(len(values)):
        producer.await_over(f"k{index}")
    producer.await_stats(entries=0, bytes=0)
    counters = {**producer.counters(), **consumer.counters()}
    require_equal(counters.get("internal_errors", 0), 0, "internal errors")


@must("fault/27-twice-pipe", needs=("pipe", "tensors"))
def test_twice_pipe(world: World) -> None:
    """The same for a pipe: what is offered twice is delivered once, in order."""
    sender, receiver = world.linked(producer={"echo": True}, consumer={"echo": True})
    values = [world.value(20_000) for _ in range(10)]
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
    for value in values:
        receiver.recv("c", value)
    for index in range(len(values)):
        sender.end(f"v{index}")
    require_equal(receiver.peek("c", 0.2), None, "what is offered after everything was delivered")


@must("fault/28-handshake", needs=("buffer", "tensors"), lacks=("shared",))
def test_handshake(world: World) -> None:
    """Peers whose KV differs in meaning refuse each other before a byte moves, naming each field and both values."""
    producer = world.peer(name="producer", fingerprint={"model": "llama", "dtype": "bf16", "heads": "8"})
    consumer = world.peer(name="consumer", fingerprint={"model": "llama", "dtype": "fp8", "heads": "4"})
    value = world.value()
    producer.insert("k", value)
    call = partial(consumer.take, world.key("k", producer), value, verb="select", timeout=15)
    start = time.monotonic()
    said = str(require_raises(HandshakeError, call, "a select from a peer with another fingerprint"))
    require(time.monotonic() - start < SOON, "the refusal took as long as a timeout")
    missing = [word for word in ("dtype", "bf16", "fp8", "heads", "8", "4") if word not in said]
    require(not missing, f"the refusal does not say {', '.join(missing)}: {said}")
    right = world.peer(name="right", fingerprint={"model": "llama", "dtype": "bf16", "heads": "8"})
    right.take(world.key("k", producer), value, verb="select")


@must("fault/29-strangers", needs=("buffer", "tensors"))
def test_strangers(world: World) -> None:
    """Whatever strangers send to the control port is dropped: nothing dies, nothing hangs, peers go on."""
    producer, consumer = world.pair()
    host, _, port = producer.where()[0].removeprefix("tcp://").rpartition(":")
    noise = random.Random(1).randbytes  # noqa: S311 - the same every time
    for content in (b"", b"GET / HTTP/1.1\r\n\r\n", noise(1000), b"\xff" * 10 + noise(100_000), b"\x00" * 64):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            try:
                stranger.sendall(content)
            except OSError:
                continue  # it hung up on us: as it should
    value = world.value()
    producer.insert("k", value)
    consumer.take(world.key("k", producer), value, verb="select")


@must("fault/30-nonsense-descriptor", needs=("buffer", "tensors"), transport=True)
def test_nonsense_descriptor(world: World) -> None:
    """A descriptor that is nonsense ends with an error of kvbridge, and nothing is written to the destination."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")
    value = world.value(4000)
    producer.insert("k", value)
    consumer.take(world.key("k", producer), value, verb="select")
    if world.capabilities.mover == "producer":
        return  # a producer's descriptor is not read: the word of the producer is waited for
    noise = random.Random(2).randbytes  # noqa: S311 - the same every time
    for descriptor in (b"", b"\x00", b"\xff" * 64, noise(100), noise(4096)):
        out = np.full(4000, CANARY, dtype=np.uint8)
        error = _land(consumer, descriptor, out)
        require(
            isinstance(error, KVBridgeError),
            f"landing with {descriptor[:16]!r}: {error!r}, expected one of kvbridge.errors",
        )
        require((out == CANARY).all(), f"landing with {descriptor[:16]!r} wrote to the destination")
    producer.insert("after", value)
    consumer.take(world.key("after", producer), value, verb="select")


def _land(node: Node, descriptor: bytes, out: Any) -> BaseException | None:
    """Land with a descriptor on the endpoint's thread; return what it raised."""
    spec = TensorSpec("uint8", (out.size,), 1, "numpy")
    found: list[BaseException | None] = []
    done = threading.Event()
    backend = node.backend
    if not isinstance(backend, Transport):
        return None

    def land() -> None:
        try:
            _advance(node, backend.land(node.links[0], spec, descriptor, out, 0), found, done)
        except Exception as error:  # what is looked for
            found.append(error)
            done.set()

    node.endpoint.call_soon(land)
    require(done.wait(SOON), "landing with a nonsense descriptor did not end")
    return found[0]


def _advance(node: Node, landing: Landing, found: list[BaseException | None], done: threading.Event) -> None:
    until = time.monotonic() + 1.0

    def step() -> bool | None:
        if time.monotonic() > until:
            landing.abort()  # it waits for bytes that never come: the core would have given up, too
        try:
            state = landing.step()
        except Exception as error:  # what is looked for
            found.append(error)
        else:
            if state is not MoveState.DONE:
                return False
            found.append(None)
        done.set()
        return None

    node.endpoint.move(step)


@must("fault/31-nothing-left", needs=("buffer", "tensors"))
def test_nothing_left(world: World) -> None:
    """Transfers that fail, are cancelled or expire leave nothing behind: no thread, descriptor, file or memory."""
    producer, consumer = world.node(name="producer"), world.node(name="consumer")

    def turn(number: int) -> None:
        value = world.value(100_000)
        producer.insert(f"taken{number}", value)
        consumer.take(world.key(f"taken{number}", producer), value, verb="select")
        producer.drop([world.here(f"taken{number}")])
        producer.insert(f"cancelled{number}", value)
        consumer.begin("s", "select", world.key(f"cancelled{number}", producer), value, timeout=15)
        consumer.cancel("s")
        consumer.await_over("s", SOON)
        producer.begin_insert("e", f"expired{number}", value, lease=0.1)
        consumer.begin("u", "select", world.key(f"unknown{number}", producer), value, timeout=0.1)
        require(consumer.await_over("u", SOON), "a key that nobody inserted gave a value")
        producer.drop([world.here(f"cancelled{number}")])
        producer.await_over("e", SOON)

    slack = {"descriptors": TURNS // 4, "resident": 24 << 20, "shared": TURNS // 2, "files": TURNS // 2}
    numbers = itertools.count()
    for _ in range(3):
        turn(next(numbers))

    def turns() -> None:
        for _ in range(TURNS):
            turn(next(numbers))
        eventually(lambda: producer.stats()["bytes"] == 0, SOON, lambda: f"bytes are still held: {producer.stats()}")

    found = grown_each_time(turns, slack)
    require_equal(found, {}, f"what {TURNS} failures left behind, {BATCHES} times")
