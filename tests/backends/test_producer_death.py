"""`kill -9` of a producer: whoever waits for it hears within 5 s, everybody else goes on, nothing is held up."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import KVBridgeError, PeerLostError
from tests.nodes import MIB, Node, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

HEARD_WITHIN = 5.0
"""Seconds within which a waiting call has to end after its peer died."""

CLOSED_WITHIN = 2.0
"""Seconds: the promise is 1, and the machine that tests run on is busy."""

NBYTES = 8 * MIB


def goes_on(consumer: Node, other: Node) -> None:
    """The other producer still serves, the dead one's memory is not mapped any more, and closing is quick."""
    consumer.take(Key("other", other.endpoint.address), 7, MIB)
    assert consumer.backend._peers.keys() == {consumer.dial(other.endpoint.address)}
    assert consumer.close() < CLOSED_WITHIN
    for one in (consumer, other):
        assert one.counters().get("internal_errors", 0) == 0


def test_a_producer_that_died_before_the_handshake_is_lost_at_once(
    peer: Callable[..., Peer], pair: tuple[Node, Node]
) -> None:
    other, consumer = pair
    other.insert("other", 7, MIB)
    producer = peer()
    producer.kill()
    start = time.monotonic()
    consumer.begin("t", "drop_select", Key("k", producer.address, producer.generation), 1, NBYTES)
    with pytest.raises(PeerLostError, match=producer.address):
        consumer.end("t")
    assert time.monotonic() - start < HEARD_WITHIN
    goes_on(consumer, other)


def test_whoever_waits_for_a_producer_hears_of_its_death_in_every_phase(
    peer: Callable[..., Peer], pair: tuple[Node, Node]
) -> None:
    other, consumer = pair
    other.insert("other", 7, MIB)
    producer = peer()
    for number, name in enumerate(("claimed", "held", "read")):
        producer.do("insert", name, number, NBYTES)
    consumer.claim("claimed", Key("claimed", producer.address))
    consumer.claim("held", Key("held", producer.address))
    # One value of which the producer has one slice in place, and the consumer has read it.
    producer.do("gate", "gather", 1)
    producer.do("begin_insert", "i", "moving", 4, NBYTES)
    consumer.begin("moving", "drop_select", Key("moving", producer.address), 4, NBYTES)
    producer.do("await_gate", "gather")
    eventually(lambda: bool(consumer.transfers["moving"][1][0].any()), 5.0, lambda: "no slice came")
    # One value that is all there and of which the consumer has read one slice.
    consumer.gate("scatter", 1)
    consumer.begin("read", "drop_select", Key("read", producer.address), 2, NBYTES)
    consumer.await_gate("scatter")
    # And questions that have no answer yet.
    consumer.begin("waiting to take", "drop_select", Key("never", producer.address), 1, NBYTES)
    consumer.begin("waiting to read", "select", Key("never", producer.address), 1, NBYTES)
    consumer.flush()

    producer.kill()
    killed = time.monotonic()
    consumer.begin_fill("claimed", "claimed", 0, NBYTES)
    found: dict[str, object] = {}
    for name in ("waiting to take", "waiting to read", "moving", "read"):
        with pytest.raises(KVBridgeError) as error:
            consumer.end(name, 2 * HEARD_WITHIN)
        found[name] = type(error.value)
    assert time.monotonic() - killed < HEARD_WITHIN
    assert set(found.values()) == {PeerLostError}, found
    consumer.gate("scatter", None)
    # The memory that is mapped outlives its owner: a fill that was quick has all bytes, or its loss is told.
    with contextlib.suppress(PeerLostError):
        consumer.end("claimed", HEARD_WITHIN)
    consumer.begin_fill("held", "held", 1, NBYTES)
    with pytest.raises(PeerLostError):
        consumer.end("held", HEARD_WITHIN)
    for name in ("claimed", "held"):
        consumer.release(name)
    goes_on(consumer, other)


@pytest.mark.parametrize("slices", [0, 3])
def test_a_value_that_its_producer_gives_up_in_the_middle_is_an_error_at_once(
    pair: tuple[Node, Node], slices: int
) -> None:
    producer, consumer = pair
    producer.gate("gather", slices)
    producer.buffer.insert(Key("k"), pattern(1, NBYTES))
    out = np.zeros(NBYTES, dtype=np.uint8)
    transfer = consumer.buffer.drop_select(Key("k", producer.endpoint.address), out)
    producer.await_gate("gather")
    start = time.monotonic()
    producer.buffer.drop([Key("k")])
    with pytest.raises(KVBridgeError, match="dropped"):
        transfer.wait(5)
    assert time.monotonic() - start < 2
    producer.await_used(0)
