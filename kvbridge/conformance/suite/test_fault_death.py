"""Part `fault`, peers that die, stop or come again: whoever is left hears of it, keeps his memory, and goes on."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kvbridge.conformance.checks import eventually, require, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.resources import unused
from kvbridge.conformance.values import TensorValue
from kvbridge.conformance.world import LATER
from kvbridge.errors import KVBridgeError, PeerLostError, PipeBrokenError
from kvbridge.layers.faulty import MOMENTS

if TYPE_CHECKING:
    from kvbridge.conformance.world import World

NOTICED = 5.0
"""Seconds within which the death of a process is noticed by who waits for it."""

PROMISE = 20.0
"""Seconds after which nothing is held any more for a consumer that is not heard of."""

PATIENCE = 1.5
"""`peer_timeout` of tests in which a peer is stopped."""

LONG = 30.0

LARGE = 8 << 20

HUGE = 64 << 20
"""Bytes that are more than sockets hold."""

CLOSES = 2.0
"""Seconds in which a backend closes."""


def _goes_on(world: World, producer: Any, consumer: Any) -> str:
    """Check that two peers still work with each other; return the name of the value that they did it with."""
    value = world.value(5000)
    name = f"on{value.seed}"
    producer.insert(name, value)
    consumer.take(world.key(name, producer), value, verb="select")
    return name


@must("fault/01-waiting-for-the-dead", needs=("buffer", "tensors"), lacks=("shared",), processes=True)
def test_waiting_for_the_dead(world: World) -> None:
    """Who waits for a producer that is killed hears of it within 5 s, with PeerLostError; other peers go on."""
    producer, consumer = world.pair()
    other = world.peer(name="other")
    value = world.value()
    producer.insert("k", value)
    consumer.claim("held", world.key("k", producer), take=False)
    never = world.key("never", producer)
    consumer.begin("select", "select", never, value, timeout=LONG)
    consumer.begin_claim("claim", never, take=False, timeout=LONG)
    producer.kill()
    for name in ("select", "claim"):
        require_raises(PeerLostError, partial(consumer.end, name, NOTICED), name)
    consumer.begin_fill("fill", "held", value)
    code = consumer.await_over("fill", NOTICED)
    if not code:
        consumer.end("fill")
    _goes_on(world, other, consumer)


@must("fault/02-producer-dies", needs=("buffer", "tensors"), processes=True, transport=True)
def test_producer_dies(world: World) -> None:
    """When a producer is killed in mid-transfer, its consumer's transfer ends within 5 s: right, or with an error."""
    for when in MOMENTS:
        who, where = world.moving
        settings = world.stopped(when, "kill" if who == "producer" else "pause")
        producer, consumer = world.pair(**settings)
        other = world.peer(name="other")
        value = world.value(LARGE)
        producer.begin_insert("k", "k", value)
        consumer.begin("s", "select", world.key("k", producer), value, timeout=LONG)
        if who == "consumer":
            consumer.await_paused(where)
            producer.kill()
            consumer.resume(where)
        else:
            producer.host.await_death()
        if not consumer.await_over("s", NOTICED):
            consumer.end("s")
        _goes_on(world, other, consumer)
        world.close()


@must("fault/03-consumer-dies", needs=("buffer", "tensors"), processes=True, transport=True)
def test_consumer_dies(world: World) -> None:
    """When a consumer is killed in the middle of a transfer, its producer lives, serves others, and frees the value."""
    who, where = world.moving
    left = []
    for when in LATER:
        producer, consumer = world.pair(**world.stopped(when, "kill" if who == "consumer" else "pause"))
        value = world.value(LARGE)
        producer.begin_insert("k", "k", value, lease=1.0)
        consumer.begin("s", "select", world.key("k", producer), value, timeout=LONG)
        if who == "producer":
            producer.await_paused(where)
            consumer.kill()
            producer.resume(where)
        else:
            consumer.host.await_death()
        left.append(producer)
    other = world.peer(name="other")
    for producer in left:
        producer.drop([world.here(_goes_on(world, producer, other))])
    for producer in left:
        producer.await_over("k", PROMISE)
        held = partial(producer.contains, [world.here("k")])
        eventually(lambda held=held: not any(held()), PROMISE, lambda: "the value is still held")  # type: ignore[misc]


@must("fault/04-asker-dies", needs=("buffer", "tensors", "takes"), lacks=("shared",), processes=True)
def test_asker_dies(world: World) -> None:
    """A consumer that is killed while it waits for a key takes nothing with it: the value goes to who lives."""
    producer, consumer = world.pair()
    other = world.peer(name="other")
    value = world.value()
    key = world.key("k", producer)
    consumer.begin("s", "drop_select", key, value, timeout=LONG)
    consumer.contains([key])
    consumer.kill()
    time.sleep(2.0)  # until its producer has noticed
    producer.insert("k", value)
    other.take(key, value)


@must("fault/05-sender-dies", needs=("pipe", "tensors"), processes=True)
def test_sender_dies(world: World) -> None:
    """When a sender is killed, its receiver gets PipeBrokenError within 5 s, and again whenever it asks."""
    sender, receiver = world.linked()
    value = world.value()
    sender.post("v", "c", value)
    receiver.recv("c", value)
    sender.kill()
    start = time.monotonic()
    for _ in range(2):
        require_raises(PipeBrokenError, lambda: receiver.peek("c", NOTICED), "receiving from a dead sender")
    require(time.monotonic() - start < NOTICED, "the death of the sender was noticed too late")


@must("fault/06-receiver-dies", needs=("pipe", "tensors"), processes=True)
def test_receiver_dies(world: World) -> None:
    """When a receiver is killed, what was posted to it ends with an error, and so does what is posted afterwards."""
    sender, receiver = world.linked()
    sender.post("before", "c", world.value())
    require(receiver.peek("c", 10), "no offer came")
    receiver.kill()
    require(sender.await_over("before", PROMISE), "a value that nobody took counts as delivered")
    require_raises(PipeBrokenError, lambda: sender.post("after", "c", world.value()), "posting to a dead receiver")


@must("fault/07-stopped", needs=("buffer", "tensors"), lacks=("shared",), processes=True)
def test_stopped(world: World) -> None:
    """A producer that is stopped counts as lost after `peer_timeout`; when it goes on, new transfers work."""
    settings = {"peer_timeout": PATIENCE}
    producer, consumer = world.pair(producer=settings, consumer=settings)
    value = world.value()
    key = world.key("k", producer)
    consumer.begin("s", "select", key, value, timeout=LONG)
    consumer.contains([key])
    producer.host.stop()
    require_raises(PeerLostError, lambda: consumer.end("s", PATIENCE * 3 + NOTICED), "waiting for a stopped producer")
    producer.host.go_on()
    _goes_on(world, producer, consumer)


@must("fault/08-restart", needs=("buffer", "tensors"), lacks=("shared",), processes=True)
def test_restart(world: World) -> None:
    """After a producer was killed and started again at its address, old keys fail at once and new ones work."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value)
    old = world.key("k", producer)
    consumer.take(old, value, verb="select")
    producer.kill()
    again = world.peer(name="again", port=int(old.home.rpartition(":")[2]))
    again.insert("k", world.value())
    start = time.monotonic()
    require_raises(KVBridgeError, lambda: consumer.take(old, value, verb="select", timeout=LONG), "an old key")
    require(time.monotonic() - start < NOTICED, "an old key did not fail at once")
    _goes_on(world, again, consumer)


@must("fault/09-late-reader", needs=("buffer", "tensors"), processes=True, transport=True)
def test_late_reader(world: World) -> None:
    """A consumer that is stopped beyond its lease, while its source is used anew, gets the right bytes or an error."""
    who, where = world.moving
    pairs = []
    for when in LATER:
        producer, consumer = world.pair(**world.stopped(when))
        value = world.value(LARGE)
        producer.begin_insert("k", "k", value, lease=0.5)
        consumer.begin("s", "select", world.key("k", producer), value, timeout=60)
        (producer if who == "producer" else consumer).await_paused(where)
        consumer.host.stop()
        if who == "producer":
            producer.resume(where)
        pairs.append((producer, consumer))
    for producer, _ in pairs:
        producer.await_over("k", PROMISE)
        producer.await_stats(timeout=PROMISE, bytes=0)
        producer.overwrite("k")
        for index in range(3):
            producer.begin_insert(f"new{index}", f"new{index}", TensorValue(seed=500 + index, shape=(value.nbytes,)))
        producer.flush()
    for _, consumer in pairs:
        consumer.host.go_on()
        if who == "consumer":
            consumer.resume(where)
        if not consumer.await_over("s", PROMISE):
            consumer.end("s")


@must("fault/10-killed-leaves-nothing", needs=("buffer", "tensors"), processes=True)
def test_killed_leaves_nothing(world: World) -> None:
    """Peers that are killed with values under way leave no file behind, and their addresses can be used anew."""
    watcher = world.peer(name="watcher")
    before = watcher.resources()
    for _ in range(4):
        producer = world.peer(name="producer")
        for index in range(3):
            producer.begin_insert(f"k{index}", f"k{index}", world.value(100_000))
        port = int(producer.where()[0].rpartition(":")[2])
        producer.kill()
        world.peer(name="next", port=port).close()
    after = watcher.resources()
    for where, left in (
        ("in /dev/shm", unused(set(after.shared) - set(before.present))),
        ("in the folder for temporary files", set(after.files) - set(before.files)),
    ):
        require(len(left) < 4, f"files {where} after 4 peers were killed: {sorted(left)}")  # noqa: PLR2004 - of 4


@must("fault/11-stopped-consumer", needs=("buffer", "tensors"), processes=True, transport=True)
def test_stopped_consumer(world: World) -> None:
    """When a consumer is stopped in mid-transfer its producer serves others, and its backend closes within 2 s."""
    who, where = world.moving
    producer, consumer = world.pair(**world.stopped("asked"))
    other = world.peer(name="other")
    value = world.value(HUGE)
    producer.begin_insert("k", "k", value)
    consumer.begin("s", "select", world.key("k", producer), value, timeout=LONG)
    (producer if who == "producer" else consumer).await_paused(where)
    consumer.host.stop()
    if who == "producer":
        producer.resume(where)
    for _ in range(3):
        _goes_on(world, producer, other)
    seconds = producer.close_backend()
    consumer.host.go_on()
    require(seconds < CLOSES, f"the backend took {seconds:.1f} s to close, expected less than {CLOSES:g} s")
