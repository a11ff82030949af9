"""What a FIFO cannot do: values are taken in another order than they came, one of them before it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.errors import KeyConsumedError
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer


def test_a_b_c_inserted_and_c_a_b_selected_across_two_processes_with_a_blocked_select_between(
    peer: Callable[..., Peer],
) -> None:
    producer, consumer = peer(), peer()
    keys = {name: Key(name, producer.address, producer.generation) for name in "ABC"}
    producer.do("insert", "A", 1, 3 * MIB)
    # C is asked for before it exists: the consumer waits, and everything else goes on meanwhile.
    consumer.do("begin", "blocked", "drop_select", keys["C"], 3, MIB)
    producer.do("insert", "B", 2, 5 * MIB + 1)
    consumer.do("take", keys["B"], 2, 5 * MIB + 1, verb="select")
    producer.do("insert", "C", 3, MIB)
    consumer.do("end", "blocked")
    consumer.do("take", keys["A"], 1, 3 * MIB)
    consumer.do("take", keys["B"], 2, 5 * MIB + 1)
    for name in "CAB":
        with pytest.raises(KeyConsumedError):
            consumer.do("take", keys[name], 0, 1)
    producer.do("await_stats", inserted=3, taken=4, entries=0, bytes=0)
    producer.do("await_used", 0)


def test_every_order_of_taking_gives_every_value_its_own_bytes(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    home = producer.endpoint.address
    for number in range(40):
        producer.insert(f"k{number}", number, 1000 + number)
    for number in (*range(39, -1, -2), *range(0, 40, 2)):
        consumer.take(Key(f"k{number}", home), number, 1000 + number)
    producer.await_stats(taken=40, entries=0)


def test_many_selects_that_wait_are_each_answered_by_their_own_value(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    home = producer.endpoint.address
    for number in range(20):
        consumer.begin(f"k{number}", "drop_select", Key(f"k{number}", home), number, 5000)
    consumer.flush()
    for number in reversed(range(20)):
        producer.insert(f"k{number}", number, 5000)
    for number in range(20):
        consumer.end(f"k{number}")
