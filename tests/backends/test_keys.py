"""Keys: a live one is never overwritten, one that is gone answers at once and says why, exactly one consumer takes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    BindingMismatchError,
    ConfigError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KeyUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nodes import Node

AT_ONCE = 2.0
"""Seconds, generous: what answers at once must not run into its deadline of 10 s."""


def key(name: str, producer: Node) -> Key:
    return Key(name, *producer.where())


def test_a_second_insert_of_a_live_key_is_refused_and_the_first_value_stays(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, 1000)
    used = producer.used()
    with pytest.raises(DuplicateKeyError):
        producer.insert("k", 2, 500_000)
    assert producer.used() == used
    consumer.take(key("k", producer), 1, 1000)
    assert producer.stats()["refused_duplicate"] == 1


def test_a_key_is_free_again_after_its_value_was_taken(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    for seed in (1, 2):
        producer.insert("k", seed, 1000)
        consumer.take(key("k", producer), seed, 1000)
        producer.await_stats(entries=0)


def test_cancelling_a_refused_duplicate_leaves_the_first_value(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, 1000)
    producer.endpoint.call_soon(lambda: time.sleep(0.2))  # so that both calls wait for the thread
    producer.begin_insert("second", "k", 2, 1000)
    producer.transfers["second"][0].cancel()
    with pytest.raises(DuplicateKeyError):
        producer.end("second")
    producer.flush()
    consumer.take(key("k", producer), 1, 1000)


def test_a_select_leaves_the_value_for_others(pair: tuple[Node, Node], node: Callable[..., Node]) -> None:
    producer, consumer = pair
    other = node()
    producer.insert("k", 1, 100_000)
    for reader in (consumer, other, consumer):
        reader.take(key("k", producer), 1, 100_000, verb="select")
    other.take(key("k", producer), 1, 100_000)
    with pytest.raises(KeyConsumedError):
        consumer.take(key("k", producer), 1, 100_000, verb="select")


def test_exactly_one_of_many_consumers_takes_a_value(pair: tuple[Node, Node], node: Callable[..., Node]) -> None:
    producer, *_ = pair
    consumers = [node() for _ in range(3)]
    for consumer in consumers:
        for attempt in range(5):
            consumer.begin(f"{attempt}", "drop_select", key("k", producer), 1, 3_000_000)
        consumer.flush()
    producer.insert("k", 1, 3_000_000)
    outcomes: list[str] = []
    for consumer in consumers:
        for attempt in range(5):
            transfer = consumer.transfers[f"{attempt}"][0]
            with contextlib.suppress(KeyConsumedError):
                consumer.end(f"{attempt}")
            outcomes.append("consumed" if transfer.error else "taken")
    assert sorted(outcomes) == ["consumed"] * 14 + ["taken"]
    producer.await_used(0)


@pytest.mark.parametrize("verb", ["select", "drop_select"])
def test_a_consumed_an_expired_and_a_dropped_key_answer_at_once(pair: tuple[Node, Node], verb: str) -> None:
    producer, consumer = pair
    producer.insert("consumed", 1, 10)
    consumer.take(key("consumed", producer), 1, 10)
    producer.insert("expired", 1, 10, lease=0.05)
    producer.await_stats(expired=1)
    producer.insert("dropped", 1, 10)
    consumer.buffer.drop([key("dropped", producer)])
    producer.await_stats(dropped=1)
    start = time.monotonic()
    for name, error in (("consumed", KeyConsumedError), ("expired", KeyExpiredError), ("dropped", KeyDroppedError)):
        with pytest.raises(error, match=name):
            consumer.take(key(name, producer), 1, 10, verb=verb, timeout=10)
    assert time.monotonic() - start < AT_ONCE
    producer.await_used(0)


def test_a_key_that_never_comes_is_unknown_after_the_time_given_and_not_before(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    start = time.monotonic()
    with pytest.raises(KeyUnknownError, match="never"):
        consumer.take(key("never", producer), 1, 10, timeout=0.4)
    assert 0.35 < time.monotonic() - start < AT_ONCE
    producer.insert("never", 1, 10)  # nobody waits for it any more: it is there for the next one
    consumer.take(key("never", producer), 1, 10)


def test_who_asks_with_another_digest_gets_a_mismatch_and_the_value_stays(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("k", 1, 10, digest=b"prompt one")
    for wrong in (b"prompt two", b"", b"prompt on", b"prompt one\0"):
        with pytest.raises(BindingMismatchError):
            consumer.take(key("k", producer), 1, 10, digest=wrong)
    consumer.take(key("k", producer), 1, 10, digest=b"prompt one")
    assert producer.stats()["refused_binding"] == 4


def test_who_waits_with_another_digest_gets_a_mismatch_when_the_value_comes(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    consumer.begin("wrong", "drop_select", key("k", producer), 1, 10, digest=b"other")
    consumer.begin("right", "drop_select", key("k", producer), 1, 10, digest=b"mine")
    consumer.flush()
    producer.insert("k", 1, 10, digest=b"mine")
    with pytest.raises(BindingMismatchError):
        consumer.end("wrong")
    consumer.end("right")


def test_contains_tells_live_keys_from_all_others(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    for name in ("live", "taken", "dropped"):
        producer.insert(name, 1, 10)
    consumer.take(key("taken", producer), 1, 10)
    producer.buffer.drop([Key("dropped")])
    producer.await_stats(entries=1)
    keys = [key(name, producer) for name in ("dropped", "live", "never", "taken", "live")]
    assert consumer.buffer.contains(keys).wait(5) == [False, True, False, False, True]


def test_contains_of_no_key_or_of_two_homes_is_refused(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    for keys in ([], [key("a", producer), key("a", consumer)]):
        with pytest.raises(ConfigError):
            consumer.buffer.contains(keys).wait(5)


def test_a_node_can_take_its_own_value(pair: tuple[Node, Node]) -> None:
    producer, _ = pair
    producer.insert("own", 1, 3_000_000)
    producer.take(Key("own"), 1, 3_000_000)
    producer.await_used(0)


def test_inserting_under_the_address_of_another_node_is_refused(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    with pytest.raises(ConfigError, match="lives at"):
        producer.buffer.insert(key("k", consumer), b"").wait(5)


def test_a_drop_tells_keys_of_one_id_at_two_homes_apart(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("same", 1, 1000)
    consumer.insert("same", 2, 1000)
    consumer.buffer.drop([Key("same"), Key("same", producer.endpoint.address)])
    consumer.await_stats(entries=0)
    producer.await_stats(entries=0, dropped=1)
