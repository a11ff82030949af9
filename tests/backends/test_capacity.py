"""A pool that is full refuses, says so on both sides at once, and goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import CapacityError, KeyDroppedError, TransportError
from tests.nodes import MIB, Node, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1024


@pytest.fixture
def small(node: Callable[..., Node]) -> tuple[Node, Node]:
    return node(capacity="1MiB", name="producer"), node(name="consumer")


def test_what_does_not_fit_is_refused_at_the_producer_and_dropped_for_the_consumer(small: tuple[Node, Node]) -> None:
    producer, consumer = small
    producer.insert("first", 1, 700 * KIB)
    used = producer.used()
    consumer.begin("waits", "drop_select", Key("second", producer.endpoint.address), 2, 700 * KIB)
    consumer.flush()
    with pytest.raises(CapacityError, match=r"7168\d\d bytes.*of 1048576 bytes are in use.*capacity"):
        producer.insert("second", 2, 700 * KIB)
    start = time.monotonic()
    with pytest.raises(KeyDroppedError, match=r"7168\d\d bytes"):
        consumer.end("waits")
    with pytest.raises(KeyDroppedError, match=r"7168\d\d bytes"):
        consumer.take(Key("second", producer.endpoint.address), 2, 700 * KIB)
    assert time.monotonic() - start < 2
    assert producer.used() == used
    consumer.take(Key("first", producer.endpoint.address), 1, 700 * KIB)
    producer.await_used(0)
    producer.insert("second", 3, 700 * KIB)  # the refused key is free, and so is the room
    consumer.take(Key("second", producer.endpoint.address), 3, 700 * KIB)


def test_a_value_larger_than_the_pool_is_refused_and_everything_goes_on(small: tuple[Node, Node]) -> None:
    producer, consumer = small
    for nbytes in (MIB, 3 * MIB):
        with pytest.raises(CapacityError, match="is larger than the 1048512"):
            producer.insert("large", 1, nbytes)
        with pytest.raises(KeyDroppedError):
            consumer.take(Key("large", producer.endpoint.address), 1, nbytes)
    largest = producer.backend.capabilities.max_value_bytes
    producer.insert("largest", 1, largest)
    consumer.take(Key("largest", producer.endpoint.address), 1, largest)
    producer.await_used(0)


def test_a_full_pool_refuses_a_pipe_too_and_the_pipe_goes_on(small: tuple[Node, Node]) -> None:
    producer, consumer = small
    consumer.connect(producer.endpoint.address)
    producer.link()
    consumer.open_pipe("c", "recv")
    producer.open_pipe("c", "send")
    producer.begin_send("a", "c", 1, 700 * KIB)
    producer.begin_send("b", "c", 2, 700 * KIB)
    with pytest.raises(CapacityError):
        producer.end("b")
    producer.begin_send("c", "c", 3, 100 * KIB)
    consumer.recv("c", 1, 700 * KIB)
    consumer.recv("c", 3, 100 * KIB)
    producer.end("a")
    producer.end("c")
    producer.await_used(0)


def test_the_pool_serves_its_capacity_again_and_again(small: tuple[Node, Node]) -> None:
    producer, consumer = small
    for seed in range(30):
        producer.insert(f"a{seed}", seed, 300 * KIB)
        producer.insert(f"b{seed}", seed + 100, 400 * KIB)
        consumer.take(Key(f"b{seed}", producer.endpoint.address), seed + 100, 400 * KIB)
        consumer.take(Key(f"a{seed}", producer.endpoint.address), seed, 300 * KIB)
        producer.await_used(0)


class Refusing:
    """A held value whose copy fails after some slices with an error that is not kvbridge's."""

    def __init__(self, held: Any, slices: int) -> None:
        self.descriptor = held.descriptor
        self.release = held.release
        self._held = held
        self._slices = slices

    def step(self) -> Any:
        self._slices -= 1
        if self._slices < 0:
            raise RuntimeError("the vendor's code is 42")
        return self._held.step()


@pytest.mark.parametrize("slices", [0, 1])
def test_a_value_whose_copy_fails_is_dropped_for_everybody_and_its_room_comes_back(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    producer, consumer = pair
    hold = producer.backend.hold
    consumer.begin("waits", "drop_select", Key("k", producer.endpoint.address), 1, 5 * MIB)
    consumer.flush()
    monkeypatch.setattr(producer.backend, "hold", lambda payload: Refusing(hold(payload), slices))
    with pytest.raises(TransportError, match="code is 42"):
        producer.insert("k", 1, 5 * MIB)
    with pytest.raises(KeyDroppedError, match="code is 42"):
        consumer.end("waits")
    with pytest.raises(KeyDroppedError, match="code is 42"):
        consumer.take(Key("k", producer.endpoint.address), 1, 5 * MIB)
    producer.await_used(0)
    monkeypatch.undo()
    producer.insert("k", 2, 5 * MIB)
    consumer.take(Key("k", producer.endpoint.address), 2, 5 * MIB)


def test_an_insert_whose_hold_fails_with_a_foreign_error_fails_and_does_not_hang(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair

    def refuse(payload: Any) -> Any:
        raise RuntimeError("the vendor's code is 42")

    monkeypatch.setattr(producer.backend, "hold", refuse)
    with pytest.raises(TransportError, match="code is 42"):
        producer.buffer.insert(Key("k"), np.ones(5)).wait(2)
    with pytest.raises(KeyDroppedError, match="code is 42"):
        consumer.take(Key("k", producer.endpoint.address), 1, 5, timeout=1)


def test_a_select_whose_landing_fails_with_a_foreign_error_fails_and_does_not_hang(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair

    def refuse(*args: Any) -> Any:
        raise OSError(12, "out of memory")

    producer.insert("k", 1, 5000)
    monkeypatch.setattr(consumer.backend, "land", refuse)
    transfer = consumer.buffer.drop_select(Key("k", producer.endpoint.address), pattern(1, 5000))
    with pytest.raises(TransportError, match="out of memory"):
        transfer.wait(2)
    producer.await_used(0)
