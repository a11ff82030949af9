"""What no peer would accept is refused by the call itself: it is not sent, dropped as noise, and waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.control.messages import MAX_KEYS
from kvbridge.errors import ConfigError, KVBridgeError, TransferTimeoutError

if TYPE_CHECKING:
    from tests.nodes import Node

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("x" * 257, {}),
    ("", {}),
    ("\ud800", {}),
    ("k", {"digest": b"x" * 65}),
    ("k", {"timeout": 90_000.0}),
    ("k", {"timeout": -1.0}),
]


@pytest.mark.parametrize(("name", "options"), WRONG)
def test_a_claim_that_breaks_a_limit_is_refused_at_once(
    pair: tuple[Node, Node], name: str, options: dict[str, Any]
) -> None:
    producer, consumer = pair
    start = time.monotonic()
    with pytest.raises(KVBridgeError) as found:
        consumer.buffer.claim(Key(name, *producer.where()), **{"timeout": 5.0, **options}).wait(4)
    assert not isinstance(found.value, TransferTimeoutError)
    assert time.monotonic() - start < 2
    assert producer.counters().get("malformed_messages", 0) == 0
    assert consumer.counters().get("internal_errors", 0) == 0


@pytest.mark.parametrize(("name", "options"), [*WRONG[:4], ("k", {"lease": -1.0}), ("k", {"lease": float("nan")})])
def test_an_insert_that_no_consumer_could_ask_for_is_refused_and_keeps_nothing(
    pair: tuple[Node, Node], name: str, options: dict[str, Any]
) -> None:
    producer, _ = pair
    with pytest.raises(KVBridgeError):
        producer.buffer.insert(Key(name), np.ones(5), **options).wait(4)
    producer.await_used(0)


def test_the_largest_key_digest_and_question_are_within_the_limits(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    link = consumer.dial(producer.endpoint.address)
    names = [f"{number}".rjust(256, "x") for number in range(MAX_KEYS)]
    producer.insert(names[7], 1, 10, digest=b"d" * 64)
    keys = [Key(name, producer.endpoint.address) for name in names]
    assert consumer.buffer.contains(keys).wait(5) == [number == 7 for number in range(MAX_KEYS)]
    consumer.take(keys[7], 1, 10, digest=b"d" * 64)
    consumer.buffer.drop(keys)
    assert consumer.buffer.contains(keys[:1]).wait(5) == [False]
    assert link.up


def test_a_question_for_more_keys_than_fit_is_refused_and_the_link_stays(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    link = consumer.dial(producer.endpoint.address)
    keys = [Key(f"{number}".rjust(256, "x"), producer.endpoint.address) for number in range(3 * MAX_KEYS)]
    for name in (keys[0].id, keys[-1].id):
        producer.insert(name, 1, 10)
    with pytest.raises(ConfigError, match=f"{3 * MAX_KEYS}"):
        consumer.buffer.contains(keys).wait(5)
    consumer.buffer.drop(keys)
    producer.await_stats(entries=0, dropped=2)
    assert link.up
