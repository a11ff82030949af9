"""Statistics are exact, and may be read by any thread at any time."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nervous() -> Iterator[None]:
    """Threads that change places a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("nervous")
def test_statistics_may_be_read_while_values_come_and_go(pair: tuple[Node, Node]) -> None:
    producer, _ = pair
    stop = threading.Event()

    def churn() -> None:
        for number in range(100_000):
            if stop.is_set():
                return
            producer.buffer.insert(Key(f"{number}"), np.zeros(1), lease=0.3)
            time.sleep(0.0002)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        deadline = time.monotonic() + 0.8
        while time.monotonic() < deadline:
            assert producer.buffer.stats()["bytes"] >= 0
    finally:
        stop.set()
        thread.join(10)
    producer.await_stats(entries=0, bytes=0, timeout=5.0)


def test_every_outcome_is_counted_once(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    home = producer.endpoint.address
    for seed in range(3):
        producer.insert(f"taken {seed}", seed, MIB)
        consumer.take(Key(f"taken {seed}", home), seed, MIB)
    producer.insert("read", 5, 100)
    consumer.take(Key("read", home), 5, 100, verb="select")
    producer.insert("short", 6, 100, lease=0.05)
    producer.insert("dropped", 7, 100)
    producer.buffer.drop([Key("dropped"), Key("unknown")])
    producer.await_stats(
        inserted=6, taken=4, expired=1, dropped=1, not_taken=0, refused_duplicate=0, entries=1, bytes=100
    )


def test_bytes_count_until_the_room_is_free(pair: tuple[Node, Node]) -> None:
    """A value that was dropped under its reader still occupies the pool, and the gauge says so."""
    producer, consumer = pair
    producer.insert("k", 1, MIB)
    consumer.claim("c", Key("k", producer.endpoint.address))
    consumer.endpoint.call_soon(lambda: time.sleep(0.5))
    time.sleep(0.05)
    producer.buffer.drop([Key("k")])
    producer.flush()
    assert producer.used() > 0
    assert producer.stats()["bytes"] == MIB
    producer.await_used(0)
    assert producer.stats()["bytes"] == 0
