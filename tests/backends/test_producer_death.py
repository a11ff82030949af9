"""`kill -9` of a producer: whoever waits for it hears within 5 s, everybody else goes on, nothing is held up."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.errors import KVBridgeError, PeerLostError
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

HEARD_WITHIN = 5.0
"""Seconds within which a waiting call has to end after its peer died."""

CLOSED_WITHIN = 2.0
"""Seconds: the promise is 1, and the machine that tests run on is busy."""

NBYTES = 8 * MIB


@pytest.fixture
def trio(peer: Callable[..., Peer], pair: tuple[Node, Node]) -> tuple[Peer, Node, Node]:
    """A producer that will die, a consumer, and another producer."""
    other, consumer = pair
    other.insert("other", 7, MIB)
    return peer(), consumer, other


def goes_on(consumer: Node, other: Node) -> None:
    """The other producer still serves, and closing is quick."""
    consumer.take(Key("other", other.endpoint.address), 7, MIB)
    assert consumer.backend._peers.keys() == {consumer.dial(other.endpoint.address)}, "memory of a dead peer is mapped"
    assert consumer.close() < CLOSED_WITHIN
    assert other.counters().get("internal_errors", 0) == 0
    assert consumer.counters().get("internal_errors", 0) == 0


def ends(consumer: Node, name: str) -> KVBridgeError:
    start = time.monotonic()
    with pytest.raises(PeerLostError) as found:
        consumer.end(name, 3 * HEARD_WITHIN)
    assert time.monotonic() - start < HEARD_WITHIN
    return found.value


def test_a_producer_that_died_before_the_handshake_is_lost_at_once(trio: tuple[Peer, Node, Node]) -> None:
    producer, consumer, other = trio
    producer.kill()
    consumer.begin("t", "drop_select", Key("k", producer.address, producer.generation), 1, NBYTES)
    assert producer.address in str(ends(consumer, "t"))
    goes_on(consumer, other)


def test_a_select_that_waits_for_a_value_ends_when_its_producer_dies(trio: tuple[Peer, Node, Node]) -> None:
    producer, consumer, other = trio
    consumer.begin("t", "drop_select", Key("never", producer.address), 1, NBYTES)
    consumer.begin("u", "select", Key("never", producer.address), 1, NBYTES)
    contains = consumer.buffer.contains([Key("never", producer.address)]).wait(5)
    assert contains == [False]
    producer.kill()
    ends(consumer, "t")
    ends(consumer, "u")
    goes_on(consumer, other)


def test_a_claim_on_a_dead_producer_is_not_filled(trio: tuple[Peer, Node, Node]) -> None:
    producer, consumer, other = trio
    producer.do("insert", "k", 1, NBYTES)
    consumer.claim("c", Key("k", producer.address))
    producer.kill()
    consumer.begin_fill("t", "c", 1, NBYTES)
    # The memory is mapped and may outlive its owner: all bytes, or a loss that is told.
    start = time.monotonic()
    with contextlib.suppress(PeerLostError):
        consumer.end("t", 3 * HEARD_WITHIN)
    assert time.monotonic() - start < HEARD_WITHIN
    consumer.release("c")
    goes_on(consumer, other)


@pytest.mark.parametrize("slices", [0, 1, 3])
def test_a_transfer_ends_when_its_producer_dies_in_the_middle(trio: tuple[Peer, Node, Node], slices: int) -> None:
    producer, consumer, other = trio
    producer.do("gate", "gather", slices)
    producer.do("begin_insert", "i", "k", 1, NBYTES)
    consumer.begin("t", "drop_select", Key("k", producer.address), 1, NBYTES)
    producer.do("await_gate", "gather")
    producer.kill()
    ends(consumer, "t")
    goes_on(consumer, other)


def test_a_slow_reader_gets_all_bytes_or_a_loss_when_its_producer_dies(trio: tuple[Peer, Node, Node]) -> None:
    producer, consumer, other = trio
    producer.do("insert", "k", 1, NBYTES)
    consumer.gate("scatter", 1)
    consumer.begin("t", "drop_select", Key("k", producer.address), 1, NBYTES)
    consumer.await_gate("scatter")
    producer.kill()
    ends(consumer, "t")
    consumer.gate("scatter", None)
    goes_on(consumer, other)


def test_a_claim_held_for_long_is_lost_before_it_is_filled(trio: tuple[Peer, Node, Node]) -> None:
    producer, consumer, other = trio
    producer.do("insert", "k", 1, NBYTES)
    consumer.claim("c", Key("k", producer.address))
    link = consumer.dial(producer.address)
    producer.kill()
    deadline = time.monotonic() + HEARD_WITHIN
    while link.up:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    consumer.flush()
    consumer.begin_fill("t", "c", 1, NBYTES)
    ends(consumer, "t")
    goes_on(consumer, other)
