"""Leases: a value waits as long as promised, no longer, and a claim as long as its consumer lives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.buffers import producer as producer_module
from kvbridge.control import rendezvous
from kvbridge.errors import BusyError, KeyConsumedError, KeyDroppedError, KeyExpiredError
from tests.nodes import MIB, Node, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

VALID = 0.5
"""Seconds of a promise, shortened: what outlives three of them was renewed."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "VALID", VALID)
    monkeypatch.setattr(rendezvous, "VALID", VALID)


def test_a_hundred_values_that_nobody_fetches_are_freed_and_counted_without_traffic(
    node: Callable[..., Node],
) -> None:
    producer = node(capacity=128 * MIB)
    value = pattern(1, MIB)
    start = time.monotonic()
    transfers = [producer.buffer.insert(Key(f"k{n}"), value, lease=1 + n / 100) for n in range(100)]
    for transfer in transfers:
        transfer.wait(10)
    if time.monotonic() - start < 0.9:
        assert producer.stats()["entries"] == 100
        assert producer.stats()["bytes"] == 100 * MIB
    producer.await_used(0, 10.0)  # looks at the pool only: nothing is asked of the buffer
    stats = producer.stats()
    assert (stats["expired"], stats["entries"], stats["bytes"]) == (100, 0, 0)


def test_a_value_does_not_expire_before_its_lease(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("short", 1, 1000, lease=0.05)
    producer.insert("long", 2, 1000, lease=30)
    producer.await_stats(expired=1)
    consumer.take(Key("long", producer.endpoint.address), 2, 1000)


def test_the_lease_of_the_buffer_holds_where_none_is_given(node: Callable[..., Node]) -> None:
    producer = node(lease=0.1)
    producer.insert("k", 1, 1000)
    producer.await_stats(expired=1, entries=0)
    producer.await_used(0)


@pytest.mark.usefixtures("short")
def test_a_claim_outlives_lease_and_promise_while_its_consumer_lives(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB, lease=0.2)
    consumer.claim("c", Key("k", producer.endpoint.address))
    time.sleep(3.5 * VALID)
    assert producer.stats()["entries"] == 1
    consumer.begin_fill("f", "c", 1, MIB)
    consumer.end("f")
    producer.await_used(0, timeout=4 * VALID)
    stats = producer.stats()
    ended = stats.get("taken", 0) + stats.get("not_taken", 0)
    assert ended == 1  # not taken: the word of it came late, on a machine that stalls


@pytest.mark.usefixtures("short")
def test_an_offer_on_a_pipe_outlives_its_promise_while_the_receiver_lives(
    pair: tuple[Node, Node],
) -> None:
    producer, consumer = pair
    consumer.connect(producer.endpoint.address)
    producer.link()
    consumer.open_pipe("c", "recv")
    producer.open_pipe("c", "send")
    producer.begin_send("s", "c", 1, 1000)
    time.sleep(3.5 * VALID)
    consumer.recv("c", 1, 1000)
    producer.end("s")


def test_a_released_claim_is_consumed_and_its_bytes_come_back(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB)
    consumer.claim("c", Key("k", producer.endpoint.address))
    consumer.release("c")
    consumer.release("c")  # idempotent
    producer.await_used(0)
    producer.await_stats(entries=0, not_taken=1)
    with pytest.raises(KeyConsumedError):
        consumer.take(Key("k", producer.endpoint.address), 1, MIB)


def test_a_released_claim_of_a_select_leaves_the_value(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB)
    consumer.claim("c", Key("k", producer.endpoint.address), take=False)
    consumer.release("c")
    consumer.take(Key("k", producer.endpoint.address), 1, MIB)
    producer.await_used(0)


def test_a_claim_is_filled_once(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB)
    consumer.claim("c", Key("k", producer.endpoint.address))
    assert consumer.claims["c"].spec.nbytes == MIB
    consumer.begin_fill("first", "c", 1, MIB)
    consumer.begin_fill("second", "c", 1, MIB)
    with pytest.raises(BusyError):
        consumer.end("second")
    consumer.end("first")
    consumer.release("c")
    consumer.begin_fill("third", "c", 1, MIB)
    with pytest.raises(BusyError):
        consumer.end("third")
    producer.await_stats(taken=1)


def test_a_claimed_value_that_is_dropped_by_its_producer_says_so(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB)
    consumer.claim("c", Key("k", producer.endpoint.address))
    producer.buffer.drop([Key("k")])
    producer.await_used(0)  # the consumer has let go
    consumer.begin_fill("f", "c", 1, MIB)
    with pytest.raises(KeyDroppedError):
        consumer.end("f")


@pytest.mark.usefixtures("short")
def test_a_selected_value_expires_after_its_readers_are_done(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, MIB, lease=0.2)
    consumer.claim("c", Key("k", producer.endpoint.address), take=False)
    time.sleep(2 * VALID)
    consumer.release("c")
    producer.await_stats(expired=1, timeout=4 * VALID)
    with pytest.raises(KeyExpiredError):
        consumer.take(Key("k", producer.endpoint.address), 1, MIB)
