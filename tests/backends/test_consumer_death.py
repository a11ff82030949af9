"""`kill -9` of a consumer: its producer's memory comes back, and what it did not take is there for others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.buffers import producer as producer_module
from kvbridge.errors import KeyConsumedError
from tests.nodes import MIB, Node, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

VALID = 1.5
"""Seconds of a promise, shortened from 10."""

BACK_WITHIN = 4 * VALID
"""Seconds: promise, one more look, and a busy machine."""

CLOSED_WITHIN = 2.0
NBYTES = 8 * MIB


@pytest.fixture
def trio(
    peer: Callable[..., Peer], node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> tuple[Node, Peer, Node]:
    """A producer, a consumer that will die, and another consumer. Promises are short."""
    monkeypatch.setattr(producer_module, "VALID", VALID)
    return node(name="producer"), peer(), node(name="consumer")


def goes_on(producer: Node, other: Node) -> None:
    """The room is back, and the producer serves others from it."""
    producer.await_used(0, BACK_WITHIN)
    producer.insert("last", 9, NBYTES)
    other.take(Key("last", *producer.where()), 9, NBYTES)
    producer.await_used(0)
    assert producer.stats()["entries"] == 0
    assert producer.counters().get("internal_errors", 0) == 0
    assert producer.close() < CLOSED_WITHIN


def await_death(producer: Node) -> None:
    """Wait until the producer knows that its first consumer is gone."""
    eventually(lambda: not producer.link().up, 5.0, lambda: "the producer still takes its consumer for alive")
    producer.flush()


def test_what_a_dead_consumer_held_comes_back_and_what_it_waited_for_goes_to_another(
    trio: tuple[Node, Peer, Node],
) -> None:
    producer, consumer, other = trio
    for number, name in enumerate(("claimed", "shared", "read")):
        producer.insert(name, number, NBYTES)
    consumer.do("claim", "c", Key("claimed", *producer.where()))
    consumer.do("claim", "s", Key("shared", *producer.where()), take=False)
    for name, verb in (("late", "drop_select"), ("later", "select")):
        consumer.do("begin", name, verb, Key(name, *producer.where()), 4, NBYTES)
    consumer.do("gate", "scatter", 1)
    consumer.do("begin", "read", "drop_select", Key("read", *producer.where()), 2, NBYTES)
    consumer.do("await_gate", "scatter")
    eventually(lambda: len(producer.buffer._shelf._questions) == 2, 2.0, lambda: "the questions did not come")
    consumer.kill()

    other.take(Key("shared", *producer.where()), 1, NBYTES, verb="select")
    with pytest.raises(KeyConsumedError):
        other.take(Key("claimed", *producer.where()), 0, NBYTES)
    await_death(producer)
    assert all(link.up for link in producer.endpoint._inbound.links())
    for name in ("late", "later"):
        producer.insert(name, 4, NBYTES)
        other.take(Key(name, *producer.where()), 4, NBYTES)
    other.take(Key("shared", *producer.where()), 1, NBYTES)
    producer.await_used(0, BACK_WITHIN)
    producer.await_stats(entries=0, not_taken=3, taken=4)
    for name in ("claimed", "read"):
        with pytest.raises(KeyConsumedError):
            other.take(Key(name, *producer.where()), 1, NBYTES)
    goes_on(producer, other)


def test_a_value_whose_reader_dies_while_it_is_still_gathered_comes_back(trio: tuple[Node, Peer, Node]) -> None:
    producer, consumer, other = trio
    producer.gate("gather", 1)
    producer.begin_insert("i", "k", 1, NBYTES)
    consumer.do("begin", "t", "drop_select", Key("k", *producer.where()), 1, NBYTES)
    producer.await_gate("gather")
    eventually(lambda: bool(producer.buffer._shelf._entries["k"].offers), 5.0, lambda: "nobody asked")
    consumer.kill()
    producer.await_used(0, BACK_WITHIN)
    producer.gate("gather", None)
    producer.end("i", 2.0)  # the source's memory is free, though nobody took the value
    goes_on(producer, other)


def test_memory_that_a_reader_may_still_touch_is_not_given_to_others_before_the_promise_is_over(
    trio: tuple[Node, Peer, Node],
) -> None:
    producer, consumer, other = trio
    producer.insert("k", 1, NBYTES)
    consumer.do("claim", "c", Key("k", *producer.where()))
    asked = time.monotonic()
    producer.buffer.drop([Key("k")])
    consumer.stop()  # it lives, is silent, and may go on reading any time
    producer.flush()
    while time.monotonic() < asked + VALID / 2:
        assert producer.used() in (0, 8 * MIB + 4096)
        if producer.used() == 0:
            break  # it answered before it was stopped
        time.sleep(0.01)
    goes_on(producer, other)
