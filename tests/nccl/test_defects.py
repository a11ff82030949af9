"""What was wrong with vLLM's P2pNcclConnector, one by one. The numbers are those of its README.

Of engines rather than of the backend: 1 (ids that the engine makes up) and 11 (a prefill engine that generates two
tokens) are in tests/plugins/test_other_backends.py, 14 (membership by address) in tests/plugins/test_binding.py, where
params are forged and replayed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Key
from kvbridge.conformance.checks import eventually
from kvbridge.conformance.resources import growth, resources
from kvbridge.conformance.values import Geometry, PagesValue
from kvbridge.errors import CapacityError
from kvbridge_nccl import staging
from tests.nccl.values import LARGE, MIB, SMALL, SOON, TINY, TINY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from kvbridge.conformance.node import Node


def test_2_a_producer_that_hangs_costs_its_consumer_no_more_than_the_deadline(
    node: Callable[..., Node], peer: Callable[..., Any]
) -> None:
    producer, consumer = peer(name="producer"), node({"stall_timeout": 1}, peer_timeout=60)
    producer.begin_insert("k", "k", LARGE)
    consumer.begin_claim("c", Key("k", *producer.where()))
    consumer.end("c")
    producer.host.stop()
    started = time.monotonic()
    consumer.begin_fill("f", "c", LARGE)
    assert consumer.await_over("f", SOON)
    assert time.monotonic() - started < SOON
    producer.host.go_on()


def test_3_and_4_a_receiver_without_memory_fails_the_transfer_and_lives(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = node({"chunk": 1000}), node({"chunk": 1000})

    def full(nbytes: int) -> None:
        raise CapacityError(f"there are no {nbytes} bytes of memory for a chunk: a test took them")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "_host", full)
        producer.begin_insert("k", "k", SMALL)
        consumer.begin("f", "drop_select", Key("k", *producer.where()), SMALL)
        assert consumer.await_over("f", SOON), "it succeeded with bytes that it never got"
    producer.begin_insert("l", "l", SMALL)
    consumer.take(Key("l", *producer.where()), SMALL)


def test_5_one_peer_that_hangs_holds_up_nobody_else(node: Callable[..., Node], peer: Callable[..., Any]) -> None:
    mute, consumer, healthy = peer(name="mute"), node(peer_timeout=60), node()
    mute.begin_insert("k", "k", LARGE)
    consumer.begin_claim("c", Key("k", *mute.where()))
    consumer.end("c")
    mute.host.stop()
    consumer.begin_fill("f", "c", LARGE)
    for turn in range(5):
        healthy.begin_insert(f"k{turn}", f"k{turn}", LARGE)
        consumer.take(Key(f"k{turn}", *healthy.where()), LARGE)
    assert not consumer.over("f") or consumer.await_over("f")
    mute.host.go_on()


def test_6_both_sides_may_begin_at_once(node: Callable[..., Node]) -> None:
    first, second = node(), node()
    for turn in range(10):
        for blocks, here, there in ((100 + turn, first, second), (200 + turn, second, first)):
            cache = Geometry(page_bytes=(64 << 10,), num_blocks=blocks)  # one for each: they are looked at as a whole
            value = PagesValue(seed=turn, ids=tuple(range(40 if turn % 3 == 0 else 3)), geometry=cache)
            here.begin_insert(f"i{turn}", f"k{turn}", value)
            there.begin(f"t{turn}", "drop_select", Key(f"k{turn}", *here.where()), value)
    for turn in range(10):
        first.end(f"t{turn}")
        second.end(f"t{turn}")


def test_7_what_is_held_is_counted_exactly(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    for turn in range(10):
        producer.begin_insert(f"k{turn}", f"k{turn}", TINY)
    producer.await_stats(entries=10, bytes=10 * TINY_BYTES)
    for turn in range(10):
        consumer.take(Key(f"k{turn}", *producer.where()), TINY)
        producer.await_stats(entries=9 - turn, bytes=(9 - turn) * TINY_BYTES)


def test_8_what_nobody_fetches_is_given_back(node: Callable[..., Node]) -> None:
    producer = node(lease=0.3)
    producer.begin_insert("k", "k", LARGE)
    producer.end("k", SOON)
    producer.await_stats(entries=0, bytes=0, expired=1)


def test_9_and_14_who_does_not_know_the_secret_is_refused(node: Callable[..., Node]) -> None:
    producer, consumer, stranger = node(secret="s" * 32), node(secret="s" * 32), node(secret="t" * 32)
    producer.begin_insert("k", "k", TINY)
    stranger.begin("f", "drop_select", Key("k", *producer.where()), TINY, timeout=2)
    assert stranger.await_over("f", SOON)
    consumer.take(Key("k", *producer.where()), TINY)


def test_10_ends_are_quick_after_a_peer_was_killed(node: Callable[..., Node], peer: Callable[..., Any]) -> None:
    consumer, producer = node(), peer(name="producer")
    producer.begin_insert("k", "k", SMALL)
    consumer.take(Key("k", *producer.where()), SMALL)
    producer.host.kill()
    started = time.monotonic()
    consumer.close()
    assert time.monotonic() - started < SOON


def test_12_a_source_is_its_owners_only_when_it_was_taken(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    producer.begin_insert("k", "k", LARGE)
    time.sleep(0.3)
    assert not producer.over("k")
    consumer.take(Key("k", *producer.where()), LARGE)
    producer.end("k", SOON)


def test_12_no_copy_of_a_value_is_kept(node: Callable[..., Node]) -> None:
    """Their producer gathered whole layers: here two chunks for each peer are all, whatever the value."""
    producer, consumer = node(), node()
    producer.begin_insert("k", "k", LARGE)
    consumer.take(Key("k", *producer.where()), LARGE)
    before = resources()
    for turn in range(8):
        producer.begin_insert(f"k{turn}", f"k{turn}", LARGE)
    time.sleep(0.3)
    assert not growth(before, resources(), slack={"descriptors": 8, "tasks": 4, "resident": 64 * MIB})
    for turn in range(8):
        consumer.take(Key(f"k{turn}", *producer.where()), LARGE)


def test_13_pages_of_any_shape_are_moved_by_their_bytes(node: Callable[..., Node]) -> None:
    from kvbridge.memory import Pages, Region

    producer, consumer = node({"chunk": 4096}), node({"chunk": 4096})
    source, target = np.random.default_rng(1).bytes(40 * 1001), np.zeros(40 * 1001, dtype=np.uint8)
    here = Region.over(np.frombuffer(source, dtype=np.uint8).copy(), 1001)
    there = Region.over(target, 1001)
    assert here.host is not None
    producer.buffer.insert(Key("odd"), Pages.of([here, here], range(3, 20)))
    out = Pages((there, there), (np.arange(0, 17), np.arange(20, 37)))
    consumer.buffer.drop_select(Key("odd", *producer.where()), out).wait(SOON)
    rows = target.reshape(40, -1)
    assert (rows[:17] == here.host.reshape(40, -1)[3:20]).all()
    assert (rows[20:37] == rows[:17]).all()


def test_10_a_peer_is_noticed_to_be_dead_soon(node: Callable[..., Node], peer: Callable[..., Any]) -> None:
    producer = peer(name="producer", faults={"write": [("pause", "before")]})
    consumer = node()
    producer.begin_insert("k", "k", LARGE)
    consumer.begin("f", "drop_select", Key("k", *producer.where()), LARGE)
    producer.await_paused("write")
    producer.host.kill()
    started = time.monotonic()
    eventually(lambda: consumer.over("f"), SOON, lambda: "it waits for the dead")
    assert time.monotonic() - started < SOON
