"""Groups of two: made on first contact, ended by loss, idleness and retreat, and made anew."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key, Move, MoveState
from kvbridge.conformance.checks import eventually
from kvbridge.conformance.resources import growth, resources
from kvbridge.errors import CancelledError
from tests.nccl.values import LARGE, MIB, SMALL, SOON, TINY

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.node import Node


def hand_over(producer: Any, consumer: Any, key: str, value: Any = TINY) -> None:
    producer.begin_insert(key, key, value)
    consumer.take(Key(key, *producer.where()), value)
    producer.end(key)


def receivers(consumer: Node) -> list[Any]:
    return list(consumer.backend._receivers.values())  # type: ignore[attr-defined]


def groups_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kvbridge-nccl")]


def test_one_group_carries_all_that_comes_from_one_peer(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    for turn in range(20):
        hand_over(producer, consumer, f"k{turn}")
    assert len(receivers(consumer)) == 1
    assert len(groups_of_threads()) == 2
    assert receivers(producer) == []


def test_an_idle_group_ends_and_the_next_value_makes_another_one(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node({"idle": 0.3})
    hand_over(producer, consumer, "a")
    first = receivers(consumer)[0]
    eventually(lambda: first.over, SOON, lambda: "the group stays")
    hand_over(producer, consumer, "b")
    assert receivers(consumer)[0] is not first
    eventually(lambda: len(groups_of_threads()) <= 2, SOON, lambda: f"{groups_of_threads()}")


class Silent(Move):
    """A producer's half that never sends anything."""

    def __init__(self) -> None:
        self.aborted = False

    def step(self) -> MoveState:
        if self.aborted:
            raise CancelledError("stopped")
        return MoveState.WAIT

    def abort(self) -> None:
        self.aborted = True


def test_who_gives_up_before_anything_came_ends_the_group_and_not_the_peer(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group waits for a header that will not come: it is ended, and the next value comes over another one."""
    producer, consumer = node(), node({"stall_timeout": 60})  # or it would end by itself
    hand_over(producer, consumer, "a", SMALL)
    first = receivers(consumer)[0]
    with monkeypatch.context() as patch:
        patch.setattr(producer.backend, "send", lambda *_: Silent())
        producer.begin_insert("b", "b", LARGE)
        consumer.begin("b", "select", Key("b", *producer.where()), LARGE)
        eventually(lambda: first._listening, SOON, lambda: "it waits for nothing")
        consumer.cancel("b")
        assert consumer.await_over("b") == "cancelled"
        eventually(lambda: first.over, SOON, lambda: "the group waits on")
    hand_over(producer, consumer, "c", SMALL)
    consumer.take(Key("b", *producer.where()), LARGE)


def test_who_gives_up_in_the_middle_gets_the_next_value_right(node: Callable[..., Node]) -> None:
    producer, consumer = node({"chunk": "64KiB"}), node({"chunk": "64KiB"})
    for turn in range(10):
        producer.begin_insert(f"a{turn}", f"a{turn}", LARGE)
        consumer.begin("a", "drop_select", Key(f"a{turn}", *producer.where()), LARGE)
        time.sleep(0.002 * turn)
        consumer.cancel("a")
        consumer.await_over("a")
        hand_over(producer, consumer, f"b{turn}")


def test_values_of_no_bytes_and_pages_larger_than_a_chunk(node: Callable[..., Node]) -> None:
    import numpy as np

    from kvbridge.memory import Pages, Region

    producer, consumer = node({"chunk": 1000}), node({"chunk": 1000})
    home = producer.where()
    source, target = np.arange(8 * 4096, dtype=np.uint8), np.zeros(8 * 4096, dtype=np.uint8)
    here, there = Region.over(source, 4096), Region.over(target, 4096)
    producer.buffer.insert(Key("big"), Pages.of([here], [7, 0, 3]))
    consumer.buffer.drop_select(Key("big", *home), Pages.of([there], [1, 2, 6])).wait(SOON)
    assert (target.reshape(8, -1)[[1, 2, 6]] == source.reshape(8, -1)[[7, 0, 3]]).all()
    producer.buffer.insert(Key("none"), Pages.of([here], []))
    consumer.buffer.drop_select(Key("none", *home), Pages.of([there], [])).wait(SOON)
    producer.buffer.insert(Key("empty"), np.zeros(0, dtype=np.float32))
    consumer.buffer.drop_select(Key("empty", *home), np.zeros(0, dtype=np.float32)).wait(SOON)


def test_each_side_may_have_chunks_of_its_own(node: Callable[..., Node]) -> None:
    first, second = node({"chunk": "64KiB"}), node({"chunk": "3MiB"})
    hand_over(first, second, "a", LARGE)
    hand_over(second, first, "b", LARGE)


def test_a_restarted_peer_is_met_anew(node: Callable[..., Node], peer: Callable[..., Any]) -> None:
    consumer = node()
    for turn in range(3):
        producer = peer(name=f"producer-{turn}")
        hand_over(producer, consumer, "k", SMALL)
        producer.host.kill()
    eventually(lambda: not groups_of_threads(), SOON, lambda: f"{groups_of_threads()}")


def test_two_thousand_values_and_a_hundred_groups_leave_nothing(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()

    def turns(start: int, count: int) -> None:
        for turn in range(start, start + count):
            hand_over(producer, consumer, f"k{turn}")
            if turn % 20 == 0:  # another group
                for receiver in receivers(consumer):
                    receiver.close(SOON)

    turns(0, 200)
    before = resources()
    turns(200, 2000)
    more = growth(before, resources(), slack={"descriptors": 24, "tasks": 12, "resident": 24 * MIB})
    assert not more


def test_a_stranger_at_the_open_ports_disturbs_nobody(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    hand_over(producer, consumer, "a")
    port = receivers(consumer)[0]._port
    strangers = []
    for nonsense in (b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64):
        stranger = socket.create_connection(("127.0.0.1", port), 5)
        stranger.sendall(nonsense)
        strangers.append(stranger)
    hand_over(producer, consumer, "b", LARGE)
    receivers(consumer)[0].close(SOON)
    hand_over(producer, consumer, "c", LARGE)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("mute", ["producer", "consumer"])
def test_closing_takes_a_moment_whatever_the_peer_does(
    node: Callable[..., Node], peer: Callable[..., Any], mute: str
) -> None:
    here, there = node(peer_timeout=60), peer(name="there", peer_timeout=60)
    producer, consumer = (there, here) if mute == "producer" else (here, there)
    hand_over(producer, consumer, "a", SMALL)
    producer.begin_insert("b", "b", LARGE)
    consumer.begin_claim("b", Key("b", *producer.where()))
    consumer.end("b")
    there.host.stop()
    if mute == "producer":
        here.begin_fill("f", "b", LARGE)
        time.sleep(0.2)
    started = time.monotonic()
    here.close()
    assert time.monotonic() - started < SOON
    there.host.go_on()
    eventually(lambda: not groups_of_threads(), SOON, lambda: f"{groups_of_threads()}")
