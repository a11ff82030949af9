"""A patient buffer: what finds no room waits for it, in its owner's memory, and is refused only when its lease ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    CapacityError,
    DuplicateKeyError,
    KeyDroppedError,
    KeyUnknownError,
    TransportError,
)
from tests.nodes import MIB, Node, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.slow_store import Process

KIB = 1024
LARGE = 700 * KIB


@pytest.fixture
def full(node: Callable[..., Node]) -> tuple[Node, Node]:
    """A producer whose pool has room for one large value, which is in it, and a consumer."""
    producer, consumer = node(capacity="1MiB", name="producer", patient=True), node(name="consumer")
    producer.insert("first", 1, LARGE)
    return producer, consumer


def key(producer: Node, name: str) -> Key:
    return Key(name, *producer.where())


def test_a_value_that_finds_no_room_waits_and_so_does_its_question(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    producer.await_stats(delayed=1, delayed_inserts=1)
    consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE)
    consumer.flush()
    time.sleep(0.1)
    assert not producer.transfers["two"][0].poll()
    assert not consumer.transfers["waits"][0].poll()
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.end("waits")
    producer.end("two")
    producer.await_used(0)
    producer.await_stats(delayed=0, inserted=2, taken=2, refused_insert=0)


def test_values_get_their_room_in_the_order_in_which_they_came(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("large", "large", 2, LARGE)
    producer.begin_insert("small", "small", 3, 100 * KIB)  # would fit beside the first one
    producer.await_stats(delayed=2)
    time.sleep(0.1)
    assert producer.stats()["delayed"] == 2
    consumer.take(key(producer, "first"), 1, LARGE)
    producer.end("large")
    producer.end("small")
    consumer.take(key(producer, "small"), 3, 100 * KIB)
    consumer.take(key(producer, "large"), 2, LARGE)
    producer.await_used(0)


def test_a_value_whose_lease_ends_before_there_is_room_is_refused(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE, lease=0.2)
    producer.begin_insert("three", "third", 3, 100 * KIB)
    consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE)
    with pytest.raises(CapacityError, match=r"until its lease ended there was no room: .* of 1048576 bytes are in use"):
        producer.end("two")
    for _ in range(2):
        with pytest.raises(KeyDroppedError, match="until its lease ended there was no room"):
            consumer.end("waits")
        consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE)
    producer.end("three")  # which is behind it no more
    producer.await_stats(delayed=0, refused_insert=1)


def test_one_that_waited_behind_another_is_refused_for_its_own_reason(full: tuple[Node, Node]) -> None:
    producer, _ = full
    producer.begin_insert("two", "second", 2, LARGE, lease=0.2)
    producer.begin_insert("three", "third", 3, LARGE, lease=1.5)
    producer.begin_insert("four", "fourth", 4, LARGE, lease=0.1)
    with pytest.raises(CapacityError, match="no room: others wait before it"):
        producer.end("four")
    for name in ("two", "three"):
        with pytest.raises(CapacityError, match=r"no room: .* of 1048576 bytes are in use"):
            producer.end(name)


def test_the_lease_of_a_value_that_was_dropped_does_not_end_the_next_one_with_its_key(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE, lease=0.3)
    producer.buffer.drop([key(producer, "second")])
    producer.end("two")
    producer.begin_insert("again", "second", 3, LARGE)
    time.sleep(0.5)
    assert producer.stats()["delayed"] == 1
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.take(key(producer, "second"), 3, LARGE)
    producer.end("again")


def test_what_is_left_of_the_lease_counts_when_there_is_room(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE, lease=2.0)
    producer.await_stats(delayed=1)
    began = time.monotonic()
    time.sleep(1.5)
    consumer.take(key(producer, "first"), 1, LARGE)
    producer.end("two")
    producer.await_stats(expired=1, timeout=5)
    assert time.monotonic() - began < 3.2, "a lease that began anew would end after 3.5 s"
    producer.await_used(0)


@pytest.mark.parametrize("who", ["producer", "consumer", "cancel"])
def test_a_value_that_nobody_wants_waits_no_more_and_its_memory_is_free(full: tuple[Node, Node], who: str) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    producer.await_stats(delayed=1)
    consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE)
    consumer.flush()
    if who == "cancel":
        producer.transfers["two"][0].cancel()
    else:
        (producer if who == "producer" else consumer).buffer.drop([key(producer, "second")])
    producer.end("two")
    with pytest.raises(KeyDroppedError, match="nobody wanted it"):
        consumer.end("waits")
    producer.await_stats(delayed=0, dropped=1)
    consumer.take(key(producer, "first"), 1, LARGE)
    producer.await_used(0)


def test_a_question_that_waits_in_vain_says_for_what(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    with pytest.raises(KeyUnknownError, match=r"its producer had no room for it under 'second' within 0\.2 s"):
        consumer.take(key(producer, "second"), 2, LARGE, timeout=0.2)
    with pytest.raises(KeyUnknownError, match="no value arrived under 'third'"):
        consumer.take(key(producer, "third"), 2, LARGE, timeout=0.2)
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.take(key(producer, "second"), 2, LARGE)
    producer.end("two")


def test_a_question_that_was_answered_has_no_deadline_any_more(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE, timeout=0.5)
    eventually(lambda: len(producer.buffer._shelf._questions) == 1, 5, lambda: "the question did not come")
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.end("waits")
    time.sleep(0.6)
    assert producer.counters().get("internal_errors", 0) == 0
    assert not producer.buffer._shelf._questions._by_key


def test_the_key_of_a_value_that_waits_is_in_use(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    with pytest.raises(DuplicateKeyError):
        producer.insert("second", 3, KIB)
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.take(key(producer, "second"), 2, LARGE)


def test_what_could_never_fit_is_refused_at_once(full: tuple[Node, Node]) -> None:
    producer, _ = full
    for nbytes in (MIB, 3 * MIB):
        with pytest.raises(CapacityError, match="is larger than the 1048512"):
            producer.insert("large", 1, nbytes)
    producer.await_stats(delayed=0, delayed_inserts=0)


def test_a_backend_that_fails_while_a_value_waits_costs_that_value_alone(
    full: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    producer.begin_insert("three", "third", 3, LARGE)
    producer.await_stats(delayed=2)
    hold, failures = producer.backend.hold, [RuntimeError("the vendor's code is 42")]

    def fail_once(payload: Any) -> Any:
        if failures:
            raise failures.pop()
        return hold(payload)

    monkeypatch.setattr(producer.backend, "hold", fail_once)
    with pytest.raises(TransportError, match="code is 42"):
        producer.end("two")
    with pytest.raises(KeyDroppedError, match="code is 42"):
        consumer.take(key(producer, "second"), 2, LARGE)
    consumer.take(key(producer, "first"), 1, LARGE)
    consumer.take(key(producer, "third"), 3, LARGE)
    producer.end("three")


@pytest.mark.parametrize("what", ["buffer", "endpoint"])
def test_what_waits_at_the_end_gets_its_memory_back(full: tuple[Node, Node], what: str) -> None:
    producer, consumer = full
    producer.begin_insert("two", "second", 2, LARGE)
    producer.await_stats(delayed=1)
    consumer.begin("waits", "drop_select", key(producer, "second"), 2, LARGE)
    eventually(lambda: len(producer.buffer._shelf._questions) == 1, 5, lambda: "the question did not come")
    getattr(producer, what).close()
    assert producer.transfers["two"][0].poll()
    with pytest.raises(Exception, match="closed"):
        consumer.end("waits")
    assert producer.stats()["delayed"] == 0


def test_many_values_go_through_a_pool_for_one(full: tuple[Node, Node]) -> None:
    producer, consumer = full
    for seed in range(2, 30):
        producer.begin_insert(str(seed), f"k{seed}", seed, LARGE)
        consumer.begin(str(seed), "drop_select", key(producer, f"k{seed}"), seed, LARGE)
    consumer.take(key(producer, "first"), 1, LARGE)
    for seed in range(2, 30):
        consumer.end(str(seed))
        producer.end(str(seed))
    producer.await_used(0)
    producer.await_stats(delayed=0, refused_insert=0)


# -- stores ---------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(process: Callable[..., Process], slow: Process) -> Process:
    """A process whose store has no room, and whose buffer is patient."""
    made = process(slow.store, patient=True)
    made.store.failures["put"] = CapacityError("no room")
    return made


def puts(crowded: Process) -> int:
    return crowded.store.begun.count(("put", "k"))


def test_a_store_is_asked_again_until_it_has_room(crowded: Process) -> None:
    insert = crowded.insert(1)
    eventually(lambda: puts(crowded) >= 3, 5, lambda: f"{crowded.store.begun}")
    assert not insert.poll()
    crowded.await_stats(delayed_inserts=1, failed_insert=0)
    crowded.store.failures.clear()
    crowded.take(1)
    insert.wait(5)
    crowded.await_stats(inserted=1)


def test_a_store_that_has_no_room_until_the_lease_ends_refuses(crowded: Process) -> None:
    with pytest.raises(CapacityError, match="no room"):
        crowded.insert(1, lease=0.3).wait(5)
    crowded.await_stats(failed_insert=1)
    assert puts(crowded) >= 2
    with pytest.raises(KeyDroppedError, match="its insert failed: no room"):
        crowded.take(1)


def test_an_insert_that_waits_for_room_in_a_store_can_be_cancelled(crowded: Process) -> None:
    insert = crowded.insert(1)
    eventually(lambda: puts(crowded) >= 2, 5, lambda: f"{crowded.store.begun}")
    insert.cancel()
    eventually(insert.poll, 1, lambda: "it goes on")
    crowded.store.failures.clear()
    crowded.settle()
    assert not crowded.store.values


def test_a_store_is_asked_once_without_patience(slow: Process) -> None:
    slow.store.failures["put"] = CapacityError("no room")
    with pytest.raises(CapacityError):
        slow.insert(1).wait(5)
    assert puts(slow) == 1
